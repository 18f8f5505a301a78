"""Training a fleet beside a fleet in JAX, the peer that somebody with many tiny models would pick.

    python -m venv build/jax && build/jax/bin/pip install jax==0.10.0 equinox==0.13.8 optax==0.2.8
    python -m benchmarks.jax_fleet --python build/jax/bin/python [--sizes 0 1 2 3]

Both train the same models from the same start; their losses over ten shared batches are compared before
anything is timed. JAX has the faster of two: one process with all threads, or one a core. Compiling is left
out for both. It chooses by itself how it computes attention, and whether models go one after the other.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import mechmarkov as mm
from benchmarks.fleet import FLEET, SIZES, STEPS, Size, fleet_seconds, recipe_of
from benchmarks.timing import write_table
from mechmarkov.utils.threads import cores

P, Q = 0.5, 0.8
BATCHES = 10
SAME = 1e-4  # nats between two losses after ten steps: float32, summed in another order


def start(size: Size, models: int, folder: Path) -> tuple[Path, list[float]]:
    """A start and ten batches as a file, and the losses of one model that PyTorch trains on them."""
    _, length, batch, _ = size
    stack = mm.HookedDecoder(recipe_of(*size, 1).decoder_config, n_models=models)
    mm.models.initialise(stack, range(models), scheme="gpt2", std=0.02)
    source, generator = mm.Binary(p=P, q=Q), torch.Generator().manual_seed(0)
    shared = torch.stack([source.sample(batch, length + 1, generator=generator) for _ in range(BATCHES)])
    arrays = {name: value.numpy() for name, value in stack.state_dict().items()}
    path = folder / f"{length}-{models}.npz"
    np.savez(path, shared=shared.numpy().astype(np.int32), **arrays)
    model = stack[0]
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-3)
    losses = []
    for states in shared:
        loss = F.cross_entropy(model(states[:, :-1]).flatten(0, 1), states[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return path, losses


class Peers:
    """Processes of `jax_peer.py` that wait to be told to train."""

    def __init__(self, python: str, task: dict[str, Any], processes: int) -> None:
        threads = {"JAX_PEER_THREADS": "1"} if processes > 1 else {}
        command = [python, str(Path(__file__).parent / "jax_peer.py"), json.dumps(task)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._processes = []
        for index in range(processes):
            one = subprocess.Popen(command, env=os.environ | threads, **pipes)
            if processes > 1 and hasattr(os, "sched_setaffinity"):
                available = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(one.pid, {available[index % len(available)]})
            self._processes.append(one)
        self.ready = [json.loads(self._line(one)) for one in self._processes]

    def seconds(self, data: str) -> float:
        """Seconds until every process has trained its models, all at once."""
        for one in self._processes:
            assert one.stdin is not None
            one.stdin.write(f"{data}\n")
            one.stdin.flush()
        return max(float(self._line(one)) for one in self._processes)

    def end(self) -> None:
        """End the processes."""
        for one in self._processes:
            assert one.stdin is not None
            one.stdin.close()
            one.wait()

    @staticmethod
    def _line(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"JAX ended with exit code {process.wait()}: see its message above")
        return line


def row(python: str, size: Size, repeats: int, folder: Path) -> tuple[str, str]:
    """A row of the table, and the versions of the peer.

    Raises:
        ValueError: The two do not have the same losses.
    """
    layers, length, batch, _ = size
    models, steps = FLEET[length], STEPS[length]
    few = max(BATCHES, steps // 6)  # of a scan every step takes as long
    recipe = recipe_of(*size, steps)
    with ExitStack() as stack:
        peers: dict[str, tuple[Peers, int]] = {}
        for name, processes in (("all threads", 1), ("one a core", cores())):
            path, losses = start(size, models // processes, folder)
            sizes = {"layers": layers, "length": length, "batch": batch, "steps": few, "p": P, "q": Q}
            peer = Peers(python, {"arrays": str(path), **sizes}, processes)
            stack.callback(peer.end)
            apart = max(abs(x - y) for x, y in zip(losses, peer.ready[0]["losses"], strict=True))
            if apart > SAME:
                raise ValueError(
                    f"{size}: losses are up to {apart:.2g} nats apart, expected at most {SAME:g}"
                )
            peers[name] = peer, processes * (models // processes)
        fleet_seconds(recipe, models, "cpu")
        ours: list[float] = []
        theirs: dict[tuple[str, str], list[float]] = {}
        for _ in range(repeats):
            ours.append(1e3 * fleet_seconds(recipe, models, "cpu") / (models * steps))
            for name, (peer, trained) in peers.items():
                for data in ("drawn", "shared"):
                    taken = 1e3 * peer.seconds(data) / (trained * few)
                    theirs.setdefault((name, data), []).append(taken)
        ready = {name: peer.ready[0] for name, (peer, _) in peers.items()}
    cells = [f"{size}", str(models), f"{statistics.median(ours):.3g} ({min(ours):.3g} to {max(ours):.3g})"]
    for data in ("drawn", "shared"):
        best = min(peers, key=lambda name: statistics.median(theirs[name, data]))
        ratios = [their / our for their, our in zip(theirs[best, data], ours, strict=True)]
        cells.append(f"{statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f}), {best}")
    how = ready[best]
    cells += [how["way"], f"{how['compile']:.0f} s"]
    return f"| {' | '.join(cells)} |", how["versions"]


def main() -> None:
    """Measure the table, print it, and write it into the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="The Python of an environment with JAX.")
    parser.add_argument("--sizes", type=int, nargs="*", default=range(len(SIZES)))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows, versions = [], ""
    with tempfile.TemporaryDirectory() as folder:
        for index in options.sizes:
            line, versions = row(options.python, SIZES[index], options.repeats, Path(folder))
            rows.append(line)
            print(line, flush=True)
    named = [f"{versions}, data drawn", "data shared", "how", "compiling, of both"]
    head = ["layers, positions, batch, width", "models", "fleet on the processor, ms", *named]
    write_table("benchmarks.jax_fleet", [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows])


if __name__ == "__main__":
    main()
