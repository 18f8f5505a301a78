"""What `mechmarkov import` refuses: one line, exit code 2, nothing written, nothing executed."""

from pathlib import Path

import pytest
import torch
from golden_files import FOREIGN, golden
from import_refused import GELU, SOURCE, data, refused
from run_files import saved

from mechmarkov.cli import main
from mechmarkov.runs import example, load
from mechmarkov.sources import Circle

BARE = ["--set", "positional_embedding_type=standard", "--set", "normalization_type=none"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.txt", "missing.txt: No such file or directory"),
        (data("observed", path="missing.txt"), "missing.txt: No such file or directory"),
        (data("observed", path="a.txt", odrer=1), "--source has 'odrer', expected some of path, unit"),
        (data("observed", path=3), "--source has an option of another type"),
        (data("observed", path="a.txt", alphabet=[0.5, 1]), "alphabet[0] is 0.5, expected a text"),
        (data("observed", path="a.txt", max_states="9"), "max_states is '9', expected"),
        (data("observed", path="a.txt", max_states=2.5), "max_states is 2.5, expected"),
        (data("circle", path="a.txt"), "--source"),
    ],
)
def test_sources_that_are_refused(capsys, tmp_path, monkeypatch, source, words):
    (tmp_path / "a.txt").write_text("ab" * 50, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, tmp_path, FOREIGN / "nanogpt_bias.pt", *GELU, source=source)


def test_a_file_of_sequences_is_named_with_what_is_wrong_in_it(capsys, tmp_path):
    table, empty = tmp_path / "visits.csv", tmp_path / "empty.txt"
    table.write_text("visitor,page\n1,a\n1,b\n", "utf-8")
    empty.write_text("", "utf-8")
    line = refused(capsys, tmp_path, FOREIGN / "nanogpt_bias.pt", *GELU, source=str(table))
    assert f"--source {table}: column is None, expected one of visitor, page: --source" in line
    assert f'--source \'{{"kind": "observed", "path": "{table}", "column": "page"}}\' takes that one' in line
    line = refused(capsys, tmp_path, FOREIGN / "nanogpt_bias.pt", *GELU, source=str(empty))
    assert line == f"error: --source {empty}: tokens has shape [0], expected a sequence of states"


def test_a_run_is_not_imported_again(capsys, tmp_path):
    example("walk").save(tmp_path / "walk.pt")
    assert "walk.pt: is a run already: probe it as it is" in refused(capsys, tmp_path, tmp_path / "walk.pt")


def test_only_a_run_is_replaced(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = (FOREIGN / "tl2_mlp_ln.pt").read_bytes()
    command = ["import", "part.pt", "--source", SOURCE]
    for out in ("part.pt", "run.pt"):
        for name in ("part.pt", "run.pt"):
            Path(name).write_bytes(checkpoint)
        with pytest.raises(SystemExit) as end:
            main(command if out == "run.pt" else [*command, "--out", out])
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert said == f"error: {out}: exists and is not a run, expected a new file or a run to replace\n"
        assert Path(out).read_bytes() == checkpoint
    example("walk").save("run.pt")
    main(command)
    assert load("run.pt").source == Circle(n_states=5, p=0.3)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gpt2_inverse_layer", [], "scale_attn_by_inverse_layer_idx is True: a HookedDecoder cannot express"),
        ("tl3_cfg_object.pt", [], "save model.cfg.to_dict() in place of model.cfg"),
        ("tl2_cfg_object.pt", [], "save model.cfg.to_dict() in place of model.cfg"),
        (
            "tl2_bare_attn_only.pt",
            [],
            "does not determine positional_embedding_type and normalization_type: give --set pos",
        ),
        ("tl2_bare_attn_only.pt", BARE[:2], "does not determine normalization_type: give --set norm"),
        (
            "tl2_bare_attn_only.pt",
            [*BARE, "--set", "n_heads=3"],
            "n_heads is 2 by the shapes, but 3 was given",
        ),
        ("nanogpt_bias.pt", [], "does not determine act_fn: give --set act_fn=gelu"),
        ("nanogpt_bias.pt", [*GELU, "--set", "n_heads=4"], "n_heads is 2 in the file, but 4 was given"),
        ("nanogpt_bias.pt", [*GELU, "--set", f"n_heads={'a' * 5000}"], "n_heads is 2 in the file, but 'aaa"),
        ("nanogpt_bias.pt", ["--set", "act_fn=solu"], "model.act_fn is 'solu'"),
        ("nanogpt_bias.pt", ["--set", "actfn=gelu"], "--set is 'actfn=gelu', expected KEY=VALUE of act_fn"),
        ("nanogpt_bias.pt", ["--set", "act_fn"], "--set is 'act_fn', expected KEY=VALUE"),
        ("nanogpt_bias.pt", [*GELU, "--objective", "{"], "--objective is not JSON"),
        ("nanogpt_bias.pt", [*GELU, "--objective", '{"kind": "x"}'], "--objective.kind is 'x'"),
        ("nanogpt_bias.pt", [*GELU, "--objective", '{"query": true}'], "5 states and a query token"),
        ("missing.pt", [], "cannot be read: No such file or directory"),
        ("gpt2_bin/config.json", [], "is a config, expected the weights with it: give the folder of both"),
        ("no_such_*.pt", [], "no file matches"),
    ],
)
def test_it_says_what_it_cannot_read(tmp_path, capsys, name, options, words):
    assert words in refused(capsys, tmp_path, FOREIGN / name, *options)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (data("circle", n_states=4, p=0.3), "reads 5 tokens and predicts 5, but the source has 4"),
        ('{"kind": "circle"', "--source is not JSON"),
        ("text", "--source is 'text', expected {\"kind\": …} or a file that ends in .txt, .csv"),
        ('{"kind": "circle", "kind": "binary"}', "--source: key 'kind' is given twice, expected once"),
        ("[1]", "--source is [1], expected an object"),
        (data("circle", n_states=5, p=2), "p is 2"),
        (data("circle", n_states=5), "--source.p is missing, expected a number"),
        (data("circle", n_state=5, p=1), "--source.n_states is missing, expected an integer of at"),
        (data("circle", n_states=5, p=1, q=1), "unknown key --source.q, expected one of: "),
        (data("nothing"), "--source"),
    ],
)
def test_it_says_what_is_wrong_with_the_source(tmp_path, capsys, source, words):
    line = refused(capsys, tmp_path, FOREIGN / "nanogpt_bias.pt", *GELU, source=source)
    assert words in line


CHANGED_WEIGHTS = [
    ("blocks.0.mlp.W_gate", torch.zeros(8, 12), "gated_mlp is True by the shapes, but False was given"),
    ("blocks.0.attn.W_Q", torch.full((2, 8, 4), torch.nan), '"blocks.0.attn.W_Q" holds NaN'),
    ("blocks.0.attn.b_K", torch.zeros(2, 3), "blocks.0.attn.b_K has shape [2, 3], expected [2, 4]"),
    ("blocks.0.mlp.b_in", None, "it has no blocks.0.mlp.b_in"),
    ("blocks.0.attn.mask", torch.ones(7, 7) > 0, "blocks.0.attn.mask is not what the config makes of it"),
    (
        "embed.W_E",
        torch.zeros(5, 8, dtype=torch.int64),
        '"embed.W_E" is a tensor of torch.int64, expected floating point',
    ),
    (
        "blocks.0.attn.b_K",
        torch.zeros(1).expand(2, 4),
        '"blocks.0.attn.b_K" is a tensor whose elements overlap in memory',
    ),
]


@pytest.mark.parametrize(("name", "value", "words"), CHANGED_WEIGHTS)
def test_a_spoiled_weight_is_named(tmp_path, capsys, name, value, words):
    content = golden("tl2_mlp_ln.pt")
    content["model"][name] = value
    if value is None:
        del content["model"][name]
    assert words in refused(capsys, tmp_path, saved(tmp_path / "model.pt", content))


CHANGED_CONFIGS = [
    (
        "positional_embedding_type",
        "relative_positional_bias",
        "cfg.positional_embedding_type is 'relative_positional_bias'",
    ),
    ("gated_mlp", True, "gated_mlp is False by the shapes, but True was given"),
    ("something_new", {"a": [1]}, "cfg.something_new is 'a nested dict': a HookedDecoder cannot express it"),
    *[
        ("attn_types", kinds, f"cfg.attn_types is {kinds!r}, expected a list of 'local' and 'global'")
        for kinds in (5, "local", ["local", 7])
    ],
]


@pytest.mark.parametrize(("field", "value", "words"), CHANGED_CONFIGS)
def test_a_config_of_what_we_lack_is_named(tmp_path, capsys, field, value, words):
    content = golden("tl2_mlp_ln.pt")
    content["cfg"][field] = value
    if field == "attn_types":
        content["cfg"] |= {"use_local_attn": True, "window_size": 4}
    assert words in refused(capsys, tmp_path, saved(tmp_path / "model.pt", content))


def test_truth_values_are_no_weights(capsys, tmp_path):
    file = torch.load(FOREIGN / "nanogpt_bias.pt", weights_only=True)
    file["model"] = {name: value > 0 for name, value in file["model"].items()}
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", file), *GELU)
    assert line.endswith('.weight" is a tensor of torch.bool, expected floating point')


def test_a_tensor_in_a_config_is_called_one(capsys, tmp_path):
    file = torch.load(FOREIGN / "nanogpt_bias.pt", weights_only=True)
    file["model_args"]["n_head"] = torch.tensor(2)
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", file), *GELU)
    assert line.endswith("model_args.n_head is a tensor, expected a plain value")
