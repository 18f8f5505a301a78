"""Training in stacks of half the size each time that memory runs out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechmarkov.runs.run import Run
from mechmarkov.training.fleet import Diverged, budget_of, train_members
from mechmarkov.training.members import Member
from mechmarkov.training.memory import member_bytes
from mechmarkov.utils.device import pick_device
from mechmarkov.utils.memory import with_less_memory


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
    budget = memory or budget_of(pick_device(how.get("device", "auto")), max(sizes, default=0))
    first = min(budget, sum(sizes))  # half of more than the whole fleet takes would fail again

    def train(budget: int) -> list[Run | Diverged]:
        if budget == first:
            return train_members(members, paths=paths, memory=memory, **how)
        for folder in {path.parent for path in paths or ()}:
            for partial in folder.glob("partial*.pt"):
                partial.unlink(missing_ok=True)
        return train_members(members, paths=paths, memory=budget, **how)

    return with_less_memory(
        train,
        first,
        divisor=2,
        smallest=max(sizes, default=0),
        message=lambda budget: f": again in stacks of at most {budget / 1e6:.0f} MB",
    )
