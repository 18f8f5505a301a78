"""`mechmarkov probe` and `--help` as whole processes, beside a bare import and a plain cache loop.

    python -m benchmarks.probe [--repeats 5]

Prints wall seconds and peak memory of each process, in turn. The bare import is what any tool on
TransformerLens pays; the plain loop is what a notebook does for one of the three probes: run_with_cache over
the same sequences, once for the run and once for each of 24 fresh models.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PLAIN = """
import torch, transformer_lens, mechmarkov as mm
torch.set_num_threads(1)
run = mm.example("walk")
tokens = run.source.sample(512, 97, generator=torch.Generator().manual_seed(0))
tokens = torch.cat([tokens[:, :-1], torch.full((512, 1), 6)], dim=1)
model = run.decoder()
model.run_with_cache(tokens)
for _ in range(24):
    model.run_with_cache(tokens[:128])
"""


def measure(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak memory (MB) of a process."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command} ended with {child.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    mechmarkov = shutil.which("mechmarkov") or os.path.join(os.path.dirname(sys.executable), "mechmarkov")
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "import torch, transformer_lens": [sys.executable, "-c", "import torch, transformer_lens"],
            "mechmarkov probe (bundled run)": [mechmarkov, "probe", "--out", folder],
            "plain run_with_cache loop": [sys.executable, "-c", PLAIN],
            "mechmarkov --help": [mechmarkov, "--help"],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for repeat in range(options.repeats + 1):
            for name, command in commands.items():
                result = measure(command)
                if repeat:  # the first round warms the disk
                    found[name].append(result)
    base = statistics.median(seconds for seconds, _ in found["import torch, transformer_lens"])
    for name, results in found.items():
        wall = statistics.median(seconds for seconds, _ in results)
        peak = max(megabytes for _, megabytes in results)
        print(f"{wall:7.2f} s  {wall - base:+7.2f} s beyond the import  {peak:7.0f} MB  {name}")
