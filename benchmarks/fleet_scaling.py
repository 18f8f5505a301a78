"""How the cost of a fleet grows with models, steps and batch: fitted exponents, 1 being linear.

python -m benchmarks.fleet_scaling
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

import mechmarkov as mm
from mechmarkov.training.members import members_of
from mechmarkov.training.trainer import fit

SIZE = {"model.n_ctx": 64, "model.d_model": 8, "model.d_head": 8, "checkpoints": "{every=1000000}"}
GROWTH = {"models": (16, 32, 64, 128), "steps": (63, 126, 252, 504), "batch": (16, 32, 64, 128)}
START = {"models": 16, "steps": 63, "batch": 16}


def seconds(models: int, steps: int, batch: int) -> float:
    """Wall time of one stack."""
    changes = {**SIZE, "data.batch": batch, "steps": steps}
    recipe = mm.load_recipe("binary-p05-q08-untied").with_set([f"{k}={v}" for k, v in changes.items()])
    began = time.perf_counter()
    fit(members_of(recipe, range(models)))
    return time.perf_counter() - began


def exponent(sizes: Sequence[int], taken: Sequence[float]) -> float:
    """The slope of log time over log size."""
    return float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    seconds(**START)
    for name, sizes in GROWTH.items():
        rounds = [[seconds(**(START | {name: size})) for size in sizes] for _ in range(3)]
        taken = [statistics.median(column) for column in zip(*rounds, strict=True)]
        shown = ", ".join(f"{size}: {t:.2f} s" for size, t in zip(sizes, taken, strict=True))
        print(f"{name:>6}: exponent {exponent(sizes, taken):.2f}  ({shown})", flush=True)
