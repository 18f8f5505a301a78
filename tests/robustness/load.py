"""How much memory probing takes: a trajectory of many checkpoints, or many runs and the page of all of them.

    python tests/robustness/load.py checkpoints 1000 [--probes behaviour,attention]
    python tests/robustness/load.py runs 64 [--probes behaviour,attention]
    python tests/robustness/load.py plugins 32
    python tests/robustness/load.py states 4096 [--probes behaviour,attention]

Plugins are probes of other packages: half of them raise, the others measure 10 MB each and are saved.
States are those of a circle, and the model is untrained. Prints the peak of resident memory in MB (VmHWM, the
imports included) and the seconds it took.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import mechmarkov as mm
from mechmarkov.probing import Probe, Score, Subject
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
        config=run.config,
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
    last = {name: value[-1:] for name, value in run.states.items()}
    noise = {name: 0.01 * torch.randn(value.shape, generator=generator) for name, value in last.items()}
    states = {name: value + noise[name] for name, value in last.items()}
    return Run(
        config=run.config, source=run.source, objective=run.objective, steps=run.steps[-1:], states=states
    )


def large_probe(index: int) -> Probe:
    """A probe of another package with 10 MB of data, or, for an odd index, one that raises."""

    def measure(subject: Subject) -> xr.Dataset:
        if index % 2:
            raise ZeroDivisionError("no luck")
        values = np.full((len(subject.coordinates), 1_250_000), float(index))
        return xr.Dataset({"value": ((subject.axis, "cell"), values)}, {subject.axis: subject.coordinates})

    def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
        return {"mean": Score(float(data["value"].mean()), "")}

    return Probe(f"plugin-{index}", "Large?", "-", lambda _: None, measure, scores, lambda *_: [],
                 lambda _: [], has_null=lambda _: False)  # fmt: skip


def plugins(count: int) -> None:
    """So many probes of other packages, asked of one run and saved."""
    result = mm.probe(example("walk"), [large_probe(index) for index in range(count)], sequences=4)
    assert len(result) == len(result.failed) == count // 2
    with tempfile.TemporaryDirectory() as folder:
        result.save(folder)


def states(count: int, names: list[str] | None) -> None:
    """A chain of so many states, the most that a source may have."""
    shape = {
        "d_model": 16, "d_head": 8, "n_heads": 2, "n_ctx": 32, "n_layers": 1, "d_mlp": 32, "act_fn": "relu",
    }  # fmt: skip
    model = mm.HookedDecoder(mm.DecoderConfig(d_vocab=count, **shape))
    run = Run.from_model(model, source=mm.Circle(n_states=count, p=0.7))
    result = mm.probe(run, names)
    assert not result.failed, result.failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["checkpoints", "runs", "plugins", "states"])
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
    elif options.what == "plugins":
        plugins(options.count)
    elif options.what == "states":
        states(options.count, names)
    else:
        results = {f"run {seed}": mm.probe(single(seed), names) for seed in range(options.count)}
        assert not any(result.failed for result in results.values())
        with tempfile.TemporaryDirectory() as folder:
            page = mm.write_comparison(results, Path(folder) / "report.html").read_text("utf-8")
        assert all(name in page for name in results)
    peak = int(Path("/proc/self/status").read_text("utf-8").split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    print(f"{options.what} {options.count} {peak:.0f} MB {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
