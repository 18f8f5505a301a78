"""The sequences a stack trains on, each member's from its own generator, and how they become targets."""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from mechmarkov.objectives import Objective
from mechmarkov.sources import Source
from mechmarkov.sources.sampling.whole_law import is_permutation, whole_laws
from mechmarkov.training.members import Member

# Fresh batches are drawn many steps at a time, because a small batch costs as much as a larger one. For how
# many steps depends on the recipe alone, or a member's data would depend on its neighbours.
CHUNK_TOKENS = 1 << 16


def data_seed(seed: int) -> int:
    """The seed of a member's data, apart from the one its weights are drawn with."""
    return int.from_bytes(hashlib.blake2b(f"data {seed}".encode(), digest_size=8).digest(), "big") >> 1


def all_walks(source: Source, length: int) -> Int[Tensor, "batch state"]:
    """Every walk of a deterministic chain that visits its states in turn: one from each start.

    Raises:
        ValueError: If a step of the chain is random, or its states are not equally likely.
    """
    if not is_permutation(source):
        raise ValueError(f"{source.title()!r} is not a deterministic permutation of its states")
    step = torch.tensor(source.P).argmax(1)  # type: ignore[attr-defined]
    walks = [torch.arange(source.n_states)]
    for _ in range(length - 1):
        walks.append(step[walks[-1]])
    return torch.stack(walks, -1)


def sequence_length(objective: Objective, n_ctx: int) -> int:
    """States per training sequence: the model's inputs and the target after them.

    With a query token the inputs are N-1 states and the query, so N states are drawn; else N+1.
    """
    return n_ctx if objective.query else n_ctx + 1


def inputs_and_targets(
    states: Int[Tensor, "*stack batch state"], objective: Objective, n_states: int
) -> tuple[Int[Tensor, "*stack batch position"], Int[Tensor, "*stack batch read"]]:
    """Split sequences into what the model reads and what it must predict at the positions that are read.

    Example:
        >>> states = torch.tensor([[0, 1, 2, 1]])
        >>> inputs_and_targets(states, Objective(), 3)
        (tensor([[0, 1, 2]]), tensor([[1, 2, 1]]))
        >>> inputs_and_targets(states, Objective(read="last", query=True), 3)
        (tensor([[0, 1, 2, 3]]), tensor([[1]]))
    """
    tokens = states[..., :-1]
    if objective.query:
        tokens = torch.cat([tokens, torch.full_like(states[..., :1], n_states)], -1)
    return tokens, states[..., 1:] if objective.read == "all" else states[..., -1:]


class Batches:
    """Batches for every step of a stack, one generator a member; `[stack, batch, state]` each.

    A member's data are those it would train on alone: the same draws of the same generator.
    """

    def __init__(self, members: Sequence[Member], length: int, device: torch.device) -> None:
        data = members[0].recipe.data
        self._sources = [member.recipe.source for member in members]
        self._data, self._length, self._device = data, length, device
        self._generators = [torch.Generator(device).manual_seed(data_seed(m.seed)) for m in members]
        self._chunk: Tensor | None = None
        self.chunk_steps = max(1, CHUNK_TOKENS // ((data.batch or 1) * length))
        self.weights: Tensor | None = None
        """The law of the fixed sequences, `[stack, batch]` or `[batch]`; None where each counts alike."""
        if data.population and not all(map(is_permutation, self._sources)):
            fixed, weights = whole_laws(self._sources, length)
            self._fixed: Tensor | None = fixed.to(device)
            self.weights = weights.to(device)
        elif data.population:
            walks = {source: all_walks(source, length) for source in self._sources}
            alike = len(walks) == 1
            shared = walks[self._sources[0]] if alike else torch.stack([walks[s] for s in self._sources])
            self._fixed = shared.to(device)
        elif data.n_train is not None:
            self._fixed = self._draw(data.n_train)
        else:
            self._fixed = None
        self._start_of_chunk = self._generator_states()

    @property
    def fixed(self) -> Tensor | None:
        """The training set where there is one: `[stack, batch, state]`, or `[batch, state]` where shared."""
        return self._fixed

    def at(self, step: int) -> Tensor:
        """The sequences of a step; steps are asked for in order, from the one that was restored."""
        if self._fixed is not None:
            return self._fixed
        batch = self._data.batch or 1
        place = step % self.chunk_steps
        if place == 0 or self._chunk is None:
            self._start_of_chunk = self._generator_states()
            self._chunk = self._draw(batch * self.chunk_steps)
        return self._chunk[:, place * batch : (place + 1) * batch]

    def state(self, step: int) -> dict[str, Tensor]:
        """What is needed to go on with `step`: the generators, as of the start of that step's chunk."""
        fresh = step % self.chunk_steps == 0
        states = self._generator_states() if fresh else self._start_of_chunk
        return {str(i): state for i, state in enumerate(states)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo `state`: the next step asked for sees the data it would have seen."""
        for i, generator in enumerate(self._generators):
            generator.set_state(state[str(i)])
        self._chunk = None

    def _draw(self, batch: int) -> Tensor:
        return torch.stack(
            [
                source.sample(batch, self._length, generator=generator, device=self._device)
                for source, generator in zip(self._sources, self._generators, strict=True)
            ]
        )

    def _generator_states(self) -> list[Tensor]:
        return [generator.get_state() for generator in self._generators]
