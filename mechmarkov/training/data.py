"""The sequences a stack trains on, each member's from its own numbers."""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from mechmarkov.population import population_laws
from mechmarkov.sources import Source
from mechmarkov.sources.sampling.stacks import draws_of
from mechmarkov.sources.sampling.whole_law import is_permutation
from mechmarkov.training.members import Member


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


class Batches:
    """Batches for every step of a stack, `[stack, batch, state]` each; a member's are those it has alone."""

    def __init__(self, members: Sequence[Member], length: int, device: torch.device) -> None:
        data = members[0].recipe.data
        sources = [member.recipe.source for member in members]
        self._batch = data.batch or 1
        self._chunk: Tensor | None = None
        self._draws = draws_of(sources, [data_seed(member.seed) for member in members], length, device)
        self.chunk_steps = self._draws.steps_at_once(self._batch)
        self.weights: Tensor | None = None
        """What each target of the fixed sequences stands for (`population_law`), `[stack, batch, read]` or
        `[batch, read]`; None where each counts alike."""
        if data.population and not all(map(is_permutation, sources)):
            recipe = members[0].recipe
            fixed, weights = population_laws(sources, recipe.objective, recipe.decoder_config)
            self._fixed: Tensor | None = fixed.to(device)
            self.weights = weights.to(device)
        elif data.population:
            walks = {source: all_walks(source, length) for source in sources}
            alike = len(walks) == 1
            shared = walks[sources[0]] if alike else torch.stack([walks[s] for s in sources])
            self._fixed = shared.to(device)
        elif data.n_train is not None:
            self._fixed = self._draws.draw(0, data.n_train)
        else:
            self._fixed = None
        self._start_of_chunk = self._draws.state()

    @property
    def fixed(self) -> Tensor | None:
        """The training set where there is one: `[stack, batch, state]`, or `[batch, state]` where shared."""
        return self._fixed

    def at(self, step: int) -> Tensor:
        """The sequences of a step; steps are asked for in order, from the one that was restored."""
        if self._fixed is not None:
            return self._fixed
        place, batch = step % self.chunk_steps, self._batch
        if place == 0 or self._chunk is None:
            self._start_of_chunk = self._draws.state()
            self._chunk = self._draws.draw((step - place) * batch, batch * self.chunk_steps)
        return self._chunk[:, place * batch : (place + 1) * batch]

    def state(self, step: int) -> dict[str, Tensor]:
        """What is needed to go on with `step`: the draws' state at the start of that step's chunk."""
        return self._draws.state() if step % self.chunk_steps == 0 else self._start_of_chunk

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo `state`: the next step asked for sees the data it would have seen."""
        self._draws.restore(state)
        self._chunk = None
