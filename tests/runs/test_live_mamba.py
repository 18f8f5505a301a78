"""Transformers' Mamba and Mamba-2 become runs with their logits: live, and from a folder."""

import json
import random

import pytest
import torch
from public_codes import SOURCE, of_transformers
from torch import nn

from mechmarkov.runs import Run, RunFileError, load
from mechmarkov.runs.import_run import import_run

pytestmark = pytest.mark.filterwarnings("default")  # transformers warns of its own future
K, LENGTH = 5, 37  # longer than two chunks of the scan


def tokens() -> torch.Tensor:
    return torch.randint(K, (4, LENGTH), generator=torch.Generator().manual_seed(6))


def live(family: str, seed: int = 0, **changes: object) -> nn.Module:
    """A small model, its shape drawn too, with no weight at zero and none where it starts."""
    draw = random.Random(f"{family} {seed}")
    shape = {
        "vocab_size": K,
        "num_hidden_layers": draw.choice([1, 2]),
        "hidden_size": draw.choice([8, 12]),
        "state_size": draw.choice([3, 4]),
        "conv_kernel": draw.choice([1, 2, 4]),
        "tie_word_embeddings": draw.random() < 0.5,
        "use_bias": draw.random() < 0.5,
        "use_conv_bias": draw.random() < 0.5,
        "hidden_act": draw.choice(["silu", "relu"]),
        "layer_norm_epsilon": draw.choice([1e-5, 1e-2]),
        "expand": draw.choice([1, 2]),
    }
    if family == "Mamba2":
        heads = draw.choice([1, 2, 4])
        shape |= {"num_heads": heads, "head_dim": shape["expand"] * shape["hidden_size"] // heads}
        shape |= {"n_groups": draw.choice([n for n in (1, 2, 4) if heads % n == 0]), "chunk_size": 8}
    else:
        shape |= {"time_step_rank": draw.choice([1, 3, "auto"])}
    return of_transformers(family, shape | changes, seed)


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens()).logits


def assert_close(run: Run, logits: torch.Tensor) -> None:
    ours = run.model()(tokens())
    assert logits.std() > 0.1
    assert ((ours - logits).abs() / logits.abs().clamp_min(1)).max() <= 1e-4
    # The same where the mixer is spelled out as attention.
    hooks = [(f"blocks.{i}.attn.hook_pattern", lambda x, hook: None) for i in range(run.config.n_layers)]
    explicit = run.model().run_with_hooks(tokens(), fwd_hooks=hooks)
    assert ((explicit - logits).abs() / logits.abs().clamp_min(1)).max() <= 1e-4


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", ["Mamba", "Mamba2"])
def test_a_live_model_becomes_a_run_with_its_logits(tmp_path, family, seed):
    model = live(family, seed)
    Run.from_model(model, source=SOURCE, n_ctx=LENGTH).save(tmp_path / "run.pt")
    run = load(tmp_path / "run.pt")
    assert_close(run, logits_of(model))
    assert run.config.mixer == {"Mamba": "mamba1", "Mamba2": "mamba"}[family]
    assert run.config.n_ctx == LENGTH
    assert run.config.tied == model.config.tie_word_embeddings
    assert run.provenance["logit_difference"] <= 1e-4


@pytest.mark.parametrize("family", ["Mamba", "Mamba2"])
def test_a_saved_folder_becomes_a_run_with_its_logits(tmp_path, family):
    model = live(family, seed=7)
    model.save_pretrained(tmp_path)
    imported = import_run([tmp_path], source=SOURCE)
    assert_close(imported.run, logits_of(model))
    assert f"{model.config.model_type} of transformers" in imported.notes[0]
    assert "not said by the file, assumed: n_ctx = 256" in imported.notes
    assert import_run([tmp_path], source=SOURCE, given={"n_ctx": 50}).run.config.n_ctx == 50


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_step_limit": [0.0, 0.1]}, r"time_step_limit is \[0.0, 0.1\]: a HookedDecoder cannot express"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh', expected relu"),
        ({"state_size": None}, "d_state is None, expected the size of a state"),
        ({"n_groups": 3}, "n_groups is 3, expected a divisor of n_heads 2"),
        ({"num_hidden_layers": 4}, "it has 1 layers, but num_hidden_layers is 4"),
        ({"conv_kernel": 3}, r"conv1d\.weight has shape \[32, 1, 2\], expected \[32, 1, 3\]"),
        ({"attention_layers": [0]}, "attention_layers is .*: a HookedDecoder cannot express it"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(tmp_path, changes, words):
    shape = {"num_hidden_layers": 1, "hidden_size": 12, "expand": 2, "state_size": 4, "conv_kernel": 2}
    live("Mamba2", **shape, num_heads=2, head_dim=12, n_groups=1, hidden_act="silu").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | changes), "utf-8")
    with pytest.raises(RunFileError, match=words):
        import_run([tmp_path], source=SOURCE)


def test_a_missing_field_is_named(tmp_path):
    live("Mamba").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    del config["conv_kernel"]
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(RunFileError, match=r"config\.json: conv_kernel is missing"):
        import_run([tmp_path], source=SOURCE)
