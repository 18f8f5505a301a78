"""What `mechmarkov import` refuses: one line, exit code 2, nothing written, nothing executed."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_files import FOREIGN, golden
from run_files import saved, touch
from safetensors.torch import load_file, save_file

from mechmarkov.cli import main
from mechmarkov.runs import example, load
from mechmarkov.runs.import_run import import_run
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources import Circle


def data(kind: str, **fields: object) -> str:
    """A source as `--source` takes it."""
    return json.dumps({"kind": kind, **fields})


SOURCE = data("circle", n_states=5, p=0.3)
BARE = ["--set", "positional_embedding_type=standard", "--set", "normalization_type=none"]
GELU = ["--set", "act_fn=gelu"]


def refused(capsys, out: Path, *arguments: object, source: str = SOURCE) -> str:
    """The one line that an import ends with."""
    with pytest.raises(SystemExit) as exit_:
        main(["import", *map(str, arguments), "--source", source, "--out", str(out / "run.pt")])
    printed = capsys.readouterr()
    assert (exit_.value.code, printed.out) == (2, "")
    assert not list(out.glob("*run.pt*"))
    (line,) = printed.err.splitlines()
    assert len(line) < 1000
    return line


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
    ("positional_embedding_type", "alibi", "cfg.positional_embedding_type is 'alibi'"),
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


@pytest.mark.parametrize(
    ("where", "name", "value", "words"),
    [
        ("model_args", "n_registers", 4, "model_args: n_registers is 4: nanoGPT has none"),
        (
            "model_args",
            "rope",
            True,
            "rope is True, which no weight shows: say what it means with --set posi",
        ),
        (
            "model_args",
            "window_size",
            4,
            "window_size is 4, which no weight shows: say what it means with --s",
        ),
        ("config", "sliding_window", 4, "config: sliding_window is 4, which no weight shows"),
        ("hyper_parameters", "model", {"memory": 3}, "hyper_parameters.model: memory is 3, which no weight"),
        ("config", "logit_softcap", 30.0, "config: logit_softcap is 30.0: a HookedDecoder cannot express it"),
        ("config", "post_norm", True, "config: post_norm is True: a HookedDecoder cannot express it"),
        ("args", "norm_type", "RMSNorm", "args: norm_type is 'RMSNorm', which no weight shows"),
        ("config", "attn_scale", 0.5, "with --set attn_scale=4.0 (what scores are divided by)"),
        ("config", "parallel", True, "with --set parallel_attn_mlp=true"),
        ("model_args", "block_size", 9, "model_args: block_size is 9, but it is 7 by the shapes"),
    ],
)
def test_settings_that_weights_do_not_show(tmp_path, capsys, where, name, value, words):
    content = golden("nanogpt_bias.pt")
    content.setdefault(where, {})[name] = value
    assert words in refused(capsys, tmp_path, saved(tmp_path / "model.pt", content), *GELU)


@pytest.mark.parametrize(
    ("name", "value", "given"),
    [
        ("window_size", None, {}),
        ("memory", -1, {}),
        ("rope", False, {}),
        ("softcap", 0.0, {}),
        ("norm", "layernorm", {}),
        ("pre_norm", True, {}),
        ("n_kv_head", 2, {}),
        ("n_registers", False, {}),
        ("window_size", 4, {"window": 3}),
        ("scale_attn", False, {"use_attn_scale": False}),
        ("layer_norm_eps", 1e-6, {}),
    ],
)
def test_settings_at_their_usual_value_or_explained(tmp_path, name, value, given):
    data = golden("nanogpt_bias.pt")
    data["model_args"][name] = value
    path = saved(tmp_path / "model.pt", data)
    result = import_run([path], source=Circle(n_states=5, p=0.3), given={"act_fn": "gelu", **given})
    assert result.run.config.eps == (1e-6 if name == "layer_norm_eps" else 1e-5)
    assert not any("not read" in note for note in result.notes)


def test_messages_have_the_names_of_the_file(tmp_path, capsys):
    model = golden("nanogpt_bias.pt")["model"]
    two = [*GELU, "--set", "n_heads=2"]
    for name, words in (
        ("transformer.h.1.attn.c_proj.weight", "it has no net.transformer.h.1.attn.c_proj.weight"),
        ("transformer.h.0.mlp.c_fc.weight", "it has no net.transformer.h.0.mlp.c_fc.weight"),
        ("transformer.h.1.attn.c_attn.weight", "it has no net.transformer.h.1.attn.c_attn.weight"),
        ("transformer.ln_f.weight", "it has no net.transformer.ln_f.weight"),
        ("transformer.wte.weight", "it has no net.transformer.wte.weight"),
        ("transformer.wpe.weight", "without net.transformer.wpe.weight"),
    ):
        part = {f"net.{x}": value for x, value in model.items() if x != name}
        assert words in refused(capsys, tmp_path, saved(tmp_path / "model.pt", part), *two)
        bad = {f"net.{x}": value for x, value in model.items()} | {f"net.{name}": torch.zeros(3, 4, 5)}
        assert f"net.{name} has shape [3, 4, 5]" in refused(
            capsys, tmp_path, saved(tmp_path / "model.pt", bad), *two
        )
    nan = {f"net.{x}": value.clone() for x, value in model.items()}
    nan["net.transformer.h.0.ln_1.bias"][0] = torch.nan
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", nan), *two)
    assert '"net.transformer.h.0.ln_1.bias" holds NaN' in line
    holes = {f"net.{x}".replace("h.1.", "h.2."): value for x, value in model.items()}
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", holes), *two)
    assert "its layers net.transformer.h.N are numbered [0, 2], expected 0, 1, …" in line


def test_one_name_of_gpt2_is_not_gpt2(tmp_path, capsys):
    own = {"wte.weight": torch.ones(5, 8), "layers.0.Q.weight": torch.ones(8, 8)}
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", own))
    called = "its weights are called wte.weight, layers.N.Q.weight: "
    assert f"{called}say which weight is which with names=" in line
    assert line.endswith("(wte.weight is one of GPT-2's, but there is no h.0.attn.c_attn.weight)")


def test_a_training_config_is_no_model_config(tmp_path):
    """HookedTransformer's weights beside somebody's settings: what is plain is read, the rest is told."""
    data = golden("tl2_mlp_ln.pt")
    cfg = data.pop("cfg")
    names = ("act_fn", "normalization_type", "positional_embedding_type")
    data["config"] = {"lr": 1e-3, "beta": 2, **{name: cfg[name] for name in names}}
    path = saved(tmp_path / "model.pt", data)
    result = import_run([path], source=Circle(n_states=5, p=0.3))
    assert result.run.config.act_fn == cfg["act_fn"]
    assert "settings in the file that are not read: config.beta" in result.notes


def test_without_arguments_heads_and_norm_are_asked_for(tmp_path, capsys):
    bare = saved(tmp_path / "model.pt", golden("nanogpt_no_bias.pt")["model"])
    assert "does not determine n_heads" in refused(capsys, tmp_path, bare, *GELU)
    two = [*GELU, "--set", "n_heads=2"]
    assert "does not determine normalization_type" in refused(capsys, tmp_path, bare, *two)
    three = [*GELU, "--set", "n_heads=3", "--set", "normalization_type=LN"]
    assert "n_heads is 3, expected a divisor of d_model 8" in refused(capsys, tmp_path, bare, *three)


def test_a_rotary_layout_is_held_against_the_tables(tmp_path, capsys):
    bare = saved(tmp_path / "model.pt", golden("tl2_rotary.pt")["state_dict"])
    rest = ["--set", "normalization_type=LN", "--set", "rotary_base=10000"]
    assert "does not determine rotary_adjacent_pairs" in refused(capsys, tmp_path, bare, *rest)
    line = refused(capsys, tmp_path, bare, *rest, "--set", "rotary_adjacent_pairs=true")
    assert "rotary_sin is not what the config makes of it" in line


def test_a_bridge_without_its_config_is_asked_for_what_shapes_do_not_tell(tmp_path, capsys):
    bare = saved(tmp_path / "model.pt", golden("bridge_native_mlp.pt")["model"])
    assert "a bridge's bare state dict does not determine n_heads" in refused(capsys, tmp_path, bare)
    two = ["--set", "n_heads=2"]
    assert "does not determine act_fn" in refused(capsys, tmp_path, bare, *two)
    three = ["--set", "n_heads=3", *GELU]
    assert "n_heads is 3, expected a divisor of 8" in refused(capsys, tmp_path, bare, *three)
    bare = saved(tmp_path / "model.pt", golden("bridge_native_attn_only.pt")["model"])
    assert "does not determine normalization_type" in refused(capsys, tmp_path, bare, *two)
    rotary = saved(tmp_path / "model.pt", golden("bridge_native_rotary.pt")["model"])
    assert "does not determine positional_embedding_type" in refused(capsys, tmp_path, rotary, *two)
    four = [*two, "--set", "positional_embedding_type=rotary"]
    assert "does not determine rotary_adjacent_pairs" in refused(capsys, tmp_path, rotary, *four)


def test_a_bare_bridge_with_square_layers_does_not_tell_which_way_they_lie(tmp_path, capsys):
    model = golden("bridge_native_mlp.pt")["model"]
    for block in (0, 1):
        model[f"blocks.{block}.mlp.in.weight"] = torch.zeros(8, 8)
        model[f"blocks.{block}.mlp.out.weight"] = torch.zeros(8, 8)
        model[f"blocks.{block}.mlp.in.bias"] = torch.zeros(8)
    bare = saved(tmp_path / "model.pt", model)
    line = refused(capsys, tmp_path, bare, "--set", "n_heads=2", *GELU)
    assert 'save {"cfg": bridge.cfg.to_dict(), "model":' in line


def test_a_bridge_around_another_model(tmp_path, capsys):
    data = golden("bridge_gpt2.pt")
    data["cfg"]["architecture"] = "MambaForCausalLM"
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", data))
    assert "cfg.architecture is 'MambaForCausalLM', expected" in line


def test_other_names(tmp_path, capsys):
    path = saved(tmp_path / "model.pt", {"layers.0.weight": torch.zeros(2), "\u202e": torch.zeros(1)})
    line = refused(capsys, tmp_path, path)
    assert "its weights are called layers.N.weight, \\u202e: say which weight is which with names=" in line


@pytest.mark.parametrize("place", ["optimizer", "model", "cfg"])
def test_nothing_runs(tmp_path, capsys, place):
    data = golden("tl2_mlp_ln.pt")
    marker = tmp_path / "ran"
    data[place] = {**data.get(place, {}), "x": touch(marker)}
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", data))
    assert "something in it refers to posix.system" in line
    assert not marker.exists()


def test_config_json_of_another_model(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(FOREIGN / "gpt2_bin", folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for change, words in (
        ({"model_type": "mixtral"}, "model_type is 'mixtral', expected gpt2, llama, mistral, qwen2, "),
        ({"activation_function": "silu"}, "activation_function is 'silu', expected gelu, "),
        ({"add_cross_attention": True}, "add_cross_attention is True: a HookedDecoder cannot"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}: a HookedDecoder cannot"),
        ({"n_head": "2"}, "n_heads is '2', expected a divisor of d_model 8"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change), "utf-8")
        assert words in refused(capsys, tmp_path, folder)
    (folder / "config.json").write_text("{", "utf-8")
    assert "config.json is not JSON" in refused(capsys, tmp_path, folder)


MAMBA = {
    **{"num_hidden_layers": 1, "hidden_size": 8, "state_size": 3, "vocab_size": 5, "conv_kernel": 2},
    **{"layer_norm_epsilon": 1e-5, "hidden_act": "silu", "expand": 2, "model_type": "mamba"},
}
LLAMA = {
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16},
    **{"max_position_embeddings": 8, "vocab_size": 5, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
    **{"model_type": "llama"},
}
FAR = 10**400


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MAMBA | {"time_step_limit": None}, "time_step_limit is None: a HookedDecoder cannot express it"),
        (MAMBA | {"time_step_limit": 0}, "time_step_limit is 0: a HookedDecoder cannot express it"),
        (MAMBA | {"expand": math.inf}, "hidden_size and expand are [8, inf], expected sizes"),
        (MAMBA | {"expand": 1e308}, "hidden_size and expand are [8, 1e+308], expected sizes"),
        (MAMBA | {"hidden_size": FAR, "expand": 2.0}, "hidden_size and expand are [1000000"),
        (LLAMA | {"head_dim": FAR}, "0000.…, expected a size"),
    ],
    ids=range(6),
)
def test_numbers_of_a_config_that_no_model_has(tmp_path, capsys, config, words):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({"model.embed_tokens.weight": torch.zeros(5, 8)}, tmp_path / "model" / "model.safetensors")
    assert words in refused(capsys, tmp_path, tmp_path / "model")


@pytest.mark.parametrize(("dtype", "name"), [(torch.int64, "I64"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_a_tensor_of_another_type_is_named_as_its_file_names_it(tmp_path, capsys, dtype, name):
    shutil.copytree(FOREIGN / "gpt2_safetensors", tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"].to(dtype)
    save_file(weights, tmp_path / "model" / "model.safetensors")
    line = refused(capsys, tmp_path, tmp_path / "model")
    assert f'"transformer.wte.weight" is a tensor of {name}, expected floating point' in line


def test_a_storage_beyond_all_sense_is_not_read(tmp_path, capsys, monkeypatch):
    """The shapes fit, the storage behind one of them does not."""
    monkeypatch.setattr("mechmarkov.safe.foreign_file.MAX_WEIGHT_BYTES", 1 << 16)
    data = golden("nanogpt_bias.pt")
    data["model"]["transformer.ln_f.weight"] = torch.zeros(1 << 15)[:8]
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", data), *GELU)
    assert "bytes, expected at most 65536: a toy model" in line


@pytest.mark.parametrize("name", ["tl2_mlp_ln.pt", "nanogpt_bias.pt", "bridge_gpt2.pt", "gpt2_safetensors"])
def test_a_changed_byte_is_read_or_refused(tmp_path, name):
    """Never another error: the zip directory, its local headers, the pickle and the JSON header are hit."""
    generator = np.random.default_rng(3)
    given = {"act_fn": "gelu"} if name.startswith("nanogpt") else {}
    path, weights = tmp_path / name, tmp_path / name
    if (FOREIGN / name).is_dir():
        shutil.copytree(FOREIGN / name, path)
        weights = path / "model.safetensors"
    else:
        shutil.copy(FOREIGN / name, path)
    good = weights.read_bytes()
    said = []
    for _ in range(50):  # `test_fuzz_files` breaks more
        bad = bytearray(good)
        bad[generator.integers(len(bad))] = generator.integers(256)
        weights.write_bytes(bad)
        try:
            import_run([path], source=Circle(n_states=5, p=0.3), given=given)
        except RunFileError as error:
            said.append(str(error))
    assert len(said) > 3
    assert not any("\n" in line for line in said)
