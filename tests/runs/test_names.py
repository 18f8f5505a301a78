"""A table of names: a model whose weights have names of their own becomes a run with its logits."""

import re
import tomllib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import example, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from own_names import LAYOUTS, Own, Shape, given_of, names_of
from public_codes import SOURCE
from torch import nn

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.importing.names.plan import plan_import
from mechmarkov.importing.names.table import read_names, table_of
from mechmarkov.safe.plain_data import RunFileError

CIRCLE = '{"kind": "circle", "n_states": 5, "p": 0.3}'
PAGE = Path(__file__).parents[2] / "docs" / "my-model-has-names-of-its-own.md"


def sequences(shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(shape.n_states, (4, shape.n_positions), generator=generator)


def brought(shape: Shape, names: dict | None = None, given: dict | None = None, seed: int = 0) -> mm.Run:
    return mm.Run.from_model(
        Own(shape, seed),
        source=mm.Circle(n_states=shape.n_states, p=0.3),
        names=names_of(shape) if names is None else names,
        given=given_of(shape) if given is None else given,
    )


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
    read = {
        rf"inner\.stack\.(\d+)\.block\.attention\.read\.0\.{x}\.weight": rf"blocks.\1.attn.W_{x.upper()}"
        for x in "qkv"
    }
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
    torch.save(
        {name: x for name, x in model.state_dict().items() if "mask" not in name}, tmp_path / "model.pt"
    )
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


def positions(**said: object) -> dict:
    return {"positions": {"to": "pos_embed.W_pos", **said}}


ASK = object()  # a field that is not given
# Changes of the table and of `given`, and what is said of them.
WRONG: list[tuple[dict, dict, str]] = [
    ({}, {"n_heads": ASK}, "has shape [8, 8], all heads in one: say how many, given="),
    (
        {},
        {"normalization_type": ASK},
        "does not determine normalization_type: give --set normalization_type=LN|",
    ),
    ({}, {"n_heads": 3}, "n_heads is 3, expected a divisor: "),
    ({}, {"n_ctx": 9}, "n_ctx is 7 by the shapes, but 9 was given"),
    ({}, {"positional_embedding_type": "none"}, 'names: pos_embed.W_pos (from "positions") has no place'),
    ({}, {"window": "x"}, "model.window is 'x', expected"),
    ({}, {"colour": 3}, "colour"),
    ({"missing": {}}, {}, 'b_Q, blocks.1.attn.b_K, …: "missing": "zeros" where the model has no such'),
    ({r".*\.out\.weight": ""}, {}, "match 'stack.0.attention.out.weight', expected one of them"),
    ({"tokens.weight": ""}, {}, "it has no embed.W_E"),
    (
        {"positions": "embeds.W_pos"},
        {},
        "is not a name of HookedTransformer's, did you mean pos_embed.W_pos?",
    ),
    ({"positions": "unembed.W_U"}, {}, 'names: "positions" and "readout.weight" are both unembed.W_U'),
    (
        {"positions": "pos_embed.W_pos transposed"},
        {},
        "expected a name or a table: {'to': 'pos_embed.W_pos', 'tr",
    ),
    ({"positions": 3}, {}, "names['positions'] is 3, expected a name such as 'embed.W_E'"),
    ({"positions": r"pos_embed.\3"}, {}, "invalid group reference 3"),
    ({"(": "embed.W_E"}, {}, "names has '(', which is not a regular expression: "),
    ({"missing": "ones"}, {}, "names['missing'] is 'ones', expected 'zeros' for all biases, or "),
    (positions(transposed=True), {}, "has 'transposed', expected some of to, transpose, split, head, rows"),
    (positions(transpose=1), {}, "names['positions'].transpose is 1, expected true or false"),
    (positions(transpose=True), {}, 'pos_embed.W_pos (from "positions") has shape'),
    (positions(split="thirds"), {}, "split is 'thirds', expected 'parts' or 'heads'"),
    (positions(split="parts"), {}, "has split, expected to be a list of several names"),
    (positions(rows=[1]), {}, "rows is [1], expected [start, stop]"),
    (positions(scale=float("nan")), {}, "scale is nan, expected a number"),
    (positions(head="x"), {}, "is head 'x', expected a number, each once"),
]


@pytest.mark.parametrize(("changes", "fields", "words"), WRONG, ids=[words[:40] for _, _, words in WRONG])
def test_what_is_wrong_with_a_table_is_one_line(changes, fields, words):
    shape = Shape()
    given = {name: value for name, value in (given_of(shape) | fields).items() if value is not ASK}
    with pytest.raises(RunFileError, match=re.escape(words)) as caught:
        brought(shape, names_of(shape) | changes, given)
    assert "\n" not in str(caught.value)


def test_a_weight_without_a_line_is_named_beside_the_names_that_are_wanted():
    shape = Shape(hidden=6)
    names = {key: value for key, value in names_of(shape).items() if "up" not in key}
    with pytest.raises(RunFileError) as caught:
        brought(shape, names)
    said = str(caught.value)
    assert said.startswith("the table of names has no line for stack.N.up.weight, stack.N.up.bias: say which")
    assert "; wanted are embed.W_E, pos_embed.W_pos" in said
    assert "docs/my-model-has-names-of-its-own.md" in said


def test_a_model_that_nothing_fits_shows_its_names_beside_those_that_are_wanted():
    with pytest.raises(RunFileError) as caught:
        mm.Run.from_model(Own(Shape("parts")), source=SOURCE)
    said = str(caught.value)
    assert said.startswith("the weights of Own are called positions, tokens.weight, stack.N.attention.mask, ")
    for name in (
        "stack.N.attention.qkv.weight",
        "blocks.N.attn.W_Q",
        "docs/my-model-has-names-of-its-own.md",
    ):
        assert name in said
    assert len(said) < 1000  # the command line cuts there


@pytest.mark.parametrize("given", ["n_heads=2", [2], 3])
def test_fields_that_are_no_table_are_refused(given):
    with pytest.raises(
        RunFileError, match=r"^given is .*, expected fields of a config such as \{\"n_heads\": 2\}$"
    ):
        brought(Shape(), given=given)


@pytest.mark.parametrize("names", [{}, "embed.W_E", {3: "embed.W_E"}, {"a": None}, {"a": {}}])
def test_what_is_no_table_is_refused(names):
    with pytest.raises(RunFileError, match=r"^names"):
        table_of(names)


NUMBERS = st.one_of(st.none(), st.integers(-1, 9), st.just("2"))
TARGETS = st.sampled_from(
    [
        "",
        "embed.W_E",
        "unembed.W_U",
        "ln_final.w",
        r"blocks.0.attn.W_\1",
        "blocks.7.mlp.W_in",
        "blocks.0.attn.conv_Q",
    ]
    + [f"blocks.0.attn.{kind}" for kind in ("W_Q", "W_K", "W_O", "b_V", "W_rel", "W_dt", "A_log", "w", "W_B")]
)
LINES = st.fixed_dictionaries(
    {"to": st.one_of(TARGETS, st.lists(TARGETS, max_size=3))},
    optional={
        "transpose": st.booleans(),
        "split": st.sampled_from(["parts", "heads"]),
        "head": st.sampled_from(["0", r"\1", "x"]),
        "rows": st.lists(st.integers(0, 4), min_size=2, max_size=2),
    },
)


@settings(max_examples=150, deadline=None)
@drawn(
    shapes=st.dictionaries(
        st.sampled_from(["a", "b.weight", "c.0.Q", "embed.W_E"]), st.lists(st.integers(0, 6), max_size=4)
    ),
    names=st.dictionaries(st.sampled_from(["a", "b.weight", r"c\.\d\.(\w)", ".*"]), LINES, min_size=1),
    given=st.dictionaries(
        st.sampled_from(["n_heads", "n_key_value_heads", "d_head", "n_groups", "d_state"]), NUMBERS
    ),
    mixer=st.sampled_from(["attention", "mamba", "mamba1", "unknown"]),
)
def test_whatever_the_table_says_is_a_plan_or_refused(shapes, names, given, mixer):
    shapes = {"embed.W_E": (5, 8)} | {name: tuple(shape) for name, shape in shapes.items()}
    given = {name: value for name, value in given.items() if value is not None} | {"mixer": mixer}
    with suppress(RunFileError):
        plan_import(shapes, names, given | {"n_ctx": 4, "normalization_type": "LNPre"})


@pytest.mark.parametrize("value", [0, -1, "2", 1.5, True, 10**9])
def test_what_is_no_size_is_refused_before_weights_are_folded(value):
    with pytest.raises(RunFileError, match=r"^n_heads is .*, expected an integer from 1 to 65536$"):
        brought(Shape("heads"), given={"n_heads": value, "normalization_type": None})


def blocks_of_the_page(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    """Its model, its table of ten lines, its TOML and its command."""
    monkeypatch.chdir(tmp_path)
    model_code, table_code = blocks_of_the_page("python")
    ns: dict = {}
    exec(compile(model_code + table_code, str(PAGE), "exec"), ns)
    assert float(capsys.readouterr().out) <= 1e-5
    assert len(table_code.splitlines()) == 10
    (toml,) = blocks_of_the_page("toml")
    Path("names.toml").write_text(toml)
    assert table_of(read_names("names.toml")) == table_of(ns["names"])
    torch.save(ns["model"].state_dict(), "model.pt")
    (command,) = re.findall(r"^mechmarkov (import .*)$", PAGE.read_text(), re.MULTILINE)
    head, _, source = command.partition(" --source ")
    main([*head.split(), "--source", source.strip("'")])
    said = capsys.readouterr().out
    assert "a table of names, 1 checkpoint" in said
    assert "axes = a square weight called weight is [d_out, d_in], any other [d_in, d_out]" in said
    imported = mm.load("run.pt")
    assert imported.config == ns["run"].config
    assert all(torch.equal(value, imported.states[name]) for name, value in ns["run"].states.items())


def test_a_folder_and_a_mask_that_is_left_out(tmp_path):
    from safetensors.torch import save_file

    shape = Shape()
    save_file(Own(shape).state_dict(), tmp_path / "model.safetensors")
    names = names_of(shape) | {r"stack\.\d+\.attention\.mask": ""}
    for path in (tmp_path / "model.safetensors", tmp_path):
        run = mm.import_run([path], source=SOURCE, names=names, given=given_of(shape)).run
        tokens = sequences(shape)
        torch.testing.assert_close(run.model()(tokens), Own(shape)(tokens), rtol=1e-5, atol=1e-5)
    with pytest.raises(RunFileError, match=r"has no line for stack\.N\.attention\.mask: say"):
        mm.import_run(
            [tmp_path / "model.safetensors"], source=SOURCE, names=names_of(shape), given=given_of(shape)
        )


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('"layers\\.(\\d+)" = "embed.W_E"', "names.toml: .*; a pattern stands in single quotes: 'layers"),
        ("tokens.weight = 3", "names['tokens.weight'] is 3, expected a name such as 'embed.W_E'"),
        ("", "names is {}, expected a table such as"),
        (None, "names.toml: No such file or directory"),
    ],
)
def test_a_wrong_file_of_names_ends_with_one_line_and_writes_nothing(
    tmp_path, monkeypatch, capsys, toml, words
):
    monkeypatch.chdir(tmp_path)
    torch.save(Own(Shape()).state_dict(), "model.pt")
    if toml is not None:
        Path("names.toml").write_text(toml)
    with pytest.raises(SystemExit) as caught:
        main(["import", "model.pt", "--names", "names.toml", "--source", CIRCLE])
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert re.search(words if ".*" in words else re.escape(words), said)
    assert len(said.splitlines()) == 1
    assert not Path("run.pt").exists()


def test_a_file_that_nothing_fits_says_what_a_table_is(tmp_path, capsys):
    torch.save(Own(Shape("heads")).state_dict(), tmp_path / "model.pt")
    with pytest.raises(SystemExit):
        main(["import", str(tmp_path / "model.pt"), "--source", CIRCLE, "--out", str(tmp_path / "run.pt")])
    said = capsys.readouterr().err
    assert "its weights are called positions, " in said
    assert "stack.N.attention.qkv.weight" in said
    assert "docs/my-model-has-names-of-its-own.md" in said


def test_a_plan_reads_no_weight_that_is_left_out():
    shape = Shape()
    shapes = {name: tuple(value.shape) for name, value in Own(shape).state_dict().items()}
    names = names_of(shape) | {r"stack\.\d+\.attention\.mask": ""}
    plan = plan_import(shapes, names, given_of(shape))
    assert not [name for name in plan.wanted if "mask" in name]
    assert tomllib.loads("a.b = 1") == {"a": {"b": 1}}  # why `read_names` flattens
