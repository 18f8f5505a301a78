"""Where a stack's random sequences come from: a generator a member, or numbers that are counted.

A member's sequences are those it would train on alone. On the CPU each member has a `torch.Generator`. On a
GPU that would be launches for every member, so that numbers are counted there (`Streams`) and the data of all
members are drawn at once. The two give other sequences of the same law.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.source import Source
from mechmarkov.sources.sampling.paths import MAX_ENTRIES_GPU, sample_paths
from mechmarkov.sources.sampling.streams import Streams

# A small batch costs as much as a larger one, so that many steps are drawn at once. With generators how many
# follows from the recipe alone, or a member's data would depend on its neighbours.
CHUNK_TOKENS = 1 << 16
MAX_COUNTED_STEPS = 64


@runtime_checkable
class Draws(Protocol):
    """What draws sequences for every member of a stack."""

    def steps_at_once(self, batch: int) -> int:
        """For how many steps of so many sequences to draw at once."""

    def draw(self, start: int, batch: int) -> Int[Tensor, "stack batch state"]:
        """The next sequences of each member, which are those from number `start` on."""

    def state(self) -> dict[str, Tensor]:
        """What is needed to draw the same again."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo `state`."""


class Generators:
    """One generator a member: as many launches as members."""

    def __init__(
        self, sources: Sequence[Source], seeds: Sequence[int], length: int, device: torch.device
    ) -> None:
        self._sources, self._length, self._device = sources, length, device
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def steps_at_once(self, batch: int) -> int:
        return max(1, CHUNK_TOKENS // (batch * self._length))

    def draw(self, start: int, batch: int) -> Int[Tensor, "stack batch state"]:
        del start  # generators go on from where they are
        return torch.stack(
            [
                source.sample(batch, self._length, generator=generator, device=self._device)
                for source, generator in zip(self._sources, self._generators, strict=True)
            ]
        )

    def state(self) -> dict[str, Tensor]:
        return {str(i): generator.get_state() for i, generator in enumerate(self._generators)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for i, generator in enumerate(self._generators):
            generator.set_state(state[str(i)])


class Counted:
    """Counted numbers: all members of equal sources at once, and all of first-order chains."""

    def __init__(
        self, sources: Sequence[Source], seeds: Sequence[int], length: int, device: torch.device
    ) -> None:
        self._length, self._device = length, device
        groups: dict[object, list[int]] = {}
        for i, source in enumerate(sources):
            first_order = type(source).sample is FixedChain.sample
            groups.setdefault("chains" if first_order else source, []).append(i)
        self._groups = [
            ([sources[i] for i in some], Streams([seeds[i] for i in some], device))
            for some in groups.values()
        ]
        members = torch.tensor([i for some in groups.values() for i in some])
        self._places = None if len(groups) == 1 else members.argsort().to(device)
        self._entries = len(sources) * length * sources[0].n_states

    def steps_at_once(self, batch: int) -> int:
        return min(MAX_COUNTED_STEPS, max(1, MAX_ENTRIES_GPU // (self._entries * batch)))

    def draw(self, start: int, batch: int) -> Int[Tensor, "stack batch state"]:
        found = [self._of(sources, streams.at(start, batch), batch) for sources, streams in self._groups]
        return found[0] if self._places is None else torch.cat(found)[self._places]

    def _of(self, sources: list[Source], numbers: Streams, batch: int) -> Int[Tensor, "stack batch state"]:
        rows = len(sources) * batch
        if len(set(sources)) == 1:
            drawn = cast(Any, sources[0]).sample(rows, self._length, generator=numbers, device=self._device)
        else:
            chains = cast(list[FixedChain], sources)
            tables = [(numbers.table(chain.P), numbers.table(chain.pi)) for chain in chains]
            P, pi = (torch.stack(each).repeat_interleave(batch, 0) for each in zip(*tables, strict=True))
            drawn = sample_paths(P, pi, rows, self._length, numbers)
        return drawn.view(len(sources), batch, self._length)

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        del state  # a number follows from its place


def draws_of(sources: Sequence[Source], seeds: Sequence[int], length: int, device: torch.device) -> Draws:
    """Counted numbers on a GPU, where every source takes them; else generators."""
    counted = device.type != "cpu" and all(source.takes_streams for source in sources)
    return (Counted if counted else Generators)(sources, seeds, length, device)
