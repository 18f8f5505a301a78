"""Training a fleet beside loops of HookedTransformer and of a nanoGPT-style module, in one run.

    python -m benchmarks.fleet [--sizes 0 1 2 3] [--device cpu]

Milliseconds per model-step of the whole machine, data and optimiser included, and how many times slower
each peer is. On a CPU a peer trains as somebody with several models would: one process a core, each with
one thread, all at once. Peers sample with one multinomial call a time step, as people do; "shared" trains
on one batch for ever, so that data cost nothing. HookedTransformer is there with TransformerLens 3.9.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import Manager, get_context
from threading import Barrier

import torch

import mechmarkov as mm
from benchmarks.peers import NanoGPT, hooked_transformer, sample_a_step, train_one
from benchmarks.timing import device_name, write_table
from mechmarkov.objectives import sequence_length
from mechmarkov.training.data import Batches
from mechmarkov.training.train import train_members
from mechmarkov.training.workload import members_of
from mechmarkov.utils.threads import cores, threads

Size = tuple[int, int, int, int]

PEERS = ("HookedTransformer", "nanoGPT-style")
# layers, positions, batch, width: the sizes of the papers' models, and how many models a fleet has here.
SIZES = [(1, 64, 16, 8), (1, 256, 16, 8), (1, 1024, 16, 8), (2, 100, 64, 16)]
FLEET = {64: 64, 256: 32, 1024: 8, 100: 16}
# Whole chunks of data, so that what is drawn ahead is used up; starting takes a hundredth of them.
STEPS = {64: 504, 256: 120, 1024: 36, 100: 80}


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


def peer_seconds(
    size: Size, name: str, shared: bool, steps: int, device: str, together: Barrier | None = None
) -> float:
    """Seconds of a loop of one peer, after one warm-up; it begins when all processes are ready."""
    layers, length, batch, width = size
    source, generator = mm.Binary(p=0.5, q=0.8), torch.Generator().manual_seed(0)
    model = (
        NanoGPT(layers, length, width, 2, norm=False)
        if name == "nanoGPT-style"
        else hooked_transformer(recipe_of(*size, steps).decoder_config)
    )
    assert model is not None
    kept = source.sample(batch, length + 1, generator=generator).to(device)

    def draw(_: int) -> torch.Tensor:
        return kept if shared else sample_a_step(source, batch, length + 1, generator).to(device)

    model.to(device)
    train_one(model, draw, 2)()
    run = train_one(model, draw, steps)
    if together is not None:
        together.wait()
    return seconds_of(run)


def seconds_of(run: Callable[[], object]) -> float:
    """Wall time of a call, and of what it has left a GPU to do."""
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def in_every_core(executor: ProcessPoolExecutor, together: Barrier, job: partial[float]) -> float:
    """Seconds until a job has ended on every core, all at once."""
    started = [executor.submit(job, together=together) for _ in range(cores())]
    return max(each.result() for each in started)


def model_steps(size: Size, models: int, device: str, repeats: int) -> dict[str, list[float]]:
    """Milliseconds per model-step of the whole machine, the alternatives in turn."""
    steps = STEPS[size[1]]
    recipe = recipe_of(*size, steps)
    few = max(4, min(40, models * steps // 8))
    names = ["nanoGPT-style"] if hooked_transformer(recipe.decoder_config) is None else PEERS
    at_once = cores() if device == "cpu" else 1
    taken: dict[str, list[float]] = {}
    with (
        Manager() as manager,
        ProcessPoolExecutor(cores(), get_context("spawn"), torch.set_num_threads, (1,)) as executor,
    ):
        together = manager.Barrier(cores())
        for repeat in range(repeats + 1):  # the first is a warm-up
            found = {"fleet": fleet_seconds(recipe, models, device) / (models * steps)}
            for name, shared in product(names, (False, True)):
                job = partial(peer_seconds, size, name, shared, few, device)
                seconds = job() if device != "cpu" else in_every_core(executor, together, job)
                found[f"{name}, shared" if shared else name] = seconds / (few * at_once)
            if repeat:
                for name, value in found.items():
                    taken.setdefault(name, []).append(1e3 * value)
    return taken


def fleet_seconds(recipe: mm.Recipe, models: int, device: str) -> float:
    """Seconds of a training of so many models."""
    return seconds_of(lambda: train_members(members_of(recipe, range(models)), device=device, progress=False))


def data_milliseconds(size: tuple[int, int, int, int], models: int, device: str) -> float:
    """Milliseconds of sampling per model-step of the whole machine, over two chunks."""
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
        # On a CPU each process draws for its own models.
        at_once = cores() if device == "cpu" else 1
        return 1e3 * (time.perf_counter() - began) / steps / models / at_once


def row(size: Size, models: int, device: str, repeats: int) -> str:
    """A row of the table: the fleet's milliseconds, and how many times that each peer takes."""
    taken = model_steps(size, models, device, repeats)
    ours = taken.pop("fleet")
    data = data_milliseconds(size, models, device)
    cells = [f"{size}", str(models), f"{statistics.median(ours):.3g} ({min(ours):.3g} to {max(ours):.3g})"]
    for name in (f"{peer}{what}" for peer in PEERS for what in ("", ", shared")):
        ratios = [theirs / our for theirs, our in zip(taken.get(name, []), ours, strict=False)]
        spread = f" ({min(ratios):.1f} to {max(ratios):.1f})" if ratios else ""
        cells.append(f"{statistics.median(ratios):.1f}x{spread}" if ratios else "–")
    cells.append(f"{data / statistics.median(ours):.0%}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure the table, print it, and write it into the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=range(len(SIZES)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    peers = [f"{peer}{what}" for peer in PEERS for what in ("", ", shared")]
    ours = f"fleet on {device_name(options.device)}, ms"
    head = ["layers, positions, batch, width", "models", ours, *peers, "data, of a step"]
    table = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for index in options.sizes:
        size = SIZES[index]
        models = options.models or FLEET[size[1]]
        table.append(row(size, models, options.device, options.repeats))
        print(table[-1], flush=True)
    write_table(f"benchmarks.fleet, {options.device}", table)


if __name__ == "__main__":
    main()
