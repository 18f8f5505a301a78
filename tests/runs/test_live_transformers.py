"""Transformers' Llama, Mistral, Qwen, Gemma and GPT-NeoX become runs: live, from a folder, in a bridge."""

import json
import random
from importlib.metadata import version

import pytest
import torch
from public_codes import SOURCE, names_of_gpt2, of_transformers
from torch import nn
from transformers import GPT2Config, GPT2Model

from mechmarkov.runs import Run, RunFileError, load
from mechmarkov.runs.import_run import import_run

pytestmark = pytest.mark.filterwarnings("default")  # transformers warns of its own future
K, LENGTH = 5, 9
FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "GPTNeoX"]


def tokens() -> torch.Tensor:
    return torch.randint(K, (4, LENGTH), generator=torch.Generator().manual_seed(6))


def live(family: str, seed: int = 0, **changes: object) -> nn.Module:
    """A small model of a family, its shape drawn too, with no weight zero."""
    draw = random.Random(f"{family} {seed}")
    groups, d_head = draw.choice([1, 2, 3]), draw.choice([4, 6, 8])
    heads = groups * draw.choice([1, 2])
    shape = {
        "vocab_size": K,
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "hidden_size": heads * d_head,
        "intermediate_size": draw.choice([7, 12]),
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": draw.random() < 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": draw.choice([100.0, 10000.0])},
    }
    if family == "GPTNeoX":
        shape |= {"use_parallel_residual": draw.random() < 0.5, "attention_bias": draw.random() < 0.5}
        shape |= {"hidden_act": draw.choice(["gelu", "relu", "gelu_new"]), "layer_norm_eps": 1e-3}
        shape["rope_parameters"]["partial_rotary_factor"] = draw.choice([0.5, 1.0])
    else:
        shape |= {"num_key_value_heads": groups, "rms_norm_eps": draw.choice([1e-6, 1e-2])}
    if family not in ("GPTNeoX", "Qwen2"):  # these have no width of their own
        shape["head_dim"] = draw.choice([2, d_head])
    if family in ("Llama", "Qwen3"):
        shape["attention_bias"] = draw.random() < 0.5
    if family == "Mistral":
        shape["sliding_window"] = draw.choice([None, 3])
    return of_transformers(family, shape | changes, seed)


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens()).logits


def assert_close(run: Run, logits: torch.Tensor) -> None:
    assert ((run.model()(tokens()) - logits).abs() / logits.abs().clamp_min(1)).max() <= 1e-4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_live_model_becomes_a_run_with_its_logits(tmp_path, family, seed):
    model = live(family, seed)
    Run.from_model(model, source=SOURCE).save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    assert_close(run, logits_of(model))
    assert run.config.tied == (model.config.tie_word_embeddings and family != "Gemma")
    assert run.provenance["logit_difference"] <= 1e-4


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_folder_becomes_a_run_with_its_logits(tmp_path, family, safe):
    model = live(family, seed=4)
    model.save_pretrained(tmp_path / "model")
    if not safe:
        (tmp_path / "model" / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    imported = import_run([tmp_path / "model"], source=SOURCE)
    assert_close(imported.run, logits_of(model))
    assert f"{model.config.model_type} of transformers" in imported.notes[0]


@pytest.mark.tl
@pytest.mark.skipif(version("transformer-lens") < "4", reason="a bridge of version 3 has other names")
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "Mistral"])
def test_a_bridge_around_one_becomes_a_run_live_and_saved(tmp_path, family, make_bridge):
    biased = {"attention_bias": True} if family == "GPTNeoX" else {}  # TransformerLens 4.3 knows no other
    model = live(family, seed=5, **biased)
    expected = logits_of(model)
    bridge = make_bridge.around(model)
    assert_close(Run.from_model(bridge, source=SOURCE), expected)
    torch.save({"cfg": bridge.cfg.to_dict(), "model": bridge.state_dict()}, tmp_path / "bridge.pt")
    assert_close(import_run([tmp_path / "bridge.pt"], source=SOURCE).run, expected)
    torch.save(bridge.state_dict(), tmp_path / "bare.pt")
    given = {"n_heads": 1, "act_fn": "gelu", "positional_embedding_type": "rotary", "n_ctx": LENGTH}
    if family != "GPTNeoX":
        with pytest.raises(
            RunFileError, match=r"which does not tell what it wraps: save \{\"cfg\": bridge.cfg"
        ):
            import_run([tmp_path / "bare.pt"], source=SOURCE, given=given)


@pytest.mark.tl
@pytest.mark.skipif(version("transformer-lens") < "4", reason="a bridge of version 3 has other names")
def test_a_bridge_that_does_not_tell_its_window_is_refused(make_bridge):
    with pytest.raises(ValueError, match=r"cfg.architecture is 'MistralForCausalLM', expected"):
        Run.from_model(make_bridge.around(live("Mistral", sliding_window=3)), source=SOURCE)
    mixed = {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0}
    for family in ("Qwen2", "Qwen3"):
        with pytest.raises(ValueError, match=r"cfg.layer_types is \['sliding_attention'"):
            Run.from_model(make_bridge.around(live(family, **mixed)), source=SOURCE)


def test_a_mixed_sliding_window_is_refused_before_anything_runs():
    model = live("Qwen3", use_sliding_window=True, sliding_window=2, max_window_layers=1, num_hidden_layers=2)
    model.forward = None  # whoever calls it fails
    with pytest.raises(RunFileError, match="use_sliding_window is True: a HookedDecoder cannot express it"):
        Run.from_model(model, source=SOURCE)


MISTAKES = [
    ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe', expected gpt2, llama, mistral"),
    (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        "rope_parameters.rope_type is 'yarn': a HookedDecoder cannot express it",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_scaling is {'factor': 2.0, 'type': 'linear'}: a HookedDecoder cannot",
    ),
    ({"rope_parameters": 3}, "rope_parameters is 3: a HookedDecoder cannot"),
    (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5: a HookedDecoder cannot",
    ),
    ({"rope_parameters": {"rope_theta": "10"}}, "rotary_base"),
    ({"mlp_bias": True}, "mlp_bias is True: a HookedDecoder cannot express it"),
    ({"hidden_act": "relu2"}, "hidden_act is 'relu2', expected silu, gelu"),
    ({"num_local_experts": 8}, "num_local_experts is 8: a HookedDecoder cannot"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0: a HookedDecoder cannot"),
    ({"layer_types": ["sliding_attention"]}, "layer_types is \\['sliding_attention'\\]"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": "8"}, "hidden_size and num_attention_heads are"),
    ({"intermediate_size": 5}, "shape"),
    ({"num_hidden_layers": 9}, "layers, but num_hidden_layers is 9"),
    ({"num_key_value_heads": 7}, "n_key_value_heads"),
    ({"tie_word_embeddings": False}, "no unembedding, though its config says"),
]


@pytest.mark.parametrize(("changes", "words"), MISTAKES, ids=str)
def test_a_config_that_cannot_be_expressed_is_one_line(tmp_path, changes, words):
    live("Llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}), "utf-8")
    with pytest.raises(RunFileError, match=words) as caught:
        import_run([tmp_path], source=SOURCE)
    assert "\n" not in str(caught.value)


class HeadOfItsOwn(nn.Module):
    """A GPT2Model without a head between layers of somebody's own, which read tokens, or vectors."""

    def __init__(self, reads_vectors: bool):
        super().__init__()
        shape = {"n_positions": LENGTH, "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": K}
        torch.manual_seed(0)
        self._backbone = GPT2Model(GPT2Config(**shape, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0))
        self._read_out = nn.Linear(8, K)
        if reads_vectors:
            self._read_in = nn.Linear(3, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._read_out(self._backbone(tokens).last_hidden_state)


NAMES = names_of_gpt2("_backbone", transpose=False) | {  # x @ W
    "_backbone.wte.weight": "embed.W_E",
    "_read_out.weight": "unembed.W_U",
    "_read_out.bias": "unembed.b_U",
}


@pytest.mark.parametrize("reads_vectors", [True, False])
def test_a_part_without_logits_is_not_advised(reads_vectors):
    said = (
        r"^HeadOfItsOwn holds a GPT2Model, which has no logits, and weights of its own, _read_out.weight.*"
        r'names={"…": "embed.W_E", …}'
    )
    model = HeadOfItsOwn(reads_vectors).eval()
    with pytest.raises(ValueError, match=said) as caught:
        Run.from_model(model, source=SOURCE)
    assert "pass model" not in str(caught.value)
    if not reads_vectors:  # what is advised works
        given = {"n_heads": 2, "act_fn": "gelu_new", "n_ctx": LENGTH}
        run = Run.from_model(model, source=SOURCE, names=NAMES, given=given)
        with torch.no_grad():
            assert_close(run, model(tokens()))


def test_a_file_without_its_config_is_refused(tmp_path):
    live("Llama").save_pretrained(tmp_path)
    assert import_run([tmp_path / "model.safetensors"], source=SOURCE).run.config.gated_mlp
    (tmp_path / "config.json").unlink()
    with pytest.raises(RunFileError, match=r"has transformers' names, but no config: model\.save_pretrained"):
        import_run([tmp_path / "model.safetensors"], source=SOURCE)


def test_version_4_of_transformers_says_it_in_other_words(tmp_path):
    """`rope_theta`, `rotary_pct` and `rotary_emb_base` stood at the top; the unembedding was `embed_out`."""
    from safetensors.torch import load_file, save_file

    for family, old in (
        ("Llama", {"rope_theta": 123.0}),
        ("GPTNeoX", {"rotary_pct": 0.5, "rotary_emb_base": 9}),
    ):
        partial = {"partial_rotary_factor": 0.5} if family == "GPTNeoX" else {}
        theta = {"rope_theta": next(value for name, value in old.items() if name != "rotary_pct")}
        model = live(family, rope_parameters={"rope_type": "default", **theta, **partial})
        folder = tmp_path / family
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text("utf-8")) | old | {"rope_scaling": None}
        del config["rope_parameters"]
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        weights = load_file(folder / "model.safetensors")
        renamed = {
            name.replace("lm_head", "embed_out") if partial else name: v for name, v in weights.items()
        }
        save_file(renamed, folder / "model.safetensors")
        assert_close(import_run([folder], source=SOURCE).run, logits_of(model))


def test_a_shorter_context_than_the_config_has(tmp_path):
    model = live("Llama")
    model.save_pretrained(tmp_path)
    run = import_run([tmp_path], source=SOURCE, given={"n_ctx": 4}).run
    assert run.config.n_ctx == 4
    torch.testing.assert_close(run.model()(tokens()[:, :4]), logits_of(model)[:, :4], rtol=1e-4, atol=1e-4)
