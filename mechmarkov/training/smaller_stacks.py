"""Training that takes smaller stacks where memory is out, and says so."""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mechmarkov.runs.run import Run
from mechmarkov.training.fleet import MEMORY, Diverged, train_members
from mechmarkov.training.members import Member
from mechmarkov.training.memory import member_bytes
from mechmarkov.utils.memory import is_out_of_memory


def train_as_it_fits(
    members: Sequence[Member], *, paths: Sequence[Path] | None = None, memory: int | None = None, **how: Any
) -> list[Run | Diverged]:
    """`train_members`; each time that memory runs out, again in stacks of half the size.

    What the interrupted stacks left to be resumed is of their size, and is deleted.

    Raises:
        MemoryError, RuntimeError: If memory is out for a single model too.
        RunFileError, ValueError: As `train_members`.
    """
    sizes = [member_bytes(member.recipe) for member in members]
    while True:
        try:
            return train_members(members, paths=paths, memory=memory, **how)
        except (MemoryError, RuntimeError) as error:
            smaller = min(memory or MEMORY, sum(sizes)) // 2
            if not is_out_of_memory(error) or smaller < max(sizes):
                raise
        # Outside of `except`, so that what failed is no longer held by its traceback.
        memory = smaller
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for folder in {path.parent for path in paths or ()}:
            for left in folder.glob("partial*.pt"):
                left.unlink(missing_ok=True)
        print(f"out of memory: again in stacks of at most {memory / 1e6:.0f} MB", file=sys.stderr)
