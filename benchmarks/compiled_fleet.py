"""Training a fleet beside what torch offers: `torch.compile`, of one model and of a stack by `torch.func`.

    python -m benchmarks.compiled_fleet [--sizes 0 1 2] [--repeats 3]

Milliseconds per model-step of the whole machine, optimiser included. Both peers are nanoGPT-style modules
with torch's fused attention. They train on one batch for ever, so that data cost them nothing; the fleet
draws its own. One peer is a loop over single models, the other a stack of as many as the fleet has. Both run
in a process a core, all at once. Compiling is left out. The table is written into `benchmarks/README.md`.
"""

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import Manager, get_context
from threading import Barrier

import torch

from benchmarks.fleet import FLEET, SIZES, STEPS, Size, fleet_seconds, in_every_core, recipe_of, seconds_of
from benchmarks.peers import NanoGPT, train_one, train_stack
from benchmarks.timing import write_table
from mechmarkov.utils.threads import cores

# layers, positions, batch, width, and of how many heads, models and steps.
SMALL = [(size, 1, FLEET[size[1]], STEPS[size[1]]) for size in SIZES]
LARGE = [((4, 128, 16, width), 4, models, 20) for width, models in ((64, 8), (128, 4), (256, 2))]
ROWS = SMALL + LARGE
PEERS = ("torch.compile", "torch.func")


def peer_seconds(name: str, size: Size, heads: int, models: int, steps: int, together: Barrier) -> float:
    """Seconds of a peer's steps, after it has compiled; it begins when all processes are ready."""
    layers, length, batch, width = size
    built = [NanoGPT(layers, length, width, 2, norm=False, heads=heads) for _ in range(models)]
    states = torch.randint(2, (models, batch, length + 1), generator=torch.Generator().manual_seed(0))
    if name == "torch.func":
        train, data = partial(train_stack, built), states
    else:
        built[0].compile()
        train, data = partial(train_one, built[0]), states[0]
    run = train(lambda _: data, steps)
    run()
    together.wait()
    return seconds_of(run)


def row(case: tuple[Size, int, int, int], repeats: int) -> str:
    """A row of the table, the alternatives in turn."""
    size, heads, models, steps = case
    recipe = recipe_of(*size, steps)
    if heads > 1:
        recipe = recipe.with_set([f"model.n_heads={heads}", f"model.d_head={size[3] // heads}"])
    own = {"torch.compile": 1, "torch.func": models // cores()}
    taken: dict[str, list[float]] = {name: [] for name in ("fleet", *PEERS)}
    context = get_context("spawn")
    with (
        Manager() as manager,
        ProcessPoolExecutor(cores(), context, torch.set_num_threads, (1,)) as executor,
    ):
        together = manager.Barrier(cores())
        for repeat in range(repeats + 1):  # the first is a warm-up
            measured = {"fleet": fleet_seconds(recipe, models, "cpu") / (models * steps)}
            for name in PEERS:
                few = max(3, steps // (1 if name == "torch.compile" else 10))
                job = partial(peer_seconds, name, size, heads, own[name], few)
                measured[name] = in_every_core(executor, together, job) / (few * cores() * own[name])
            if repeat:
                for name, value in measured.items():
                    taken[name].append(1e3 * value)
    ours = taken["fleet"]
    cells = [str(size), str(heads), str(models)]
    cells.append(f"{statistics.median(ours):.3g} ({min(ours):.3g} to {max(ours):.3g})")
    for name in PEERS:
        ratios = [their / our for their, our in zip(taken[name], ours, strict=True)]
        cells.append(f"{statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure the table, print it, and write it into the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=range(len(ROWS)))
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    lines = []
    for index in given.sizes:
        lines.append(row(ROWS[index], given.repeats))
        print(lines[-1], flush=True)
    head = ["layers, positions, batch, width", "heads", "models", "fleet on the processor, ms", *PEERS]
    write_table("benchmarks.compiled_fleet", [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines])


if __name__ == "__main__":
    main()
