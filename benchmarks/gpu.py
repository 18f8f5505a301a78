"""What a whole question takes on a GPU: the phase diagram's 400 runs, and the reference checkpoint.

    python -m benchmarks.gpu [--device cuda]

The sweep of `make phase`, in stacks of 64 runs; then the reference of the unigram-trap papers trained, and
every probe of it, recorded on the device and on the processor. Wall seconds, single runs. The table is
written into `benchmarks/README.md`; `make gpu` runs this behind the fleet's own table.
"""

import argparse
import tempfile
from pathlib import Path

import mechmarkov as mm
from benchmarks.fleet import seconds_of
from benchmarks.timing import device_name, write_table
from mechmarkov.sweeps.run import sweep


def main() -> None:
    """Measure the table, print it, and write it into the README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--sweep", default="binary-phase", help="by name or file")
    parser.add_argument("--recipe", default="makkuva-text", help="by name or file")
    options = parser.parse_args()
    device = options.device
    run: list[mm.Run] = []
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            f"sweep `{options.sweep}`": lambda: sweep(options.sweep, Path(folder) / "sweep", device=device),
            f"`{options.recipe}`, trained": lambda: run.append(
                mm.train(options.recipe, seed=0, device=device)
            ),
            "the same, every probe, recorded there": lambda: mm.probe(run[0], device=device),
            "the same, every probe, on the processor": lambda: mm.probe(run[0]),
        }
        table = [f"| wall seconds | {device_name(device)} |", "|---|---|"]
        for what, work in rows.items():
            table.append(f"| {what} | {seconds_of(work):.1f} |")
            print(table[-1], flush=True)
    write_table("benchmarks.gpu", table)


if __name__ == "__main__":
    main()
