"""Transformers' Llama, Mistral, Qwen, Gemma and GPT-NeoX become runs: live, from their folder, and in a bridge."""

import random

import pytest
import torch
import transformers
from torch import nn

from mechmarkov.runs import Run, load
from mechmarkov.runs.import_run import import_run
from mechmarkov.sources import Circle

pytestmark = pytest.mark.filterwarnings("default")  # transformers warns of its own future
K, LENGTH = 5, 9
SOURCE = Circle(n_states=K, p=0.3)
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
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**(shape | special | changes))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = 0.4 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + drawn if "norm.weight" in name else drawn)
    return model.eval()


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens()).logits


def assert_close(run: Run, logits: torch.Tensor) -> None:
    assert ((run.decoder()(tokens()) - logits).abs() / logits.abs().clamp_min(1)).max() <= 1e-4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_live_model_becomes_a_run_with_its_logits(tmp_path, family, seed):
    model = live(family, seed)
    Run.from_model(model, source=SOURCE).save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    assert_close(run, logits_of(model))
    assert run.model.tied == (model.config.tie_word_embeddings and family != "Gemma")
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
