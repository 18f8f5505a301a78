"""Claims on the minimal model: phases, which layer moves first, what ties them, what the data change."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.harness import Measured, evaluation, exact, first_time, over_seeds
from experiments.induction_heads import minimal
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.shared import BIGRAM, UNIGRAM
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

ROUNDING = 1e-12  # of gradients and logits of order 1 in float64
RATES = {"lr_W": 1e-2, "lr_v": 1.0}  # the public code's

Distances = Mapping[str, Float[np.ndarray, "step seed"]]


def late_distances(
    trajectory: minimal.Trajectory, source: mm.sources.Source, masked: bool = True
) -> Distances:
    """KL from each exact predictor to the models over the last quarter of positions, and `apart` (nats)."""
    length = trajectory.v.shape[-1]
    tokens = evaluation(source, 64, length)
    end = slice(length - length // 4, None)
    model = minimal.predictions(trajectory, tokens, masked)[..., end, :]
    laws = {name: law[:, end] for name, law in exact(source, tokens).items()}
    found = {name: over_sequences(kl(p, model)) for name, p in laws.items()}
    return found | {"apart": np.full((1, 1), over_sequences(kl(laws[BIGRAM], laws[UNIGRAM])))}


def half_way(values: Float[np.ndarray, "step seed"], steps: np.ndarray) -> Float[np.ndarray, " seed"]:
    """When each seed first has half of what it has in the end."""
    return np.array([first_time(column > column[-1] / 2, steps) for column in values.T])


def gains(found: Distances) -> Float[np.ndarray, "step seed"]:
    """Share of what the in-context bigram gains over the unigram (nats)."""
    return np.asarray(1 - found[BIGRAM] / found["apart"])


def minimal_model(quick: bool) -> Measured:
    """Train it jointly, with one layer held at its ideal, and without its mask."""
    seeds, n, steps = range(2 if quick else 8), 3, 400
    length, batch = (32, 32) if quick else (64, 64)
    settings = {"n_ctx": length, "batch": batch, "steps": steps, "every": 10}
    chains = mm.DirichletChains(n_states=n, start="uniform")
    joint = minimal.train(chains, seeds, **settings, **RATES)
    ideal_W = torch.full((n, n), minimal.W_START, dtype=torch.float64)
    ideal_W += torch.eye(n, dtype=torch.float64) * float(np.median(joint.diagonal[-1]))
    held_W = minimal.train(chains, seeds, **settings, **RATES | {"lr_W": 0.0}, start_W=ideal_W)
    held_v = minimal.train(
        chains, seeds, **settings, **RATES | {"lr_v": 0.0}, start_v=minimal.clamped_layer_1(length)
    )
    released = minimal.train(chains, seeds, **settings, **RATES, masked=False)
    near = late_distances(joint, chains)
    how = (
        f"three symbols, length {length}, {batch} sequences a step, {steps} steps of gradient descent, "
        f"rates 0.01 for W and 1 for v as in the public code, {len(seeds)} seeds"
    )
    claims = [
        *order_claims(joint, near, how),
        *([] if quick else [drop_claim(joint, near, how)]),  # a quick run ends amid the drop
        held_claim(joint, held_v, held_W, how),
        *mask_claims(near, late_distances(released, chains, masked=False), how),
    ]
    layers = {
        "together": {
            "layer 1: weight of the previous token": joint.previous,
            "layer 2: diagonal of W (logits a pair)": joint.diagonal,
            "share of the bigram's gain": gains(near).clip(-0.1),
        },
        "as released, without its mask": {
            "layer 1: weight of the previous token": released.previous,
            "layer 2: diagonal of W (logits a pair)": released.diagonal,
        },
        "layer 2 held at its ideal": {"layer 1: weight of the previous token": held_W.previous},
    }
    panels = {name: (joint.steps, curves) for name, curves in layers.items()}
    figure = over_training(panels, "The minimal model: its two layers over training", "weight, or share")
    return Measured(claims, {"minimal": figure})


def order_claims(trajectory: minimal.Trajectory, near: Distances, how: str) -> list[Finding]:
    """Phases, the first gradient, and which layer comes first."""
    steps, count = trajectory.steps, trajectory.v.shape[1]
    names = ["uniform", UNIGRAM, BIGRAM]
    labels = np.stack([near[name] for name in names]).argmin(0).T  # [seed, step]
    ordered = sum(list(dict.fromkeys(row.tolist())) == [0, 1, 2] and row[-1] == 2 for row in labels)
    first_layer, second_layer = half_way(trajectory.previous, steps), half_way(trajectory.diagonal, steps)
    later = int((second_layer < first_layer).sum())
    return [
        Finding(
            "minimal_phases",
            f"{share(ordered, count)} seeds in this order; {over_seeds(1 - gains(near)[-1])} of the "
            "unigram's excess is left in the end",
            holds(ordered == count),
            f"nearest exact predictor over the last quarter of positions; {how}",
            "trained at another",
            (ordered, count),
        ),
        Finding(
            "second_layer_first",
            f"{share(later, count)} seeds; half of the end's value at step {over_seeds(second_layer)} for "
            f"W's diagonal, {over_seeds(first_layer)} for layer 1's weight on the previous token",
            holds(later == count),
            f"steps at which each has half of what it has in the end; {how}",
            "trained at another",
            (later, count),
        ),
    ]


def drop_claim(trajectory: minimal.Trajectory, near: Distances, how: str) -> Finding:
    """Which layer the drop goes with."""
    steps, way = trajectory.steps, half_way(gains(near), trajectory.steps)
    first_layer, second_layer = half_way(trajectory.previous, steps), half_way(trajectory.diagonal, steps)
    with_first = int((np.abs(way - first_layer) < np.abs(way - second_layer)).sum())
    return Finding(
        "drop_with_first_layer",
        f"{share(with_first, len(way))} seeds; half of the bigram's gain at step {over_seeds(way)}",
        holds(with_first == len(way)),
        f"nearer in time to layer 1's half-way point than to layer 2's; {how}",
        "trained at another",
        (with_first, len(way)),
    )


def held_claim(
    joint: minimal.Trajectory, held_v: minimal.Trajectory, held_W: minimal.Trajectory, how: str
) -> Finding:
    """The same layers with the other held at its ideal from the start."""
    steps = joint.steps
    alone = np.array([first_time(c > joint.previous[-1].min() / 2, steps) for c in held_W.previous.T])
    together = np.array([first_time(c > joint.previous[-1].min() / 2, steps) for c in joint.previous.T])
    W_alone = np.array([first_time(c > joint.diagonal[-1].min() / 2, steps) for c in held_v.diagonal.T])
    W_together = np.array([first_time(c > joint.diagonal[-1].min() / 2, steps) for c in joint.diagonal.T])
    sooner = int(((alone < together) & (W_alone < W_together)).sum())
    return Finding(
        "layers_wait",
        f"{share(sooner, len(alone))} seeds learn both sooner; layer 1 half-way at step {over_seeds(alone)} "
        f"with layer 2 held at its ideal, {over_seeds(together)} together; layer 2 at {over_seeds(W_alone)} "
        f"and {over_seeds(W_together)}",
        holds(sooner == len(alone)),
        "layer 1 held: all weight on the previous token; layer 2 held: W's diagonal as it ends together. "
        f"Half of the lowest value in the end; {how}",
        "trained at another",
        (sooner, len(alone)),
    )


def mask_claims(
    near: Distances,
    released_near: Distances,
    how: str,
) -> list[Finding]:
    """What the public code's unused mask changes."""
    bigram, without = gains(near)[-1], gains(released_near)[-1]
    behind = int((without < bigram.min()).sum())
    return [
        Finding(
            "mask_matters",
            f"share of the bigram's gain after the same steps: {over_seeds(bigram)} with the mask, "
            f"{over_seeds(without)} as released; {share(behind, len(without))} seeds are behind all with "
            "the mask",
            holds(behind == 0),
            "as released, later tokens dilute layer 1 and it hardly leaves the unigram in these steps; "
            f"{how}",
            "trained at another",
            (len(without) - behind, len(without)),
        ),
    ]
