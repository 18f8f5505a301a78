"""Run files of every version there ever was load, to the last bit. The files are never written again."""

from pathlib import Path

import numpy as np
import torch

from mechmarkov.objectives import Objective
from mechmarkov.runs import load
from mechmarkov.sources import Circle

GOLDEN = Path(__file__).parent / "golden"
SHAPES_V1 = {
    "blocks.0.attn.W_K": (3, 2, 4, 3),
    "blocks.0.attn.W_O": (3, 2, 3, 4),
    "blocks.0.attn.W_Q": (3, 2, 4, 3),
    "blocks.0.attn.W_V": (3, 2, 4, 3),
    "blocks.0.attn.b_K": (3, 2, 3),
    "blocks.0.attn.b_O": (1, 4),
    "blocks.0.attn.b_Q": (3, 2, 3),
    "blocks.0.attn.b_V": (3, 2, 3),
    "blocks.0.ln1.b": (3, 4),
    "blocks.0.ln1.w": (3, 4),
    "blocks.0.ln2.b": (3, 4),
    "blocks.0.ln2.w": (3, 4),
    "blocks.0.mlp.W_in": (3, 4, 6),
    "blocks.0.mlp.W_out": (3, 6, 4),
    "blocks.0.mlp.b_in": (3, 6),
    "blocks.0.mlp.b_out": (3, 4),
    "embed.W_E": (3, 4, 4),
    "ln_final.b": (3, 4),
    "ln_final.w": (3, 4),
    "pos_embed.W_pos": (3, 5, 4),
    "unembed.W_U": (3, 4, 3),
    "unembed.b_U": (3, 3),
}


def numbers(shape: tuple[int, ...], start: int) -> np.ndarray:
    return np.array([((7 * i + start) % 61 - 30) / 32 for i in range(np.prod(shape))]).reshape(shape)


def test_version_1():
    run = load(GOLDEN / "v1.pt")
    assert run.source == Circle(n_states=3, p=0.25)
    assert run.objective == Objective(kind="normalised_log", eps=0.05, read="last", query=True)
    model = run.config
    assert (model.n_layers, model.d_model, model.n_ctx, model.d_head, model.n_heads) == (1, 4, 5, 3, 2)
    assert (model.d_vocab, model.d_vocab_out, model.d_mlp, model.act_fn) == (4, 3, 6, "relu")
    assert (model.normalization_type, model.eps, model.attn_only, model.tied) == ("LN", 1e-5, False, False)
    assert run.trainable == {"blocks.0.attn.W_V": [[0, 2], [1, 4], [0, 3]], "unembed.W_U": None}
    notes = {"ü": None, "yes": True}
    assert run.recipe == {"name": "golden", "steps": 64, "betas": [0.9, 0.999], "notes": notes}
    assert (run.seed, run.steps.tolist()) == (11, [0, 8, 64])
    assert run.provenance == {"mechmarkov": "0.1.0", "device": "cpu", "wall_seconds": 0.5}
    assert run.metrics["loss"]["step"].tolist() == [0, 16, 32, 48, 64]
    assert np.array_equal(run.metrics["loss"]["value"], numbers((5,), 40))
    assert sorted(run.states) == sorted(SHAPES_V1)
    for index, (name, shape) in enumerate(sorted(SHAPES_V1.items())):
        assert np.array_equal(run.states[name], numbers(shape, index)), name


def test_version_1_is_what_torch_reads_alone():
    data = torch.load(GOLDEN / "v1.pt", weights_only=True)
    assert list(data) == [
        "format", "version", "model", "source", "objective", "trainable", "recipe", "seed", "steps",
        "states", "metrics", "provenance",
    ]  # fmt: skip
    assert (data["format"], data["version"]) == ("mechmarkov.run", 1)
    assert data["source"] == {"kind": "circle", "n_states": 3, "p": 0.25}
    assert (GOLDEN / "v1.pt").stat().st_size < 50_000
