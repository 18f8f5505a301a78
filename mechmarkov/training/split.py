"""A fleet is split into stacks: by the shape of its members, and by the memory that they may take."""

import math
from collections.abc import Sequence

import torch

from mechmarkov.training.workload import Workload
from mechmarkov.utils.text import format_bytes

MEMORY = 2_000_000_000  # bytes, for all stacks at once; on a GPU a share of what is free
SHARE_OF_GPU = 0.7


def budget_of(place: torch.device, largest: int, share: float = 1.0) -> int:
    """Returns how many bytes training may take where nobody gives a limit.

    Args:
        place: On the CPU 2 GB, or one model where that is more; on a GPU 70 % of what is free.
        largest: The bytes of the largest model.
        share: The part of a GPU that is this process's, where several train on it.

    Example:
        >>> budget_of(torch.device("cpu"), 10), budget_of(torch.device("cpu"), 3 * 10**9)
        (2000000000, 3000000000)
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
    """Split models into stacks: each shares a shape, and all that train at once fit the budget.

    Args:
        works: The workload of each model.
        budget: Bytes for all stacks that train at once.
        at_once: Stacks that train at the same time, into which a group is split.
        least: Tokens a step that a stack has at least, unless the group has fewer.
        most: Tokens a step that no stack of several models exceeds.

    Returns:
        For each stack the places of its models in `works`.

    Raises:
        ValueError: A single model is larger than the budget.

    Example:
        >>> from mechmarkov.training.recipe import load_recipe
        >>> from mechmarkov.training.workload import workload_of
        >>> work = workload_of(load_recipe("walk-k6-half"))
        >>> split_fleet([work] * 5, budget=2 * work.bytes)
        [[0, 1], [2, 3], [4]]
    """
    groups: dict[str, list[int]] = {}
    for place, work in enumerate(works):
        groups.setdefault(work.key, []).append(place)
    stacks = []
    for group in groups.values():
        first = works[group[0]]
        if first.bytes > budget:
            raise ValueError(
                f"memory is {format_bytes(budget)}, but one model of recipe {first.recipe.name!r} needs "
                f"about {format_bytes(first.bytes)}"
            )
        room = max(1, budget // at_once // first.bytes)
        if most is not None:
            room = min(room, max(1, most // first.tokens))
        worth = max(1, len(group) * first.tokens // least)
        n_stacks = max(math.ceil(len(group) / room), min(at_once, worth, len(group)))
        size = math.ceil(len(group) / n_stacks)
        stacks += [group[i : i + size] for i in range(0, len(group), size)]
    return stacks
