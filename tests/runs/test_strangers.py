"""Decoders that strangers wrote come in without a table of names: their forward pass tells it."""

import warnings
from dataclasses import replace

import more_strangers as more
import pytest
import strangers
import torch
from by_hand import LENGTH, Hand, K, Style, given_of, names_of
from own_names import LAYOUTS, Own, Shape
from own_names import given_of as given_of_own
from own_names import names_of as names_of_own
from public_codes import drawn
from strangers import Concatenated, Einsums, LlamaLike, Merged, OneLength, TorchEncoder
from test_written_by_hand import COME_IN
from torch import nn

import mechmarkov as mm
from mechmarkov.importing.live import other_weights

SOURCE = mm.Circle(n_states=K, p=0.3)
MODELS = {
    "torch's own layers": TorchEncoder,
    "torch's own layers, position first": lambda: TorchEncoder(batch_first=False),
    "bare parameters of heads": Einsums,
    "a module for each head": strangers.ModulePerHead,
    "an output for each head": strangers.OutputPerHead,
    "no output matrix, keys first": strangers.NoOutput,
    "one matrix between tokens": lambda: Merged(after=True),
    "one matrix, two layers": lambda: Merged(after=False, n_layers=2),
    "one-hot tokens next to positions": lambda: Concatenated(one_hot=True),
    "embedded tokens next to positions": lambda: Concatenated(one_hot=False),
    "keys and values in one, a gate in one": strangers.Bracketed,
    "Conv1D, tied": strangers.ConvLayers,
    "attention and MLP in parallel": strangers.InParallel,
    "one length, computed positions": OneLength,
    "the stream first, then heads": lambda: more.AxesOfHeads("dhk", "hkd"),
    "the head's numbers first": lambda: more.AxesOfHeads("khd", "dhk"),
    "one stream times all heads": lambda: more.Broadcast("hdk", "hkd"),
    "one matrix between tokens, two heads": more.MergedHeads,
    "a softmax by hand": more.ByHand,
}


def tokens() -> torch.Tensor:
    return torch.randint(K, (16, strangers.LENGTH), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("case", MODELS)
def test_a_strangers_model_comes_in(case):
    torch.manual_seed(0)
    model = drawn(MODELS[case]())
    run = mm.Run.from_model(model, source=SOURCE)
    logits = model.eval()(tokens())
    logits = logits[0] if isinstance(logits, tuple) else logits
    torch.testing.assert_close(run.model()(tokens()), logits, rtol=1e-5, atol=1e-5)
    assert run.config.n_ctx == strangers.LENGTH


@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_length_that_nothing_tells_is_asked_for(qk_norm):
    model = drawn(LlamaLike(qk_norm))
    with pytest.raises(ValueError, match=r"^nothing tells how many tokens LlamaLike reads .* n_ctx=32"):
        mm.Run.from_model(model, source=SOURCE)
    run = mm.Run.from_model(model, source=SOURCE, n_ctx=9)
    torch.testing.assert_close(run.model()(tokens()), model.eval()(tokens()), rtol=1e-5, atol=1e-5)
    assert (run.config.n_key_value_heads, run.config.use_qk_norm) == (2, qk_norm)
    assert run.config.rotary_adjacent_pairs


@pytest.mark.parametrize("case", COME_IN)
def test_it_is_what_a_table_of_names_gives(case):
    style = COME_IN[case]
    model = drawn(Hand(style))
    given = given_of(style) | ({"attn_scale": None, "use_attn_scale": False} if style.scale == 1 else {})
    by_names = mm.Run.from_model(model, source=SOURCE, names=names_of(style), given=given)
    by_itself = mm.Run.from_model(model, source=SOURCE, n_ctx=LENGTH)
    assert by_itself.config == by_names.config
    for name, value in by_names.states.items():
        measured = name in ("embed.W_E", "pos_embed.W_pos") or name.endswith("b_rel")
        torch.testing.assert_close(by_itself.states[name], value, rtol=0, atol=1e-6 if measured else 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_way_to_keep_queries_comes_in(layout):
    shape = Shape(layout, hidden=6, norm=True, bias=layout not in ("matrices", "conv1d", "einsum"))
    model = Own(shape)
    source = mm.Circle(n_states=shape.n_states, p=0.3)
    by_names = mm.Run.from_model(model, source=source, names=names_of_own(shape), given=given_of_own(shape))
    by_itself = mm.Run.from_model(model, source=source)
    assert by_itself.config == by_names.config
    for name, value in by_names.states.items():
        torch.testing.assert_close(by_itself.states[name], value, rtol=0, atol=0)


REFUSED = {
    "a gate on heads": (strangers.Gated, "scores are not scaled products of what q.weight, k.weight"),
    "a GRU": (strangers.Recurrent, "gru.weight_ih_l0 goes through `gru`"),
    "later tokens": (strangers.SeesAll, "its scores are not masked: are later tokens seen"),
    "a part of the stream": (strangers.PartOfTheStream, "u.weight reads 5 numbers, of a stream of 16"),
    "softplus": (strangers.OddActivation, "between up.weight and down.weight is none of relu, gelu"),
    "ALiBi next to positions": (
        lambda: Hand(Style(bias_of_scores="alibi")),
        "scores have a bias by lag, next to positions of another kind",
    ),
    "values wider than queries": (more.WideValues, "16 numbers of values, but 4 of keys"),
    "parts of one weight": (more.InParts, "all is used in parts, by `matmul`"),
    "no token sees itself": (more.SeesOthersOnly, "o.weight does not read what causal attention gives"),
    "two heads of logits": (more.TwoLogits, "u.weight and u2.weight read the same last"),
    "keys of something else": (more.OfMemory, "p.weight goes through `multi_head_attention_forward`"),
    "a learned key": (more.LearnedKey, "a.in_proj_weight goes through `multi_head_attention_forward`"),
    "a cap on scores": (more.CappedScores, "scores are not scaled products of what q.weight, k.weight"),
    "no softmax": (lambda: Hand(Style(soft=False)), "neither attention with a softmax nor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_named(case):
    kind, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        mm.Run.from_model(drawn(kind()), source=SOURCE, n_ctx=7)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", [more.Relu6, more.CappedLogits, more.BehindZeros, more.ByLength])
def test_small_weights_hide_nothing(kind):
    """With such weights as these all of them compute what a HookedDecoder does."""
    model = drawn(kind())
    model.max_len = 4 if kind is more.ByLength else strangers.LENGTH
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.05
        if kind is more.BehindZeros:
            model.o.weight.zero_()
            model.o.bias.zero_()
    with pytest.raises(ValueError, match=r"agree with these weights, yet with (larger|smaller) ones logits"):
        mm.Run.from_model(model, source=SOURCE)


def test_a_mask_may_be_a_parameter():
    model = more.MaskParameter()
    for name, parameter in model.named_parameters():
        if name != "tril":
            nn.init.normal_(parameter, std=0.4)
    run = mm.Run.from_model(model, source=SOURCE)
    torch.testing.assert_close(run.model()(tokens()), model(tokens()), rtol=1e-5, atol=1e-5)


def test_masks_that_code_keeps_stay_of_float32():
    """One of float64 would end the training that goes on with it."""
    model = drawn(more.KeptMask())
    mm.Run.from_model(model, source=SOURCE)
    assert more.kept_mask(strangers.LENGTH).dtype == torch.float32
    assert model(tokens()).dtype == torch.float32


def test_a_dropout_left_on_draws_from_no_training():
    model = drawn(more.Noisy())
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="is a dropout left on"):
        mm.Run.from_model(model, source=SOURCE)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("length", [-1, 0])
def test_a_length_of_nothing_is_not_one(length):
    model = drawn(strangers.NoOutput())
    model.max_len = length
    assert mm.Run.from_model(model, source=SOURCE).config.n_ctx == strangers.LENGTH


def test_zeros_and_ones_of_a_start_hide_nothing():
    """Queries of zeros make all scores equal, whichever weight they are."""
    model = drawn(strangers.NoOutput())
    trained = mm.Run.from_model(model, source=SOURCE)
    with torch.no_grad():
        for part in (model.a, model.b, model.c):
            part.weight.zero_()
    start = mm.Run.from_model(model, source=SOURCE)
    assert start.config == trained.config
    assert start.provenance["names"] == trained.provenance["names"]
    assert trained.provenance["names"]["a.weight"] == "blocks.0.attn.W_K"


def test_a_look_leaves_the_model_as_it_was():
    model = drawn(strangers.ModulePerHead()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [len(part._forward_pre_hooks) for part in model.modules()]
    mm.Run.from_model(model, source=SOURCE)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [len(part._forward_pre_hooks) for part in model.modules()] == hooks
    assert all(part.training for part in model.modules())


def test_three_lines_record_a_strangers_training(tmp_path):
    model = drawn(strangers.Bracketed())
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = mm.Recorder(tmp_path / "run.pt", source=SOURCE, every=2)
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(4):
            recorder(step, model)
            read = torch.randint(K, (8, strangers.LENGTH), generator=generator)
            loss = nn.functional.cross_entropy(model(read[:, :-1]).flatten(0, 1), read[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        run = recorder.finish(4, model)
    assert run.steps.tolist() == [0, 2, 4]
    torch.testing.assert_close(run.model()(tokens()), model.eval()(tokens()), rtol=1e-5, atol=1e-5)


def test_what_no_function_reads_is_left_out():
    model = strangers.NoOutput()
    model.value_head = nn.Linear(strangers.WIDTH, 1)
    run = mm.Run.from_model(drawn(model), source=SOURCE)
    assert "value_head.weight" not in run.provenance["names"]


def test_given_fields_count_more(tmp_path):
    style = replace(Style(), positions="rotary")
    run = mm.Run.from_model(drawn(Hand(style)), source=SOURCE, given={"n_ctx": 5})
    assert run.config.n_ctx == 5


def test_a_window_is_seen():
    class Window(strangers.NoOutput):
        def forward(self, read):
            x, place = self.stream(read), torch.arange(read.shape[1])
            lags = place[:, None] - place
            scores = (self.a(x) @ self.b(x).mT).masked_fill((lags < 0) | (lags > 3), -torch.inf)
            return self.u(x + scores.softmax(-1) @ self.c(x))

    run = mm.Run.from_model(drawn(Window()), source=SOURCE)
    assert (run.config.window, run.config.use_attn_scale) == (3, False)


@pytest.mark.parametrize(
    "around", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_a_weight_made_of_others_is_seen(around):
    model = drawn(strangers.NoOutput())
    around(model.a)
    around(model.u)
    run = mm.Run.from_model(model, source=SOURCE)
    assert run.provenance["names"]["a.weight"] == "blocks.0.attn.W_K"


def test_a_holder_without_a_forward_pass_names_its_part():
    holder = nn.Module()
    holder.net = drawn(strangers.InParallel())
    with pytest.raises(ValueError, match=r"called with tokens it fails, .*; pass model.net$"):
        mm.Run.from_model(holder, source=SOURCE)


@pytest.mark.parametrize("around", [nn.DataParallel, nn.Module.bfloat16, nn.Module.double])
def test_a_wrapper_or_another_number_type_hides_nothing(around):
    model = around(drawn(strangers.InParallel()))
    assert mm.Run.from_model(model, source=SOURCE).config.parallel_attn_mlp


def test_a_bias_of_zeros_is_one_that_may_be_learned():
    """At a start nothing shows it but that the code adds a weight to scores."""
    model = Hand(Style(positions="none", bias_of_scores="lags"))
    with torch.no_grad():
        for layer in model.layers:
            layer.lags.weight.zero_()
    run = mm.Run.from_model(model, source=SOURCE, n_ctx=LENGTH)
    assert run.config.positional_embedding_type == "relative_bias"
    assert not run.states["blocks.1.attn.b_rel"].any()


def test_a_token_next_to_its_position_keeps_its_own_coordinates():
    run = mm.Run.from_model(drawn(Concatenated(one_hot=True)), source=SOURCE)
    W_E, W_pos = run.states["embed.W_E"][0], run.states["pos_embed.W_pos"][0]
    n = strangers.LENGTH
    torch.testing.assert_close(W_E, torch.cat([torch.eye(K), torch.zeros(K, n)], 1))
    torch.testing.assert_close(W_pos, torch.cat([torch.zeros(n, K), torch.eye(n)], 1))


def test_computed_positions_leave_the_embedding_as_it_is():
    model = drawn(OneLength())
    run = mm.Run.from_model(model, source=SOURCE)
    torch.testing.assert_close(run.states["embed.W_E"][0], model.e.weight.detach(), rtol=0, atol=0)


def test_a_recorder_compares_other_weights_once(monkeypatch):
    """The code of a model is the same at every step; with another config it is compared again."""
    drawn_sizes = []
    draw = other_weights.draw
    monkeypatch.setattr(
        other_weights, "draw", lambda model, size: (drawn_sizes.append(size), draw(model, size=size))
    )
    model = drawn(strangers.NoOutput())
    for _ in range(3):
        mm.Run.from_model(model, source=SOURCE)
    assert drawn_sizes == [0.1, 3.0]
    mm.Run.from_model(model, source=SOURCE, n_ctx=5)
    assert drawn_sizes == [0.1, 3.0, 0.1, 3.0]
