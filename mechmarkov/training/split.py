"""A fleet is split into stacks: by the shape of its members, and by the memory that they may take."""

import math
from collections.abc import Sequence

import torch

from mechmarkov.training.workload import Workload

MEMORY = 2_000_000_000  # bytes, for all stacks at once; on a GPU a share of what is free
SHARE_OF_GPU = 0.7


def budget_of(place: torch.device, largest: int, share: float = 1.0) -> int:
    """Bytes that training may take where nobody gives a limit; on the CPU at least those of one model.

    `share` is the part of a GPU that is this process's, where several train on it.
    """
    if place.type == "cpu":
        return max(MEMORY, largest)
    free, total = torch.cuda.mem_get_info(place)
    # What torch keeps of freed tensors is taken in the eyes of the driver, and free to us.
    reserved = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    return int(min(free + reserved, total * share) * SHARE_OF_GPU)


def split_fleet(
    works: Sequence[Workload], budget: int, *, at_once: int = 1, least: int = 1, most: int | None = None
) -> list[list[int]]:
    """Places of members, stack by stack: each shares a shape and all that train at once fit the budget.

    Args:
        works: The workload of each member.
        budget: Bytes.
        at_once: Stacks that train at the same time, into which a group is split.
        least: Tokens a step that a stack has at least, unless the group has fewer.
        most: Tokens a step that no stack of several members exceeds.

    Raises:
        ValueError: A single member is larger than the budget.
    """
    groups: dict[str, list[int]] = {}
    for place, work in enumerate(works):
        groups.setdefault(work.key, []).append(place)
    stacks = []
    for group in groups.values():
        first = works[group[0]]
        if first.bytes > budget:
            raise ValueError(
                f"memory is {budget / 1e6:.0f} MB, but one model of recipe {first.recipe.name!r} needs about "
                f"{first.bytes / 1e6:.0f} MB"
            )
        room = max(1, budget // at_once // first.bytes)
        if most is not None:
            room = min(room, max(1, most // first.tokens))
        worth = max(1, len(group) * first.tokens // least)
        n_stacks = max(math.ceil(len(group) / room), min(at_once, worth, len(group)))
        size = math.ceil(len(group) / n_stacks)
        stacks += [group[i : i + size] for i in range(0, len(group), size)]
    return stacks
