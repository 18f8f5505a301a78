"""A table of names: a model whose weights have names of their own becomes a run with its logits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from names_brought import brought, sequences
from own_names import LAYOUTS, Own, Shape, given_of, names_of
from public_codes import SOURCE
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

import mechmarkov as mm
from mechmarkov.safe.plain_data import RunFileError


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hidden", [None, 12])
def test_attention_kept_in_each_way_that_people_keep_it(layout, hidden):
    """`width` is `n_heads * d_head`: no square matrix shows the order of its axes."""
    shape = Shape(layout, hidden=hidden, norm=hidden is not None, bias=layout == "parts")
    run = brought(shape)
    tokens = sequences(shape)
    torch.testing.assert_close(run.model()(tokens), Own(shape)(tokens), rtol=1e-5, atol=1e-5)
    assert run.config.n_key_value_heads == (1 if layout == "grouped" else None)


@settings(max_examples=30, deadline=None)
@example(
    layout="grouped", sizes=(1, 1, 1, 1), hidden=None, flags=(False, False), seed=0
)  # one head, in groups
@drawn(
    layout=st.sampled_from(LAYOUTS),
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
    hidden=st.sampled_from([None, 1, 6]),
    flags=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 9),
)
def test_any_shape_has_the_logits_of_its_model(layout, sizes, hidden, flags, seed):
    n_heads, d_head, n_layers, width = sizes
    shape = Shape(
        layout, n_states=3 + seed % 3, width=2 * width, n_heads=n_heads, d_head=d_head,
        n_layers=n_layers, hidden=hidden, norm=flags[0], bias=flags[1],
    )  # fmt: skip
    run = brought(shape, seed=seed)
    tokens = sequences(shape)
    torch.testing.assert_close(run.model()(tokens), Own(shape, seed)(tokens), rtol=2e-4, atol=2e-4)


def test_a_square_weight_that_lies_otherwise_than_its_name_says_is_told_by_the_logits():
    shape = Shape("conv1d")
    names = {key: value["to"] if isinstance(value, dict) else value for key, value in names_of(shape).items()}
    with pytest.raises(
        RunFileError,
        match=r"^Own and its conversion disagree: .*; look at the order of axes, at `split`, "
        r"at what is given \(.*n_heads = 2",
    ):
        brought(shape, names)


def test_a_shape_that_tells_the_order_of_axes_needs_no_word():
    shape = replace(Shape("conv1d"), d_head=3)
    names = {key: value["to"] if isinstance(value, dict) else value for key, value in names_of(shape).items()}
    assert brought(shape, names).provenance["logit_difference"] <= 1e-5


class Tied(Own):
    """Embeddings scaled where they enter, as in "Attention is all you need"; the readout has no weight."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        del self.readout

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = 2.0 * self.tokens(tokens) + self.positions[:, : tokens.shape[1]]
        return self.last(self.stack(x)) @ self.tokens.weight.T


def test_one_weight_stands_in_two_places():
    shape, model = Shape(), Tied(Shape())
    names = names_of(shape) | {"tokens.weight": [{"to": "embed.W_E", "scale": 2.0}, "unembed.W_U"]}
    run = mm.Run.from_model(model, source=SOURCE, names=names, given=given_of(shape))
    assert not run.config.tied
    names |= {"tokens.weight": {"to": ["embed.W_E", "unembed.W_U"], "scale": 2.0}}
    with pytest.raises(RunFileError, match="disagree"):
        mm.Run.from_model(model, source=SOURCE, names=names, given=given_of(shape))


def test_a_tied_model_has_one_parameter():
    shape = Shape()
    model = Own(shape)
    model.readout.weight = model.tokens.weight
    both = mm.Run.from_model(model, source=SOURCE, names=names_of(shape), given=given_of(shape))
    del model.readout
    model.forward = lambda tokens: (
        model.last(model.stack(model.tokens(tokens) + model.positions)) @ model.tokens.weight.T
    )
    names = names_of(shape) | {"tokens.weight": ["embed.W_E", "unembed.W_U"]}
    one = mm.Run.from_model(model, source=SOURCE, names=names, given=given_of(shape))
    assert both.config.tied
    assert one.config == both.config
    assert one.states.keys() == both.states.keys()
    with pytest.raises(
        RunFileError, match=r'no line gives unembed.W_U: .*"…": \["embed.W_E", "unembed.W_U"\]'
    ):
        mm.Run.from_model(model, source=SOURCE, names=names_of(shape), given=given_of(shape))


class Odd(nn.Module):
    """No output projection, a gain kept as its distance from 1, positions after a padding row, no biases."""

    def __init__(self) -> None:
        super().__init__()
        shape = Shape()
        self.inner = Own(shape)
        self.gain = nn.Parameter(0.1 * torch.arange(8.0))
        self.places = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))
        for block in self.inner.stack:
            block.attention.out = nn.Identity()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.inner.tokens(tokens) + self.places[1 : 1 + tokens.shape[1]]
        x = self.inner.stack(x)
        return self.inner.readout(x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * (1 + self.gain))


class OddBlocks(nn.Module):
    """Blocks that norm what they read without a gain."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return x + self.block.attention(normed)


def test_what_a_model_does_not_have_is_filled_as_asked():
    model = Odd()
    model.inner.stack = nn.Sequential(*[OddBlocks(block) for block in model.inner.stack])
    theirs, ours = r"inner\.stack\.(\d+)\.block\.attention\.read\.0\.", r"blocks.\1.attn.W_"
    read = {rf"{theirs}{x}\.weight": f"{ours}{x.upper()}" for x in "qkv"}
    names = {
        "inner.tokens.weight": "embed.W_E",
        "inner.positions": "",
        "places": {"to": "pos_embed.W_pos", "rows": [1, 8]},
        "gain": {"to": "ln_final.w", "add": 1},
        "inner.readout.weight": "unembed.W_U",
        **read,
        "missing": {r"blocks\.\d+\.attn\.W_O": "identity", r".*\.ln1\.w": "ones", r".*\.b_\w": "zeros"},
    }
    run = mm.Run.from_model(
        model, source=SOURCE, names=names, given={"n_heads": 2, "normalization_type": "RMS"}
    )
    tokens = sequences(Shape())
    torch.testing.assert_close(run.model()(tokens), model(tokens), rtol=1e-5, atol=1e-5)


def test_a_table_of_positions_may_be_longer_than_the_context(tmp_path):
    """A common one has 5000 rows, whatever the data are."""
    shape = Shape(n_positions=40)
    model, given = Own(shape), given_of(shape) | {"n_ctx": 7}
    state = {name: x for name, x in model.state_dict().items() if "mask" not in name}
    torch.save(state, tmp_path / "model.pt")
    live = mm.Run.from_model(model, source=SOURCE, names=names_of(shape), given=given)
    saved = mm.import_run([tmp_path / "model.pt"], source=SOURCE, names=names_of(shape), given=given).run
    for run in (live, saved):
        assert run.config.n_ctx == 7
        tokens = sequences(shape)[:, :7]
        torch.testing.assert_close(run.model()(tokens), model(tokens), rtol=1e-5, atol=1e-5)


def test_a_recorder_takes_the_table(tmp_path):
    shape = Shape("parts")
    model = Own(shape)
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, names=names_of(shape), given=given_of(shape))
    for step in range(3):
        recorder(step, model)
        with torch.no_grad():
            model.readout.weight += 0.1
    run = recorder.finish(3, model)
    assert run.steps.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(run.model()(sequences(shape)), model(sequences(shape)), rtol=1e-5, atol=1e-5)


class Around(nn.Module):
    """Calls a model; a count of its own is a buffer."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.register_buffer("count", torch.zeros(()))

    def forward(self, tokens):
        return self.model(tokens)


def compiled_by_layers(model):
    model.stack = nn.Sequential(*[torch.compile(block, backend="eager") for block in model.stack])
    return model


@pytest.mark.parametrize(
    "wrap", [Around, AveragedModel, compiled_by_layers, lambda x: Around(compiled_by_layers(x))]
)
def test_wrappers_need_no_lines_of_their_own(wrap):
    shape = Shape(hidden=12)
    run = mm.Run.from_model(wrap(Own(shape)), source=SOURCE, names=names_of(shape), given=given_of(shape))
    tokens = sequences(shape)
    torch.testing.assert_close(run.model()(tokens), Own(shape)(tokens), rtol=1e-5, atol=1e-5)


PARAMETRIZED = [parametrizations.weight_norm, parametrizations.orthogonal, parametrizations.spectral_norm]


@pytest.mark.parametrize("parametrized", PARAMETRIZED)
def test_a_parametrized_weight_is_the_one_it_makes(parametrized):
    shape = Shape(hidden=12)
    model = Own(shape)
    parametrized(model.readout)
    parametrized(model.stack[0].up)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = mm.Run.from_model(model, source=SOURCE, names=names_of(shape), given=given_of(shape))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    tokens = sequences(shape)
    torch.testing.assert_close(run.model()(tokens), model.eval()(tokens), rtol=1e-5, atol=1e-5)


def test_a_table_may_have_the_names_of_wrappers():
    shape = Shape(hidden=12)
    names = {rf"model\.{x}" if "stack" in x else f"model.{x}": to for x, to in names_of(shape).items()}
    names["missing"] = names.pop("model.missing")
    run = mm.Run.from_model(Around(Own(shape)), source=SOURCE, names=names, given=given_of(shape))
    tokens = sequences(shape)
    torch.testing.assert_close(run.model()(tokens), Own(shape)(tokens), rtol=1e-5, atol=1e-5)
