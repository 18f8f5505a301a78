"""Models that the real libraries made and saved, imported: their own logits are the oracle."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from golden_files import FOREIGN, assert_its_own_logits, golden
from public_codes import SOURCE
from run_files import repack, text

from mechmarkov.cli import main
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.init import initialise
from mechmarkov.runs import load
from mechmarkov.runs.import_run import import_run
from mechmarkov.sources import Observed

pytestmark = pytest.mark.tl
BARE = {"normalization_type": None, "positional_embedding_type": "standard"}
CASES = {
    **{f"tl{version}_bare_attn_only.pt": BARE for version in (2, 3)},
    **{
        f"tl{version}_{name}.pt": {}
        for version in (2, 3)
        for name in ("mlp_ln", "lnpre_relu", "rotary", "shortformer", "no_attn_scale", "parallel")
    },
    **{f"bridge_{name}.pt": {} for name in ("native_mlp", "native_attn_only", "native_rotary", "gpt2")},
    **{f"nanogpt_{name}.pt": {"act_fn": "gelu"} for name in ("bias", "no_bias", "compiled", "parallel")},
    "nanogpt_untied_biased_head.pt": {"act_fn": "gelu"},
    "nanogpt_relu.pt": {"act_fn": "relu"},
    "nanogpt_tanh_gelu.pt": {"act_fn": "gelu_new"},
    **{f"gpt2_{name}": {} for name in ("safetensors", "bin", "untied", "no_scale")},
}


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_becomes_a_run_with_its_own_logits(tmp_path, name):
    import_run([FOREIGN / name], source=SOURCE, given=CASES[name]).run.save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    assert_its_own_logits(run, name)
    assert run.config.tied == (name.startswith(("nanogpt", "gpt2", "bridge_gpt2")) and "untied" not in name)


@pytest.mark.parametrize("positions", ["relative", "relative_bias", "alibi"])
def test_relative_positions_tell_themselves(tmp_path, positions):
    """But for ALiBi, which has no weights: HookedTransformer's file holds positions that it does not use."""
    config = DecoderConfig(
        n_layers=2, d_model=8, n_ctx=6, d_head=4, d_vocab=5, attn_only=True, normalization_type=None,
        positional_embedding_type=positions,
    )  # fmt: skip
    stack = HookedDecoder(config, n_models=1)
    initialise(stack, [0], scheme="normal", std=0.5)
    state, given = stack[0].state_dict(), {"normalization_type": None}
    if positions == "alibi":
        state["pos_embed.W_pos"], given["positional_embedding_type"] = torch.ones(6, 8), "alibi"
    torch.save(state, tmp_path / "model.pt")
    run = import_run([tmp_path / "model.pt"], source=SOURCE, given=given).run
    assert run.config == config
    tokens = torch.randint(5, (4, 6), generator=torch.Generator().manual_seed(0))
    assert torch.equal(run.model()(tokens), stack[0](tokens))


def test_a_checkpoint_that_was_saved_on_a_gpu(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(torch.load(FOREIGN / "tl2_bare_attn_only.pt", weights_only=True), path)
    repack(path, {"data.pkl": lambda pickled: pickled.replace(text("cpu"), text("cuda:0"))})
    assert b"cuda:0" in path.read_bytes()
    run = import_run([path], source=SOURCE, given=BARE).run
    assert run.states["embed.W_E"].device.type == "cpu"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_of_sequences_is_a_source(tmp_path, as_json):
    path = tmp_path / "input.txt"
    path.write_text("abcde edcab " * 100, "utf-8")
    source = json.dumps({"kind": "observed", "path": str(path), "order": 1, "held_out": "last_tenth"})
    command = ["import", str(FOREIGN / "nanogpt_bias.pt"), "--set", "act_fn=gelu", "--source"]
    with pytest.raises(SystemExit):  # six characters, five tokens
        main([*command, str(path)])
    path.write_text("abcdeedcab" * 100, "utf-8")
    out = tmp_path / "run.pt"
    main([*command, source if as_json else str(path), "--out", str(out)])
    expected = {"order": 1, "held_out": "last_tenth"} if as_json else {}
    assert load(out).source == Observed.read(path, **expected)


def test_a_folder_that_is_not_there_is_made(tmp_path):
    out = tmp_path / "new" / "er" / "run.pt"
    main(["import", str(FOREIGN / "tl2_mlp_ln.pt"), "--source", SOURCE.model_dump_json(), "--out", str(out)])
    assert load(out).source == SOURCE


def test_weights_are_read_with_the_config_beside_them(tmp_path):
    """The activation that one would have to guess is in the config."""
    folder = tmp_path / "model"
    shutil.copytree(FOREIGN / "gpt2_safetensors", folder)
    whole = import_run([folder], source=SOURCE).run
    assert import_run([folder / "model.safetensors"], source=SOURCE).run.config == whole.config
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="does not determine n_heads and act_fn: give --set n_heads=2"):
        import_run([folder / "model.safetensors"], source=SOURCE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(tmp_path, dtype):
    plain = torch.load(FOREIGN / "tl3_bare_attn_only.pt", weights_only=True)
    plain = {name: value for name, value in plain.items() if value.is_floating_point()}
    state = {name: torch.nn.Parameter(value.to(dtype)) for name, value in plain.items()}
    torch.save({"weights": state, "epoch": 3}, tmp_path / "model.pt")
    run = import_run([tmp_path / "model.pt"], source=SOURCE, given=BARE).run
    assert torch.equal(run.states["embed.W_E"][0], plain["embed.W_E"].to(dtype).float())


def test_a_state_dict_in_safetensors(tmp_path):
    from safetensors.torch import save_file

    plain = torch.load(FOREIGN / "tl3_bare_attn_only.pt", weights_only=True)
    kept = {name: value for name, value in plain.items() if not name.endswith(("mask", "IGNORE"))}
    save_file(kept, tmp_path / "model.safetensors")
    run = import_run([tmp_path / "model.safetensors"], source=SOURCE, given=BARE).run
    assert torch.equal(run.states["embed.W_E"][0], plain["embed.W_E"])


def test_a_config_is_held_in_the_run():
    run = import_run([FOREIGN / "tl2_no_attn_scale.pt"], source=SOURCE).run
    assert run.config.use_attn_scale is False
    assert run.config.attn_scale == 2.0  # a numpy number in the file
    assert run.provenance["assumed"] == {}
    assert import_run([FOREIGN / "gpt2_no_scale"], source=SOURCE).run.config.use_attn_scale is False


def test_what_is_not_said_is_told():
    no_caps = {"attn_scores_soft_cap": None, "output_logits_soft_cap": None, "use_qk_norm": False}
    run = import_run([FOREIGN / "tl2_bare_attn_only.pt"], source=SOURCE, given=BARE).run
    assert run.provenance["assumed"] == {"use_attn_scale": True, "attn_scale": 2.0, "window": None, **no_caps}
    given = {"act_fn": "gelu", "window": 3, "attn_scale": 1.0, "eps": 1e-6}
    run = import_run([FOREIGN / "nanogpt_bias.pt"], source=SOURCE, given=given).run
    assert (run.config.window, run.config.score_scale, run.config.eps) == (3, 1.0, 1e-6)
    rest = {"parallel_attn_mlp": False, "norm_first": True}
    assert run.provenance["assumed"] == {**no_caps, **rest}


ASSUMED = ("use_attn_scale", "attn_scale", "window", "attn_scores_soft_cap", "output_logits_soft_cap")
BARE_FILES = {
    "nanogpt_bias.pt": {"act_fn": "gelu"},
    "tl3_mlp_ln.pt": {"act_fn": "gelu", "positional_embedding_type": "standard", "n_heads": 2},
    "bridge_gpt2.pt": {"act_fn": "gelu_new", "n_heads": 2},
}


@pytest.mark.parametrize("name", BARE_FILES)
def test_what_no_weight_shows_is_printed_for_every_layout(tmp_path, capsys, name):
    data = golden(name)
    torch.save(data.get("model", data), tmp_path / "bare.pt")
    options = [f"--set={field}={value}" for field, value in {"n_heads": 2, **BARE_FILES[name]}.items()]
    out = tmp_path / "run.pt"
    source = SOURCE.model_dump_json()
    main(["import", str(tmp_path / "bare.pt"), "--source", source, *options, "--out", str(out)])
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("not said by the file")]
    said = line.removeprefix("not said by the file, assumed: ")
    printed = dict(part.split(" = ") for part in said.split(", "))
    assert set(printed) >= {"eps", "parallel_attn_mlp", "norm_first", *ASSUMED}
    kept = load(out).provenance["assumed"]
    assert set(kept) == set(printed)
    assert printed["window"] == str(kept["window"]) == "None"


BARE_BRIDGES = {
    "native_mlp": {"n_heads": 2, "act_fn": "gelu_new"},
    "native_attn_only": {"n_heads": 2, "normalization_type": None},
    "native_rotary": {
        "n_heads": 2,
        "positional_embedding_type": "rotary",
        "rotary_adjacent_pairs": True,
        "rotary_base": 10000,
        "n_ctx": 7,
    },
    "gpt2": {"n_heads": 2, "act_fn": "gelu_new"},
}


@pytest.mark.parametrize("name", BARE_BRIDGES)
def test_a_bridge_without_its_config(tmp_path, name):
    data = golden(f"bridge_{name}.pt")
    torch.save(data["model"], tmp_path / "bare.pt")
    result = import_run([tmp_path / "bare.pt"], source=SOURCE, given=BARE_BRIDGES[name])
    original = torch.load(FOREIGN / f"bridge_{name}.logits.pt", weights_only=True)
    logits = result.run.model()(original["tokens"])
    torch.testing.assert_close(logits, original["logits"], rtol=1e-5, atol=1e-5)
    assert any("not said by the file, assumed: " in note and "window = None" in note for note in result.notes)


@pytest.mark.parametrize("path", ["ckpt.pt", Path("ckpt.pt")])
def test_one_path_is_no_list_of_them(path):
    with pytest.raises(TypeError, match=r"^paths is 'ckpt.pt', expected a list of them: \['ckpt.pt'\]$"):
        import_run(path, source=SOURCE)
