"""How much memory probing takes: a trajectory of many checkpoints, or many runs and the page of all of them.

    python tests/robustness/load.py checkpoints 1000 [--probes behaviour,attention]
    python tests/robustness/load.py runs 64 [--probes behaviour,attention]

Prints the peak of resident memory in MB (VmHWM, the imports included) and the seconds it took.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import mechmarkov as mm
from mechmarkov.runs import Run, example


def trajectory(count: int) -> Run:
    """The bundled walk with so many checkpoints: its own, and straight lines between them."""
    run = example("walk")
    kept = run.steps.double().numpy()
    steps = np.arange(count)
    where = np.interp(steps, np.linspace(0, count - 1, len(kept)), np.arange(len(kept)))
    low = torch.from_numpy(np.floor(where).astype(int)).clamp(max=len(kept) - 2)
    share = torch.from_numpy(where).float() - low
    states = {
        name: value
        if len(value) == 1
        else torch.lerp(value[low], value[low + 1], share.view(-1, *[1] * (value.ndim - 1)))
        for name, value in run.states.items()
    }
    return Run(
        model=run.model,
        source=run.source,
        objective=run.objective,
        trainable=run.trainable,
        recipe=run.recipe,
        steps=torch.from_numpy(steps),
        states=states,
    )


def single(seed: int) -> Run:
    """The bundled walk, its weights moved a little."""
    run = example("walk")
    generator = torch.Generator().manual_seed(seed)
    states = {
        name: value[-1:] + 0.01 * torch.randn(value[-1:].shape, generator=generator)
        for name, value in run.states.items()
    }
    return Run(
        model=run.model, source=run.source, objective=run.objective, steps=run.steps[-1:], states=states
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["checkpoints", "runs"])
    parser.add_argument("count", type=int)
    parser.add_argument("--probes")
    options = parser.parse_args()
    names = options.probes.split(",") if options.probes else None
    torch.set_num_threads(1)
    began = time.perf_counter()
    if options.what == "checkpoints":
        result = mm.probe(trajectory(options.count), names, steps="all")
        done = {name: outcome.data.sizes.get("step", 1) for name, outcome in result.outcomes.items()}
        assert not result.failed, result.failed
        assert done["behaviour"] == options.count
    else:
        results = {f"run {seed}": mm.probe(single(seed), names) for seed in range(options.count)}
        assert not any(result.failed for result in results.values())
        with tempfile.TemporaryDirectory() as folder:
            page = mm.compare(results, Path(folder) / "report.html").read_text()
        assert all(name in page for name in results)
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    print(f"{options.what} {options.count} {peak:.0f} MB {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
