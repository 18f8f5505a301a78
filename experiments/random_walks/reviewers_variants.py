"""Reviewers' questions on the model: logit scale, two factors, residual, positions, two layers."""

from itertools import product

import numpy as np
import plotly.graph_objects as go
import torch

import mechmarkov as mm
from experiments.claims import Measured, wilson
from experiments.random_walks.reviewers_common import (
    COLOURS,
    FLAT,
    RECIPES,
    SHORT,
    HandSet,
    claim,
    curve,
    first_beyond,
    hand_set,
    holds,
    outcome,
    walk_fields,
    walk_variant,
)
from mechmarkov.models.constructions.walk import WalkShape, walk_frozen_state

K = SHORT.n_states
V_BLOCK = {"blocks.0.attn.W_O": [[0, 1], [0, K], [0, K]]}


def token_block(width: int, d_head: int = K) -> torch.Tensor:
    """`W_V` of the walk model, `[1, width, d_head]`: it reads the states."""
    block = torch.zeros(1, width, d_head)
    block[0, :K, :K] = torch.eye(K)
    return block


def softmax_scale(quick: bool) -> Measured:
    """Logits divided by sqrt(d): the same two theorems, later."""
    shape = WalkShape(K, 25 if quick else 49, 1000)
    found, steps = {}, 16 if quick else 30
    for scale in (1.0, float(np.sqrt(K + shape.n_positions))):
        variant = walk_variant(shape, use_attn_scale=True, attn_scale=scale)
        run = variant.train(0.5, f"steps={steps}", f"data.n_train={200 if quick else 250}")
        attention = np.array([outcome(run, step, 500).attention[0] for step in range(steps + 1)])
        trapped = variant.train(1.0, "steps=3" if scale == 1 else f"steps={steps}")
        found[scale] = (first_beyond(attention, 0.99), outcome(run), outcome(trapped, -1, 600).spread)
    plain, scaled = found.values()
    ok = scaled[0] is not None and scaled[2] < FLAT
    text = "; ".join(
        f"divided by {scale:.1f}: attention on the parent above 0.99 from step {step}, accuracy {result}, "
        f"spread at p = 1 {spread:.0e}"
        for scale, (step, result, spread) in found.items()
    )
    return Measured(
        [
            claim(
                "softmax_scale",
                "With logits divided by sqrt(d) the fair walk is learned and the deterministic one is not",
                text,
                "does not hold"
                if not ok
                else "holds"
                if scaled[0] == plain[0]
                else "holds with a correction",
                f"the walk model as a decoder with attn_scale = sqrt(K + M), the paper's |p|² = 500.5, N = "
                f"{shape.n_ctx}, {steps} steps (p = 1 without a scale: 3, before rounding). A scale s acts "
                f"as a step "
                "size of s² for W alone: later, and the same otherwise",
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

    zero = variant(0.0, 0).train(0.5, f"steps={steps}")
    at_zero = outcome(zero)
    learned, left, lags = [], [], []
    seeds = range(1 if quick else 5)
    for seed in seeds:
        small = variant(0.01, seed)
        learned.append(outcome(small.train(0.5, f"steps={steps}", seed=seed)).attention[0] > 0.99)
        one = outcome(small.train(1.0, f"steps={steps}", seed=seed), -1, 600)
        left.append(one.accuracy[1] > 0.99)
        lags.append(int(one.attention.argmax()) + 1)
    low, share, high = wilson(sum(learned), len(learned))
    low_one, share_one, high_one = wilson(sum(left), len(left))
    return Measured(
        [
            claim(
                "separate_qk",
                "With W_Q and W_K apart the fair walk is still learned from a zero start",
                f"zero start, {steps} steps: accuracy {at_zero}, attention spread {at_zero.spread:.0e}",
                holds(at_zero.spread > FLAT),
                "the walk model as a decoder, N = 25, |p|² = 32, head of full width. The gradient of each "
                "factor "
                "is a product with the other: at zero both vanish, for any walk, and attention never moves",
            ),
            claim(
                "separate_qk",
                "With W_Q and W_K apart and a small random start the fair walk is learned, the "
                "deterministic one not",
                f"sd 0.01: fair walk learned in {share:.2f} [{low:.2f}, {high:.2f}] of seeds; "
                f"deterministic walk "
                f"learned in {share_one:.2f} [{low_one:.2f}, {high_one:.2f}], looking at lags "
                f"{', '.join(map(str, lags))}",
                "holds" if share > 0.8 and high_one < 0.5 else "does not hold",
                f"{len(seeds)} seeds of W_Q, W_K ~ N(0, 0.01²), V from zero, {steps} steps; learned: "
                f"attention on "
                "the parent, or accuracy at p = 1, above 0.99. A random start is off the saddle, "
                "and decides the lag",
            ),
        ]
    )


def residual(quick: bool) -> Measured:
    """A residual connection: void for a zero query, a way round the trap where the query is the parent."""
    del quick
    base = walk_variant()
    run = base.train(0.5)
    cut = base.start.decoder()
    tokens = torch.cat([torch.arange(24)[None] % K, torch.tensor([[K]])], 1)
    with torch.no_grad():
        _, cache = run.decoder().run_with_cache(tokens)
        stream = float((cache["blocks.0.hook_resid_pre"][0, -1] @ cut.unembed.W_U).abs().max())
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
    asked = hand_set(walk_fields(SHORT) | {"n_ctx": n}, states, trained, "objective.query=false")
    one = {step: outcome(asked.train(1.0), step, 600) for step in (1, 10)}
    half = outcome(asked.train(0.5), 10)
    return Measured(
        [
            claim(
                "residual",
                "A residual connection changes nothing in the paper's model",
                f"largest score from the query's own stream: {stream:.0e}",
                holds(stream == 0),
                "the walk model as a decoder has the residual stream; the query is a zero token, so that "
                "what V's "
                "readout finds on it is zero, exactly",
            ),
            claim(
                "residual",
                "With a residual connection the deterministic walk stays trapped where the query is the "
                "parent",
                f"p = 1: accuracy {one[1]} after one step, with attention spread {one[1].spread:.0e}; fair "
                f"walk at "
                f"step 10: {half}",
                holds(one[1].accuracy[1] < 0.3),
                "next-token form: no query token, f = V (x_{N-1} + X S), N - 1 = 24 = 4 K. The stream "
                "carries the "
                "parent: V learns the table at once, and attention is not needed",
            ),
        ]
    )


def no_positions(quick: bool) -> Measured:
    """Attention by token alone: the authors say that nothing beats chance."""
    width = K + 1
    states = {
        "embed.W_E": torch.diag(torch.tensor([1.0] * K + [SHORT.norm])),
        "blocks.0.attn.W_Q": torch.zeros(1, width, K),
        "blocks.0.attn.W_V": token_block(width),
        "unembed.W_U": torch.eye(width)[:, :K].clone(),
    }
    states["blocks.0.attn.W_Q"][0, K, 0] = 1.0
    trained = {"blocks.0.attn.W_K": [[0, 1], [0, width], [0, 1]]} | V_BLOCK

    def variant(n_ctx: int) -> HandSet:
        fields = {"n_ctx": n_ctx, "d_model": width, "positional_embedding_type": "none"}
        return hand_set(walk_fields(SHORT) | fields, states, trained)

    lengths = (22, 25) if quick else range(20, 32)
    exact, sampled = {}, {}
    for n_ctx in lengths:
        one = variant(n_ctx)
        exact[n_ctx] = outcome(one.train(1.0, "steps=1"), -1, 600).accuracy[1]
        sampled[n_ctx] = outcome(one.train(1.0, "steps=1", "data={n_train=1000}"), -1, 600).accuracy[1]
    beats = [n for n in lengths if exact[n] == 1.0]
    should = [n for n in lengths if (n - 1) % K]
    chance = [n for n in lengths if exact[n] < 0.3]
    half = variant(26).train(0.5, "steps=1", f"data.n_train={4000 if quick else 20_000}")
    fair = outcome(half, 1, 4000 if quick else 20_000)
    return Measured(
        [
            claim(
                "no_positions",
                "Without positions nothing beats chance on the deterministic walk",
                f"one step: accuracy 1 for {len(beats)} of {len(should)} N with K not dividing N - 1, "
                f"chance for "
                f"{len(chance)} of {len(lengths) - len(should)} others",
                holds(not beats),
                f"decoder without positions, K = 6, N = {lengths[0]} to {lengths[-1]}, all six walks as "
                f"data. Where K "
                "does not divide N - 1 the counts of tokens tell the label. From 1000 sampled sequences "
                f"accuracy is 1 for {sum(v == 1 for v in sampled.values())} of {len(lengths)} N: the counts "
                "differ by one in a few, and the margin is below the sampling error of the label counts",
                paper="chance (authors, in review)",
            ),
            claim(
                "no_positions",
                "Without positions nothing beats chance on the fair walk",
                f"N = 26, after one step: accuracy {fair}, chance 0.167",
                holds(fair.accuracy[0] <= 1 / K),
                f"decoder without positions, {4000 if quick else 20_000} training sequences and as many "
                f"fresh ones; attention is flat, and the token mean knows the "
                "neighbourhood of the label. Far below the 0.5 of a model that finds the parent",
                paper="chance (authors, in review)",
            ),
        ]
    )


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
    bases = (20.0,) if quick else (20.0, 100.0, 10_000.0)
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
            claim(
                "rotary",
                "With rotary positions the fair walk is learned, with attention on the parent",
                "; ".join(
                    f"base {base:g}: accuracy {o}, largest attention {o.attention.max():.2f} at lag "
                    f"{o.attention.argmax() + 1}"
                    for base, o in zip(bases, half, strict=True)
                ),
                holds(all(o.attention[0] > 0.9 for o in half)),
                f"decoder, a constant query of norm sqrt(d_head) |p|, keys by position alone (b_K "
                f"trained), zero "
                f"start, N = {n_ctx}, {steps} steps. The first move of attention is away from the query's "
                f"own key, "
                "to the far lags, and there it stays",
            ),
            claim(
                "rotary",
                "With rotary positions the deterministic walk stays trapped",
                "; ".join(
                    f"base {base:g}: accuracy {o}, spread {o.spread:.2f}"
                    for base, o in zip(bases, one, strict=True)
                )
                + f"; first move against the predicted pull: cosine {min(cosines):.5f}",
                holds(all(o.spread < FLAT for o in one)),
                "all six walks, K divides N - 1. Attention to the zero query costs score, and rotated keys "
                "are not "
                "orthogonal: the pull away from it differs by lag, attention is no longer flat, and any "
                "lag predicts. "
                "Orthogonal positions are what keeps the trap",
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
        _, cache = run.decoder(2).run_with_cache(tokens, names_filter="blocks.0.attn.hook_attn_scores")
    moved = cache["blocks.0.attn.hook_attn_scores"][0, 0, -1].double().numpy()
    moved, predicted = moved - moved.mean(), predicted - predicted.mean()
    return float(moved @ predicted / np.linalg.norm(moved) / np.linalg.norm(predicted))


def two_layers(quick: bool) -> Measured:
    """An ordinary decoder of one and two layers, fair and deterministic, K dividing N - 1 or not."""
    recipe, seeds = mm.load_recipe(RECIPES / "reviewers-depth.toml"), range(2 if quick else 4)
    steps = 200 if quick else 300
    cells = list(product((1, 2), (0.5, 1.0), (13, 16)))
    if quick:
        cells = [(1, 1.0, 13), (2, 1.0, 13)]
    found: dict[tuple[int, float, int], tuple[list[bool], list[float]]] = {}
    figure = go.Figure()
    for layers, p, n_ctx in cells:
        changes = [f"model.n_layers={layers}", f"source.p={p}", f"model.n_ctx={n_ctx}", f"steps={steps}"]
        runs = mm.train(recipe.with_set([*changes, f"checkpoints=[{steps}]"]), seeds=seeds)
        losses = np.stack([np.convolve(curve(run, "loss"), np.ones(10) / 10, "valid") for run in runs])
        lowest = np.log(2) if p == 0.5 else 0.0
        left = [first_beyond(-loss, -(np.log(K) + lowest) / 2) for loss in losses]
        best = 0.5 if p == 0.5 else 1.0
        done = [outcome(run, -1, 1000).accuracy[1] > 0.9 * best for run in runs]
        found[layers, p, n_ctx] = (done, [float("inf") if step is None else step for step in left])
        figure.add_scatter(
            x=np.arange(0, losses.shape[1], 4),
            y=np.median(losses, 0)[::4],
            name=f"{layers} layer{'s' * (layers > 1)}, p = {p:g}, N - 1 = {n_ctx - 1}",
            line={"color": COLOURS[layers - 1 + 2 * (p == 1)], "dash": "solid" if n_ctx == 13 else "dash"},
        )
    figure.add_hline(y=np.log(K), line_dash="dot", annotation_text="chance: log 6")
    figure.update_layout(
        title="An ordinary small decoder: at p = 1 the trap is a delay (median loss over seeds)",
        xaxis_title="training step (AdamW)",
        yaxis_title="cross-entropy (nats)",
    )
    trap = {layers: found[layers, 1.0, 13] for layers in (1, 2)}
    shown = "; ".join(
        f"{layers} layer{'s' * (layers > 1)}, p = {p:g}, N - 1 = {n - 1}: {sum(done)}/{len(done)}, half "
        f"way at step "
        f"{np.median(left):.0f}"
        for (layers, p, n), (done, left) in found.items()
    )
    how = (
        f"attention only, width 16, learned positions, N(0, 0.02²), AdamW 1e-2, cross-entropy, 32 fresh "
        f"sequences a "
        f"step, {steps} steps, {len(seeds)} seeds; learned: accuracy above 0.9 of the best; half way: "
        f"between log 6 "
        "and the lowest loss, median"
    )
    return Measured(
        [
            claim(
                "two_layers",
                "The trap at p = 1 is there in an ordinary one-layer decoder",
                shown,
                holds(not any(trap[1][0])),
                how + ". A random start is off the saddle, and any lag class will do",
            ),
            claim(
                "two_layers",
                "A second layer helps the deterministic walk out",
                shown,
                holds(all(trap[2][0]) and bool(np.median(trap[2][1]) < np.median(trap[1][1]))),
                how
                + ". Under a causal mask a flat first layer weighs early tokens more: the token mean that "
                "the second layer reads is no longer the same for every label",
            ),
        ],
        {"reviewers-depth": figure},
    )
