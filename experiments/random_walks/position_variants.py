"""Rotary positions in the walk model."""

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.harness import Measured
from experiments.random_walks.common import outcome
from experiments.random_walks.hand_set import (
    FLAT,
    SHORT,
    V_BLOCK,
    hand_set,
    token_block,
    walk_fields,
)

K = SHORT.n_states


def rotary(quick: bool) -> Measured:
    """Rotary positions: a zero query still pulls attention away from itself, and that pull knows the lag."""
    width, d_head, n_ctx, steps = K + 1, 32, SHORT.n_ctx, 20
    frozen = {
        "embed.W_E": torch.eye(width),
        "blocks.0.attn.W_Q": torch.zeros(1, width, d_head),
        "blocks.0.attn.W_V": token_block(width, d_head),
        "unembed.W_U": torch.eye(width)[:, :K].clone(),
    }
    frozen["blocks.0.attn.W_Q"][0, K] = SHORT.norm
    trained = {"blocks.0.attn.b_K": None} | V_BLOCK
    bases = (20.0,) if quick else (20.0, 100.0, 1000.0, 10_000.0)
    half, one, cosines = [], [], []
    for base in bases:
        fields = {"d_model": width, "d_head": d_head, "positional_embedding_type": "rotary"}
        more = {"rotary_dim": d_head, "rotary_base": base}
        variant = hand_set(walk_fields(SHORT) | fields | more, frozen, trained, f"steps={steps}")
        half.append(outcome(variant.train(0.5), -1, 1000))
        fell = variant.train(1.0)
        one.append(outcome(fell, -1, 600))
        cosines.append(_pull(fell, base, d_head, n_ctx))
    return Measured(
        [
            Finding(
                "rotary_fair",
                "; ".join(
                    f"base {base:g}: accuracy {o}, largest attention {o.attention.max():.2f} at lag "
                    f"{o.attention.argmax() + 1}"
                    for base, o in zip(bases, half, strict=True)
                ),
                holds(all(o.attention[0] > 0.9 for o in half)),
                "decoder, a constant query of norm sqrt(d_head) |p|, keys by position alone (b_K trained), "
                f"zero start, N = {n_ctx}, {steps} steps. The first move of attention is away from the "
                "query's own key, to the far lags, and there it stays",
                "trained at another",
                (sum(bool(o.attention[0] > 0.9) for o in half), len(half)),
            ),
            Finding(
                "rotary_sure",
                "; ".join(
                    f"base {base:g}: accuracy {o}, spread {o.spread:.2f}"
                    for base, o in zip(bases, one, strict=True)
                )
                + f"; first move against the predicted pull: cosine {min(cosines):.5f}",
                holds(all(o.spread < FLAT for o in one)),
                "all six walks, K divides N - 1. Attention to the zero query costs score, and rotated keys "
                "are not orthogonal: the pull away from it differs by lag, attention is no longer flat, and "
                "any lag predicts. Orthogonal positions are what keeps the trap",
                "trained at another",
                (sum(bool(o.spread < FLAT) for o in one), len(one)),
            ),
        ]
    )


def _pull(run: mm.Run, base: float, d_head: int, n_ctx: int) -> float:
    """Cosine of the first move of the logits with the kernel of the query's pull on its own key, centred.

    With V constant a real key's logit has the gradient `S S_N`, the query's own `-S_N (1 - S_N)`: up to scale
    1 for each of N - 1 real keys and -(N - 1) for the query's. What moves the key at one place moves that at
    another by `sum_j cos(d / base^(2j / d_head))`, d the distance between the two.
    """
    angles = base ** (-np.arange(0, d_head, 2) / d_head)
    distance = np.arange(n_ctx)[:, None] - np.arange(n_ctx)
    kernel = np.cos(distance[..., None] * angles).sum(-1)
    force = np.append(np.ones(n_ctx - 1), -(n_ctx - 1.0))
    predicted = kernel @ force
    tokens = torch.cat([torch.arange(n_ctx - 1)[None] % K, torch.tensor([[K]])], 1)
    with torch.no_grad():
        _, cache = run.model(2).run_with_cache(tokens, names_filter="blocks.0.attn.hook_attn_scores")
    moved = cache["blocks.0.attn.hook_attn_scores"][0, 0, -1].double().numpy()
    moved, predicted = moved - moved.mean(), predicted - predicted.mean()
    return float(moved @ predicted / np.linalg.norm(moved) / np.linalg.norm(predicted))
