"""`mm.probe` at the sizes people train: processor seconds beyond imports, memory, exponents.

    python -m benchmarks.probe [--repeats 5] [--only walk,reference] [--exponents]

Each measurement is a process of its own with one thread. "First" begins without kept nulls, "second" with
those that the first has left. The peer is what a notebook does for the first measures alone: a loop of
`run_with_cache` over the same sequences, then loss, KL to the exact bigram and attention by lag. The table is
written into `benchmarks/README.md`.
"""

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import write_table

LOOP_ELEMENTS = 1 << 21  # elements of the attention that a pass of the loop holds

# A recipe's fields that differ, and the steps that are probed.
SIZES: dict[str, dict[str, Any]] = {
    "walk": {"example": "walk", "title": "bundled walk: K = 6, T = 97, one head"},
    "induction": {"example": "induction", "steps": "all", "title": "bundled induction heads, 20 checkpoints"},
    "reference": {
        "recipe": "makkuva-text",
        "fields": {"steps": 60},
        "title": "unigram-trap reference: one layer, d = 8, T = 1024, K = 2",
    },
    "wide": {
        "recipe": "in-context-k3-shortformer",
        "fields": {
            "steps": 4,
            "source": {"kind": "dirichlet_chains", "n_states": 50, "concentration": 1.0},
        },
        "model": {"n_ctx": 256, "n_heads": 4, "d_model": 32},
        "title": "K = 50, two layers of four heads, T = 256",
    },
    "deep": {
        "recipe": "in-context-k3-shortformer",
        "fields": {
            "steps": 4,
            "source": {"kind": "dirichlet_chains", "n_states": 20, "concentration": 1.0},
            "init": {"scheme": "gpt2", "std": 0.02},
        },
        "model": {
            "n_layers": 4,
            "n_heads": 8,
            "d_model": 128,
            "d_head": 16,
            "attn_scale": 4.0,
            "n_ctx": 256,
            "attn_only": False,
            "d_mlp": 512,
            "act_fn": "gelu",
            "positional_embedding_type": "standard",
        },
        "title": "GPT-2's shape: K = 20, four layers of eight heads, d = 128, T = 256",
    },
    "trajectory": {
        "recipe": "walk-k6-half",
        "fields": {"steps": 999, "checkpoints": {"every": 1}},
        "steps": "all",
        "title": "the walk with 1000 checkpoints",  # seven minutes each time
    },
}

# Shapes of one axis that doubles while the others stay: random weights of one layer, one head, T = 64, K = 3.
BASE = {"T": 64, "K": 3, "layers": 1, "heads": 1, "checkpoints": 1}
DOUBLED = {axis: [value << i for i in range(3)] for axis, value in BASE.items()}


def seconds() -> tuple[float, float]:
    """User and system seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def the_run(name: str) -> tuple[Any, Any]:
    """A run of a size and the steps that are probed; trained here where it is not bundled."""
    import mechmarkov as mm
    from mechmarkov.training.recipe import Recipe, load_recipe

    size = SIZES[name]
    steps = size.get("steps", "last")
    if "example" in size:
        return mm.example(size["example"]), steps
    data = load_recipe(size["recipe"]).to_data() | size["fields"]
    data["model"] |= size.get("model", {})
    return mm.train(Recipe.from_data(data), seed=0), steps


def a_shape(T: int, K: int, layers: int, heads: int, checkpoints: int) -> Any:
    """A run of random weights at several steps."""
    import torch

    import mechmarkov as mm
    from mechmarkov.models.config import DecoderConfig
    from mechmarkov.models.decoder import HookedDecoder
    from mechmarkov.models.init import initialise

    config = DecoderConfig(
        n_layers=layers, n_heads=heads, n_ctx=T, d_model=16, d_head=8, d_vocab=K, act_fn="gelu", d_mlp=32
    )
    P = torch.rand(K, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    source = mm.Chain(P=(P / P.sum(1, keepdim=True)).tolist())
    stack = HookedDecoder(config, n_models=checkpoints)
    initialise(stack, range(checkpoints), scheme="normal", std=0.2)
    runs = [mm.Run.from_model(stack[i], source=source, step=i) for i in range(checkpoints)]
    return mm.Run.joined(runs) if checkpoints > 1 else runs[0]


def loop(run: Any, steps: Any) -> None:
    """The first measures by a plain loop over checkpoints and sequences."""
    import torch

    from mechmarkov.probing.subject import Subject

    subject = Subject.of(run, steps)
    batch, law = subject.batch, torch.from_numpy(subject.exact[[*subject.exact][-1]])
    length = batch.tokens.shape[1]
    each = max(1, LOOP_ELEMENTS // (subject.config.n_heads * length**2))
    lag = torch.arange(length)[:, None] - torch.arange(length)
    for step in subject.coordinates:
        model, found = run.model(step=step), []
        for start in range(0, len(batch.tokens), each):
            some = slice(start, start + each)
            with torch.no_grad():
                logits, cache = model.run_with_cache(batch.tokens[some])
            predicted = subject.objective.predict(logits[:, batch.read].double()).clamp_min(1e-12).log()
            loss = -predicted.gather(-1, batch.targets[some, :, None]).mean()
            kl = (law[some] * (law[some].clamp_min(1e-12).log() - predicted)).sum(-1).mean()
            for layer in range(subject.config.n_layers):
                pattern = cache["pattern", layer].mean(0)
                by_lag = [pattern[:, lag == back].mean(-1) for back in range(min(length, 8))]
                found.append((loss, kl, torch.stack(by_lag), pattern.clamp_min(1e-12).log().sum()))


def child(task: dict[str, Any]) -> None:
    """One measurement: print seconds, system seconds and peak memory beyond the imports, as JSON."""
    import torch
    import torch.fx.experimental.symbolic_shapes  # with sympy: torch imports it at its first vmap

    import mechmarkov as mm
    from mechmarkov.catalogue.probes import registered
    from mechmarkov.probing.probe import load_probe
    from mechmarkov.runs.run import Run

    torch.set_num_threads(1)
    run: Run = mm.load(task["file"])
    for name in registered():
        load_probe(name)
    gc.collect()  # what imports left is theirs
    repeats = 2 if task["what"] == "attention" else 1
    for _ in range(repeats):  # of attention, the second call in one process
        start = seconds()
        if task["what"] == "loop":
            loop(run, task["steps"])
        else:
            mm.probe(run, ["attention"] if task["what"] == "attention" else None, steps=task["steps"])
        user, system = (after - before for after, before in zip(seconds(), start, strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": user + system, "system": system, "peak": peak}))


def measured(file: Path, steps: Any, what: str, cache: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    task = {"file": str(file), "steps": steps, "what": what}
    environment = os.environ | {"MECHMARKOV_CACHE": cache}
    command = [sys.executable, "-m", "benchmarks.probe", "--child", json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(name: str, file: Path, steps: Any, repeats: int) -> str:
    """A row of the table: medians, with the lowest and highest of the second probe."""
    found: dict[str, list[dict[str, float]]] = {what: [] for what in ("first", "second", "loop")}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for what in found:
                found[what].append(measured(file, steps, "loop" if what == "loop" else "all", cache))
    middle = {
        what: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        for what, runs in found.items()
    }
    taken = [one["seconds"] for one in found["second"]]
    peak = max(one["peak"] for one in found["first"] + found["second"])
    share = middle["second"]["system"] / middle["second"]["seconds"]
    return (
        f"| {SIZES[name]['title']} | {middle['first']['seconds']:.1f} | {middle['second']['seconds']:.1f} "
        f"({min(taken):.1f} to {max(taken):.1f}, {repeats}) | {share:.0%} | {peak:.0f} "
        f"| {middle['loop']['seconds']:.1f} |"
    )


def exponents(folder: Path) -> str:
    """How processor time grows with each axis: the slope of its logarithm over two doublings."""
    slopes = []
    for axis, values in DOUBLED.items():
        taken = []
        for value in values:
            file = folder / f"{axis}-{value}.pt"
            a_shape(**BASE | {axis: value}).save(file)
            taken.append(measured(file, "all", "all", "off")["seconds"])
        slopes.append(f"{axis} {np.polyfit(np.log(values), np.log(taken), 1)[0]:.2f}")
    return "Exponents of processor time, nulls included: " + ", ".join(slopes) + "."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(SIZES), help="sizes, with commas between")
    parser.add_argument("--exponents", action="store_true", help="also time doubled shapes")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        raise SystemExit
    table = [
        "| processor seconds beyond imports | first | second (spread, times) | system | MB | cache loop |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        for name in options.only.split(","):
            run, steps = the_run(name)
            run.save(folder / f"{name}.pt")
            table.append(row(name, folder / f"{name}.pt", steps, options.repeats))
            print(table[-1], flush=True)
        walk, steps = the_run("walk")
        walk.save(folder / "walk.pt")
        cache = str(folder / "cache")
        file = folder / "walk.pt"
        taken = [measured(file, steps, "attention", cache)["seconds"] for _ in range(options.repeats)]
        table += ["", f'`mm.probe(walk, ["attention"])`, the second call: {statistics.median(taken):.2f} s.']
        table += ["", exponents(folder)] if options.exponents else []
    write_table("benchmarks.probe", table)
    print("\n".join(table))
