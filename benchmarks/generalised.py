"""The table of `docs/belief.md`: generalised hidden chains, learned by one layer, and what its stream holds.

python -m benchmarks.generalised        # minutes of processor time
"""

import sys

import numpy as np
from jaxtyping import Float
from mechmarkov.probes.belief.carried import Carried, held_out
from mechmarkov.probes.belief.forcing import mean_kls
from mechmarkov.probes.belief.measure import measure

import mechmarkov as mm
from mechmarkov.interventions.belief import streams
from mechmarkov.theory.kernel import kl
from mechmarkov.training import load_recipe

RECIPES = ("bloch-walk", "frdn", "moon")
SEEDS = range(16)
SEQUENCES = 256
READ = 0.9  # R² of a direction, from which on it is read
FOLLOWED = 0.25  # of KL without a move, and of moves in random directions
LEAST = 1e-6  # of the belief's variance; a direction of less is rounding


def directions(belief: Float[np.ndarray, "batch read hidden"], stream: np.ndarray) -> Float[np.ndarray, " k"]:
    """Held-out R² of each principal direction of the belief, those of much variance first."""
    around = belief - belief.mean((0, 1))
    _, sizes, axes = np.linalg.svd(around.reshape(-1, belief.shape[-1]), full_matrices=False)
    axes = axes[sizes**2 > LEAST * (sizes**2).sum()]
    off, along = (held_out(stream, belief) - belief) @ axes.T, around @ axes.T
    return 1 - (off**2).mean((0, 1)) / (along**2).mean((0, 1))


def row(recipe: str) -> str:
    """The line of a recipe, over all seeds: medians, with the smallest and the largest."""
    asked = load_recipe(recipe)
    asked = asked.with_set([f"checkpoints=[0, {asked.steps}]"])
    found = []
    for run in mm.train(asked, seeds=SEEDS, progress=False):
        subject = mm.Subject.of(run, steps=[0, asked.steps], sequences=SEQUENCES)
        data, carried = measure(subject), Carried.of(subject)
        last = list(streams(subject.decoder[-1], carried.batch.tokens).values())[-1]
        r2 = directions(carried.belief, last[:, carried.batch.read.numpy()])
        q = subject.probabilities[-1]
        nats = [kl(subject.exact["forward_filter"], p).mean() for p in (q, subject.exact["bigram"])]
        clean, random, forced = mean_kls(data.isel(step=-1))
        ends = float(data["r2"][-1, -1]), float(data["r2"][0].max()), float(data["baseline_r2"])
        follows = forced < FOLLOWED * min(clean, random)
        found.append((*nats, *ends, (r2 > READ).sum(), len(r2), forced, clean, follows))
    columns = np.array(found, dtype=float).T
    told = [f"{np.median(x):.3g} [{x.min():.3g}, {x.max():.3g}]" for x in columns]
    held = (
        f"{np.median(columns[5]):.0f} [{columns[5].min():.0f}, {columns[5].max():.0f}] of {columns[6, 0]:.0f}"
    )
    follows = f"{columns[-1].sum():.0f} of {len(SEEDS)}"
    cells = [f"`{recipe}`", told[0], f"{columns[1].mean():.3g}", *told[2:5], held, told[7], told[8], follows]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    head = [
        "recipe",
        "KL to the filter",
        "of the bigram",
        "R²",
        "untrained",
        "baseline R²",
        "directions read",
    ]
    head += ["forced KL", "clean KL", "follow"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name in sys.argv[1:] or RECIPES:
        print(row(name), flush=True)
