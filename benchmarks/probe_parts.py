"""Processor time of all probes by part: recording and each probe, of a model and of its nulls.

    nice python -m benchmarks.probe_parts [--only deep,large]

Each size is measured once, in a process of its own with one thread, and its table is written into
`benchmarks/README.md`. The large one takes about half an hour.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.probe import the_run
from benchmarks.timing import write_table

LARGE: dict[str, Any] = {
    "n_layers": 6,
    "n_heads": 8,
    "d_model": 256,
    "d_head": 32,
    "n_ctx": 512,
    "d_mlp": 1024,
    "d_vocab": 50,
    "act_fn": "gelu",
    "normalization_type": "LN",
    "positional_embedding_type": "standard",
}
TITLES = {
    "deep": "K = 20, four layers of eight heads, d = 128, T = 256",
    "large": "K = 50, six layers of eight heads, d = 256, T = 512, untrained",
}


def run_of(size: str) -> Any:
    """A run of that size: trained a little as in `benchmarks.probe`, or with fresh weights as GPT-2's."""
    import mechmarkov as mm
    from mechmarkov.models.config import DecoderConfig
    from mechmarkov.models.decoder import HookedDecoder
    from mechmarkov.models.init import initialise

    if size == "deep":
        return the_run("deep")[0]
    stack = HookedDecoder(DecoderConfig(**LARGE), n_models=1)
    initialise(stack, [0], scheme="gpt2", std=0.02)
    source = mm.DirichletChains(n_states=LARGE["d_vocab"], concentration=1.0)
    return mm.Run.from_model(stack[0], source=source)


def child(size: str) -> None:
    """Measure one size; print seconds by part, by whose they are, and the peak memory, as JSON."""
    import torch

    from mechmarkov.catalogue.probes import registered
    from mechmarkov.probing.probe import load_probe
    from mechmarkov.probing.recording import SCORES
    from mechmarkov.probing.subject import Subject, why_not
    from mechmarkov.utils.threads import threads

    torch.set_num_threads(1)
    run = run_of(size)
    seconds: dict[str, dict[str, float]] = {}
    subject = Subject.of(run, find=load_probe)
    probes = [one for one in map(load_probe, registered()) if not one.on_request]
    probes = [one for one in probes if why_not(one, subject) is None]
    subject.records = [quantity for one in probes for quantity in one.records]

    def timed(part: str, side: str, measure: Callable[[], object]) -> None:
        start = time.process_time()
        measure()
        seconds.setdefault(part, {})[side] = time.process_time() - start

    with threads(1):
        for side, of_side in (("model", subject), ("nulls", subject.null)):
            timed("recording", side, partial(of_side.recorded, SCORES))
            for probe in probes:
                has = probe.has_null(subject) if callable(probe.has_null) else probe.has_null
                if side == "model" or has:
                    timed(probe.name, side, partial(of_side.result, probe.name))
                    print(probe.name, side, seconds[probe.name][side], file=sys.stderr, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak": peak}))


def table(size: str) -> list[str]:
    """The table of one size."""
    command = [sys.executable, "-m", "benchmarks.probe_parts", "--child", size]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    lines = [f"| {TITLES[size]} | the model, s | its nulls, s |", "|---|---|---|"]
    for part, taken in found["seconds"].items():
        lines.append(f"| {part} | {taken['model']:.1f} | {taken.get('nulls', 0.0):.1f} |")
    sums = [sum(taken.get(side, 0.0) for taken in found["seconds"].values()) for side in ("model", "nulls")]
    lines.append(f"| all, {sum(sums):.0f} s, {found['peak']:.0f} MB | {sums[0]:.1f} | {sums[1]:.1f} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="deep,large", help="sizes, with commas between")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        raise SystemExit
    for size in options.only.split(","):
        write_table(f"benchmarks.probe_parts, {size}", lines := table(size))
        print("\n".join(lines))
