"""Other attention in the walk model: scaled logits, two factors of W, a residual connection."""

import numpy as np
import torch

from experiments.claims import Finding, holds, share, wilson
from experiments.harness import Measured, first_time, when
from experiments.random_walks.common import outcome
from experiments.random_walks.hand_set import (
    FLAT,
    SHORT,
    V_BLOCK,
    HandSet,
    hand_set,
    token_block,
    walk_fields,
    walk_variant,
)
from mechmarkov.models.constructions.walk import WalkShape, walk_frozen_state

K = SHORT.n_states


def softmax_scale(quick: bool) -> Measured:
    """Logits divided by sqrt(d): the same two theorems, later."""
    shape = WalkShape(K, 25 if quick else 49, 1000)
    steps, seeds = 16 if quick else 30, range(1 if quick else 16)
    plain, scaled, flat = [], [], []
    for seed in seeds:
        for scale, times in ((1.0, plain), (float(np.sqrt(K + shape.n_positions)), scaled)):
            variant = walk_variant(shape, use_attn_scale=True, attn_scale=scale)
            run = variant.train(0.5, f"steps={steps}", f"data.n_train={200 if quick else 250}", seed=seed)
            looks = np.array([outcome(run, step, 200).attention[0] for step in range(steps + 1)])
            times.append(first_time(looks > 0.99))
        flat.append(outcome(variant.train(1.0, f"steps={steps}", seed=seed), -1, 200).spread < FLAT)
    later = [np.isfinite(b) and b > a and c for a, b, c in zip(plain, scaled, flat, strict=True)]
    return Measured(
        [
            Finding(
                "softmax_scale",
                f"{share(sum(later), len(later))} seeds; attention on the parent above 0.99 from step "
                f"{when(plain)} "
                f"without a scale, {when(scaled)} with it; at p = 1 flat in {sum(flat)}",
                holds(all(later)),
                "the walk model as a decoder with attn_scale = sqrt(K + M), the paper's |p|² = 500.5, N = "
                f"{shape.n_ctx}, {steps} steps. A scale s acts as a step size of s² for W alone: "
                "later, and the "
                "same otherwise",
                "trained at another",
                (sum(later), len(later)),
            )
        ]
    )


def separate_qk(quick: bool) -> Measured:
    """`W_Q^T W_K` in place of `W`: zero is a stationary point of both factors."""
    width, steps = SHORT.width, 15 if quick else 30
    frozen = walk_frozen_state(SHORT)
    kept = {name: frozen[name] for name in ("embed.W_E", "pos_embed.W_pos", "unembed.W_U")}

    def variant(sd: float, seed: int) -> HandSet:
        generator = torch.Generator().manual_seed(seed)
        draws = {
            f"blocks.0.attn.W_{name}": sd * torch.randn(1, width, width, generator=generator) for name in "QK"
        }
        states = kept | draws | {"blocks.0.attn.W_V": token_block(width, width)}
        return hand_set(walk_fields(SHORT) | {"d_head": width}, states, dict.fromkeys(draws) | V_BLOCK)

    learned, left, lags = [], [], []
    seeds = range(1 if quick else 16)
    for seed in seeds:
        small = variant(0.01, seed)
        learned.append(outcome(small.train(0.5, f"steps={steps}", seed=seed)).attention[0] > 0.99)
        one = outcome(small.train(1.0, f"steps={steps}", seed=seed), -1, 600)
        left.append(one.accuracy[1] > 0.99)
        lags.append(int(one.attention.argmax()) + 1)
    low, part, high = wilson(sum(learned), len(learned))
    low_one, share_one, high_one = wilson(sum(left), len(left))
    return Measured(
        [
            Finding(
                "separate_qk_small",
                f"sd 0.01: fair walk learned in {part:.2f} [{low:.2f}, {high:.2f}] of seeds; deterministic "
                f"walk learned in {share_one:.2f} [{low_one:.2f}, {high_one:.2f}], looking at lags "
                f"{', '.join(map(str, lags))}",
                holds(part > 0.8 and high_one < 0.5),
                f"{len(seeds)} seeds of W_Q, W_K ~ N(0, 0.01²), V from zero, {steps} steps; learned: "
                "attention on the parent, or accuracy at p = 1, above 0.99. A random start is off the "
                "saddle, and decides the lag",
                "trained at another",
                (sum(a and not b for a, b in zip(learned, left, strict=True)), len(learned)),
            ),
        ]
    )


def residual(quick: bool) -> Measured:
    """A residual connection: void for a zero query, a way round the trap where the query is the parent."""
    del quick
    n, width = SHORT.n_ctx - 1, SHORT.width
    frozen = walk_frozen_state(SHORT)
    W_Q, W_O = torch.zeros(1, width, K), torch.zeros(1, K, width)
    W_Q[0, :, 0] = frozen["pos_embed.W_pos"][n - 1] / SHORT.norm
    W_O[0, :, :K] = torch.eye(K)
    states = {
        "embed.W_E": frozen["embed.W_E"][:K],
        "pos_embed.W_pos": frozen["pos_embed.W_pos"][:n],
        "blocks.0.attn.W_Q": W_Q,
        "blocks.0.attn.W_V": token_block(width),
        "blocks.0.attn.W_O": W_O,
    }
    trained = {"blocks.0.attn.W_K": [[0, 1], [0, width], [0, 1]], "unembed.W_U": [[0, K], [0, K]]}
    without_query = hand_set(walk_fields(SHORT) | {"n_ctx": n}, states, trained, "objective.query=false")
    one = {step: outcome(without_query.train(1.0), step, 600) for step in (1, 10)}
    half = outcome(without_query.train(0.5), 10)
    return Measured(
        [
            Finding(
                "residual_parent",
                f"p = 1: accuracy {one[1]} after one step, with attention spread {one[1].spread:.0e}; fair "
                f"walk at step 10: {half}",
                holds(one[1].accuracy[1] < 0.3),
                "next-token form: no query token, f = V (x_{N-1} + X S), N - 1 = 24 = 4 K. The stream "
                "carries the parent: V learns the table at once, and attention is not needed",
                "sampled",
                (round(600 * (1 - one[1].accuracy[1])), 600),
                number=f"accuracy {one[1]}",
            ),
        ]
    )
