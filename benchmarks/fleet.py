"""Training a fleet beside a loop of HookedTransformer and a loop of a nanoGPT-style module, in one run.

    python -m benchmarks.fleet [--sizes 0 1 2 3] [--threads 2] [--device cpu]

Milliseconds per model-step, data and optimiser included, and how many times slower each peer is. Peers sample
with one multinomial call a time step, as people do; in the second column ("shared") they train on one batch
for ever, so that data cost them nothing. HookedTransformer is there with TransformerLens 3.9.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import mechmarkov as mm
from benchmarks.peers import NanoGPT, hooked_transformer, sample_a_step, train_one
from mechmarkov.training.data import Batches, sequence_length
from mechmarkov.training.fleet import cores, train_members
from mechmarkov.training.members import members_of
from mechmarkov.utils.threads import threads

# layers, positions, batch, width: the sizes of the papers' models, and how many models a fleet has here.
SIZES = [(1, 64, 16, 8), (1, 256, 16, 8), (1, 1024, 16, 8), (2, 100, 64, 16)]
FLEET = {64: 64, 256: 32, 1024: 8, 100: 16}
# Several chunks of data each, so that what is drawn ahead is used up.
STEPS = {64: 126, 256: 30, 1024: 9, 100: 20}


def recipe_of(layers: int, length: int, batch: int, width: int, steps: int) -> mm.Recipe:
    """Makkuva et al.'s model and optimiser at that size."""
    changes = {
        "model.n_layers": layers,
        "model.n_ctx": length,
        "model.d_model": width,
        "model.d_head": width,
        "data.batch": batch,
        "steps": steps,
        "checkpoints": f"{{every={steps}}}",
    }
    base = mm.load_recipe("binary-p05-q08-untied")
    return base.with_set([f"{key}={value}" for key, value in changes.items()])


def alternatives(
    size: tuple[int, int, int, int], models: int, steps: int, device: str
) -> dict[str, tuple[Callable[[], object], int]]:
    """What is timed, and how many model-steps it takes."""
    layers, length, batch, width = size
    recipe = recipe_of(*size, steps)
    source = mm.Binary(p=0.5, q=0.8)
    generator = torch.Generator().manual_seed(0)
    few = max(4, min(40, models * steps // 8))

    def fresh(_: int) -> torch.Tensor:
        return sample_a_step(source, batch, length + 1, generator).to(device)

    shared = source.sample(batch, length + 1, generator=generator).to(device)
    timed: dict[str, tuple[Callable[[], object], int]] = {
        "fleet": (
            lambda: train_members(members_of(recipe, range(models)), device=device, progress=False),
            models * steps,
        )
    }
    peers = {"HookedTransformer": hooked_transformer(recipe.decoder_config)}
    peers["nanoGPT-style"] = NanoGPT(layers, length, width, 2, norm=False)
    for name, model in peers.items():
        if model is not None:
            model.to(device)
            timed[name] = (train_one(model, fresh, few), few)
            timed[f"{name}, shared"] = (train_one(model, lambda _: shared, few), few)
    return timed


def time_alternatives(
    timed: dict[str, tuple[Callable[[], object], int]], repeats: int
) -> dict[str, list[float]]:
    """Milliseconds per model-step, the alternatives in turn, after one warm-up each."""
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for repeat in range(repeats + 1):
        for name, (run, count) in timed.items():
            began = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat:
                taken[name].append(1e3 * (time.perf_counter() - began) / count)
    return taken


def data_milliseconds(size: tuple[int, int, int, int], models: int, device: str) -> float:
    """Milliseconds of sampling per model-step, over two chunks."""
    recipe = recipe_of(*size, 1000)
    length = sequence_length(recipe.objective, size[1])
    batches = Batches(members_of(recipe, range(models)), length, torch.device(device))
    steps = 2 * batches.chunk_steps
    with threads(1):
        began = time.perf_counter()
        for step in range(steps):
            batches.at(step)
        if device != "cpu":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - began) / steps / models


def main() -> None:
    """Print a table a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=range(len(SIZES)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", type=int, default=None)
    parser.add_argument("--threads", type=int, default=cores(), help="of the peers")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{cores()} cores, peers with {options.threads} threads, {options.device}")
    for index in options.sizes:
        size = SIZES[index]
        models = options.models or FLEET[size[1]]
        timed = alternatives(size, models, STEPS[size[1]], options.device)
        taken = time_alternatives(timed, options.repeats)
        ours = taken["fleet"]
        print(f"layers {size[0]}, positions {size[1]}, batch {size[2]}, width {size[3]}: {models} models")
        for name, values in taken.items():
            ratio = statistics.median(v / o for v, o in zip(values, ours, strict=True))
            spread = f"({min(values):.2f} - {max(values):.2f})"
            print(f"  {statistics.median(values):9.3f} ms {spread:>20} {ratio:7.2f} x  {name}")
        data = data_milliseconds(size, models, options.device)
        print(f"  {data:9.3f} ms of data a model-step", flush=True)


if __name__ == "__main__":
    main()
