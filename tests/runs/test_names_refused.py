"""A wrong table of names is one line, any table is a plan or is refused, and the page runs as it stands."""

import re
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from names_brought import CIRCLE, PAGE, brought, sequences
from own_names import Own, Shape, given_of, names_of
from public_codes import SOURCE
from strangers import Gated

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.importing.names.plan import plan_import
from mechmarkov.importing.names.table import read_names, table_of
from mechmarkov.safe.plain_data import RunFileError


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


def test_a_last_norm_that_is_left_out_is_told():
    shape = Shape(hidden=6, norm=True)
    names = {key: value for key, value in names_of(shape).items() if "last" not in key} | {r"last\..*": ""}
    with pytest.raises(
        RunFileError, match="reads, what is unembedded: what the last layer adds, the last norm"
    ):
        brought(shape, names)


def test_a_model_that_nothing_fits_shows_its_names_beside_those_that_are_wanted():
    with pytest.raises(RunFileError) as caught:
        mm.Run.from_model(Gated(), source=SOURCE)
    said = str(caught.value)
    assert said.startswith("the weights of Gated are called e.weight, p.weight, ")
    page = "docs/my-model-has-names-of-its-own.md"
    for name in (
        "gate.weight",
        "blocks.N.attn.W_Q",
        page,
        "its forward pass does not tell: attention's scores",
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


OF_ATTENTION = ("W_Q", "W_K", "W_O", "b_V", "W_rel", "W_dt", "A_log", "w", "W_B", "conv_Q", r"W_\1")
OUTSIDE = ["", "embed.W_E", "unembed.W_U", "ln_final.w", "blocks.7.mlp.W_in"]
TARGETS = st.sampled_from([*OUTSIDE, *(f"blocks.0.attn.{kind}" for kind in OF_ATTENTION)])


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
    given=st.dictionaries(st.sampled_from(["n_heads", "n_key_value_heads", "d_head", "d_state"]), NUMBERS),
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
    """Its model, its table of eight lines, its TOML and its command."""
    monkeypatch.chdir(tmp_path)
    model_code, live_code, table_code = blocks_of_the_page("python")
    ns: dict = {}
    exec(compile(model_code + live_code + table_code, str(PAGE), "exec"), ns)
    name, by_itself, by_names = capsys.readouterr().out.split()
    assert name == "embed.W_E"
    assert max(float(by_itself), float(by_names)) <= 1e-5
    assert len(table_code.splitlines()) == 8
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
    names = names_of(shape)
    with pytest.raises(RunFileError, match=r"has no line for stack\.N\.attention\.mask: say"):
        mm.import_run([tmp_path / "model.safetensors"], source=SOURCE, names=names, given=given_of(shape))


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('"layers\\.(\\d+)" = "embed.W_E"', "names.toml: .*; a pattern stands in single quotes: 'layers"),
        ("tokens.weight = 3", "names['tokens.weight'] is 3, expected a name such as 'embed.W_E'"),
        ("", "names is {}, expected a table such as"),
        (None, "names.toml: No such file or directory"),
    ],
)
def test_a_wrong_file_of_names_ends_with_one_line(tmp_path, monkeypatch, capsys, toml, words):
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
