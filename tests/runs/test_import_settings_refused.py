"""Settings, layouts and numbers of files that `mechmarkov import` refuses, and nothing of them runs."""

import json
import math
import shutil

import pytest
import torch
from golden_files import FOREIGN, golden
from import_refused import GELU, refused
from run_files import saved, touch
from safetensors.torch import load_file, save_file

from mechmarkov.runs.import_run import import_run
from mechmarkov.sources import Circle


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
        ("config", "post_norm", True, "config: post_norm is True, which no weight shows: say what it means "),
        ("config", "pre_norm", False, "with --set norm_first=false"),
        ("config", "use_final_norm", False, "with --set final_norm=false"),
        ("args", "norm_type", "RMSNorm", "args: norm_type is 'RMSNorm', which no weight shows"),
        ("config", "use_alibi", True, "say what it means with --set positional_embedding_type=alibi"),
        ("config", "rel_pos_bias", True, "with --set positional_embedding_type=relative_bias"),
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
        ("norm_first", True, {}),
        ("post_norm", True, {"norm_first": False}),
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
        line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", bad), *two)
        assert f"net.{name} has shape [3, 4, 5]" in line
    nan = {f"net.{x}": value.clone() for x, value in model.items()}
    nan["net.transformer.h.0.ln_1.bias"][0] = torch.nan
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", nan), *two)
    assert '"net.transformer.h.0.ln_1.bias" holds NaN' in line
    holes = {f"net.{x}".replace("h.1.", "h.2."): value for x, value in model.items()}
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", holes), *two)
    assert "its layers net.transformer.h.N are numbered [0, 2], expected 0, 1, …" in line


def test_one_name_of_gpt2_is_not_gpt2(tmp_path, capsys):
    own = {"wte.weight": torch.ones(5, 8), "layers.0.Q.weight": torch.ones(8, 8), "\u202e": torch.zeros(1)}
    line = refused(capsys, tmp_path, saved(tmp_path / "model.pt", own))
    called = "its weights are called wte.weight, layers.N.Q.weight, \\u202e: "
    assert f"{called}say which weight is which with names=" in line
    assert line.endswith("(wte.weight is one of GPT-2's, but there is no h.0.attn.c_attn.weight)")


def test_a_training_config_is_no_model_config(tmp_path):
    """HookedTransformer's weights next to somebody's settings: what is plain is read, the rest is told."""
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
