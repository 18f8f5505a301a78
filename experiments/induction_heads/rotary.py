"""Today's attention: do rotary positions and grouped queries form the pair of heads too?"""

import numpy as np

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.harness import Measured, over_seeds, trained
from experiments.induction_heads.depths import circuit
from experiments.induction_heads.panels import over_training
from experiments.induction_heads.shared import distances, gained, recipe

# Two layers as in Llama: four heads, two of keys and values, RMSNorm.
TODAY = [
    "model.positional_embedding_type=rotary",
    "model.n_heads=4",
    "model.n_key_value_heads=2",
    "model.d_head=8",
    "model.d_model=32",
    "model.normalization_type=RMS",
    "model.n_ctx=32",
    "optimiser.lr=8e-3",
]
QUICK_SEEDS = (2, 5)  # after so few steps seeds 0 and 1 have no pair yet
PAIR = (0, 1)  # a head of layer 0 feeds one of layer 1


def rotary(quick: bool) -> Measured:
    """Train one shape, and look for the pair at the end and at the start."""
    chosen, steps = (QUICK_SEEDS, 500) if quick else (range(16), 800)
    seeds = len(chosen)
    (runs,) = trained([recipe(*TODAY, f"steps={steps}", "checkpoints={every=100}")], chosen)
    pairs = sum(circuit(run) == PAIR for run in runs)
    before = sum(circuit(run, step=0) == PAIR for run in runs)
    way = np.stack([gained(distances(run)) for run in runs], axis=1)  # [step, seed]
    looks = [mm.probe(run, ["attention"], sequences=64)["attention"] for run in runs]
    previous = np.array(
        [float(look.data["lag_mass"].isel(step=-1, layer=0).sel(lag=2).max()) for look in looks]
    )
    finding = Finding(
        "grouped_rotary",
        f"{share(pairs, seeds)} seeds, before training {before}; most attention of a head of layer 0 on the "
        f"previous token {over_seeds(previous)}; gain {over_seeds(way[-1])}",
        holds(pairs > seeds / 2),
        "probe `induction`, by edit and by cutting the path (half of the score must go); gain: share of what "
        "the in-context bigram gains over the unigram. Width 32, four heads of 8, two of keys and values, "
        f"RMSNorm, rotary positions, attention only; three symbols, length 32, batch 32, learning rate 8e-3, "
        f"{steps} steps; {seeds} seeds, on a CPU",
        "trained at another",
        (pairs, seeds),
    )
    figure = over_training(
        {"rotary positions, grouped queries": (runs[0].steps.numpy(), {"model": way})},
        "How far models with today's attention come",
        "share of the bigram's gain (nats)",
        {"unigram": 0.0, "in-context bigram": 1.0},
    )
    return Measured([finding], {"rotary": figure})
