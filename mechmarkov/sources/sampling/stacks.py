"""Where a stack's random sequences come from: a generator a member, or counter-based numbers.

A member's sequences are those it would train on by itself. On a CPU each member has a `torch.Generator`. On a
GPU that would be launches for every member: numbers are counter-based there (`Streams`), and the data of all
members are drawn at once. The two give other sequences of the same law.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.source import Source
from mechmarkov.sources.circle import Circle, walks
from mechmarkov.sources.order_k import OrderK
from mechmarkov.sources.sampling.histories import MAX_MAPPED_HISTORIES, sample_histories
from mechmarkov.sources.sampling.paths import MAX_ENTRIES_GPU, sample_paths
from mechmarkov.sources.sampling.streams import Streams

# A small batch costs as much as a larger one, so that many steps are drawn at once. With generators how many
# follows only from the recipe, or a member's data would depend on its neighbours.
CHUNK_TOKENS = 1 << 16
MAX_COUNTED_STEPS = 64


class Generators:
    """One generator a member of a stack of models: as many draws as members.

    Args:
        sources: The members' sources.
        seeds: The members' seeds.
        length: The number of states of a sequence.
        device: Where sequences are made.
    """

    def __init__(
        self, sources: Sequence[Source], seeds: Sequence[int], length: int, device: torch.device
    ) -> None:
        self._sources, self._length, self._device = sources, length, device
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def steps_at_once(self, batch: int) -> int:
        """Returns for how many steps of that many sequences to draw at once."""
        return max(1, CHUNK_TOKENS // (batch * self._length))

    def draw(self, start: int, batch: int) -> Int[Tensor, "stack batch state"]:
        """The next sequences of each member, which are those from number `start` on."""
        del start  # generators go on from where they are
        pairs = zip(self._sources, self._generators, strict=True)
        return torch.stack(
            [s.sample(batch, self._length, generator=g, device=self._device) for s, g in pairs]
        )

    def state(self) -> dict[str, Tensor]:
        """Returns what is needed to draw the same again."""
        return {str(i): generator.get_state() for i, generator in enumerate(self._generators)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo `state`."""
        for i, generator in enumerate(self._generators):
            generator.set_state(state[str(i)])


class Counted:
    """Counter-based numbers: all members of a group at once, of equal sources or of a kind that stacks."""

    def __init__(
        self, sources: Sequence[Source], seeds: Sequence[int], length: int, device: torch.device
    ) -> None:
        self._length = length
        groups: dict[object, list[int]] = {}
        for i, source in enumerate(sources):
            groups.setdefault(group_of(source), []).append(i)
        self._groups = [
            (sampler([sources[i] for i in own], device), Streams([seeds[i] for i in own], device), len(own))
            for own in groups.values()
        ]
        members = torch.tensor([i for some in groups.values() for i in some])
        self._places = None if len(groups) == 1 else members.argsort().to(device)
        self._entries = 0
        """For one sequence of each member: of its tables of states, or of its widest draw of numbers."""
        for sample, streams, count in self._groups:
            numbers = streams.at(0, 1)
            sample(count, length, numbers)  # from here on its tables are on the device too
            self._entries += count * max(length * sources[0].n_states, numbers.widest)

    def steps_at_once(self, batch: int) -> int:
        return min(MAX_COUNTED_STEPS, max(1, MAX_ENTRIES_GPU // (self._entries * batch)))

    def draw(self, start: int, batch: int) -> Int[Tensor, "stack batch state"]:
        drawn = [
            sample(count * batch, self._length, streams.at(start, batch)).view(count, batch, self._length)
            for sample, streams, count in self._groups
        ]
        return drawn[0] if self._places is None else torch.cat(drawn)[self._places]

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        del state  # a number follows from its place


Sampler = Callable[[int, int, Streams], Tensor]


def group_of(source: Source) -> object:
    """Returns what is the same for sources whose sequences are drawn at once.

    A class that draws in its own way does not stack: its `sample` is not one of these.
    """
    how = type(source).sample
    if how is OrderK.sample and len(cast(OrderK, source).rows) <= MAX_MAPPED_HISTORIES:
        return how, cast(OrderK, source).order
    return how if how in (FixedChain.sample, Circle.sample) else source


def sampler(sources: Sequence[Source], device: torch.device) -> Sampler:
    """Returns a function that draws sequences of a group, as many of each member, one member after the other.

    Args:
        sources: The members' sources, for which `group_of` is the same.
        device: Where sequences are made.
    """
    first = cast(Any, sources[0])
    if len(set(sources)) == 1:
        return lambda rows, length, numbers: first.sample(rows, length, generator=numbers, device=device)

    def of_each(name: str) -> Tensor:
        return torch.tensor(np.stack([getattr(source, name) for source in sources]), device=device)

    if isinstance(first, Circle):
        p = of_each("p")[:, None]
        return lambda rows, length, numbers: walks(
            first.n_states, p.repeat_interleave(rows // len(p), 0), rows, length, numbers, device
        )
    if isinstance(first, OrderK):
        kernels, start = of_each("rows"), of_each("history_law")
        return lambda rows, length, numbers: sample_histories(
            kernels, start, first.order, rows, length, numbers
        )
    P, pi = of_each("P"), of_each("pi")
    return lambda rows, length, numbers: sample_paths(P, pi, rows, length, numbers)


def draws_of(
    sources: Sequence[Source], seeds: Sequence[int], length: int, device: torch.device
) -> Generators | Counted:
    """Counter-based numbers on a GPU, where every source takes them; else generators.

    Args:
        sources: The source of each member of a stack of models.
        seeds: Their seeds.
        length: The number of states of a sequence.
        device: Where sequences are made.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> members = draws_of([Circle(n_states=4, p=0.5)] * 2, [0, 1], 8, torch.device("cpu"))
        >>> members.draw(start=0, batch=3).shape
        torch.Size([2, 3, 8])
    """
    counted = device.type != "cpu" and all(source.takes_streams for source in sources)
    return Counted(sources, seeds, length, device) if counted else Generators(sources, seeds, length, device)
