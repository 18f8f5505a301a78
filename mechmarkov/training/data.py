"""The sequences a stack trains on, each member's from its own numbers."""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mechmarkov.population import population_laws
from mechmarkov.sources.base.source import check_drawn
from mechmarkov.sources.sampling.stacks import draws_of
from mechmarkov.sources.sampling.whole_law import is_permutation, whole_law
from mechmarkov.training.workload import Member


def data_seed(seed: int) -> int:
    """Derive the seed of a training's sequences from the one that its weights are drawn with.

    Example:
        >>> data_seed(0) == data_seed(0), data_seed(0) == data_seed(1)
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"data {seed}".encode(), digest_size=8).digest(), "big") >> 1


class Batches:
    """The sequences of every training step, for several models that train as one stack.

    A model gets the sequences that it would get by itself, whatever else is in the stack.

    Args:
        members: What is trained: a recipe and a seed each, with the same data settings.
        length: How many states a sequence has.
        device: Where the sequences are.

    Attributes:
        fixed: The sequences of all steps where these are the same (`data.n_train`, `data.population`):
            `[stack, batch, state]`, or `[batch, state]` where all models share them. Else None.
        weights: The probability that each target of the fixed sequences stands for (`population_law`),
            `[stack, batch, read]` or `[batch, read]`; None where each counts the same.

    Example:
        >>> from mechmarkov.training.recipe import load_recipe
        >>> members = [Member(load_recipe("walk-k6-half"), seed) for seed in (0, 1)]
        >>> Batches(members, 10, torch.device("cpu")).at(0).shape  # the recipe's data.batch is 1000
        torch.Size([2, 1000, 10])
    """

    def __init__(self, members: Sequence[Member], length: int, device: torch.device) -> None:
        data = members[0].recipe.data
        sources = [member.recipe.source for member in members]
        self._sources, self._batch = sources, data.batch or 1
        self._chunk: Tensor | None = None
        self._draws = draws_of(sources, [data_seed(member.seed) for member in members], length, device)
        self.chunk_steps = self._draws.steps_at_once(self._batch)
        self.fixed: Tensor | None = None
        self.weights: Tensor | None = None
        if data.population and not all(map(is_permutation, sources)):
            recipe = members[0].recipe
            fixed, weights = population_laws(sources, recipe.objective, recipe.decoder_config)
            self.fixed, self.weights = fixed.to(device), weights.to(device)
        elif data.population:  # a walk from each start, all equally likely
            walks = {source: whole_law(source, length)[0] for source in sources}
            alike = len(walks) == 1
            self.fixed = (walks[sources[0]] if alike else torch.stack([walks[s] for s in sources])).to(device)
        elif data.n_train is not None:
            self.fixed = self._checked(self._draws.draw(0, data.n_train))
        self._start_of_chunk = self._draws.state()

    def at(self, step: int) -> Tensor:
        """Returns the sequences of a step, `[stack, batch, state]`; ask for steps in ascending order."""
        if self.fixed is not None:
            return self.fixed
        place, batch = step % self.chunk_steps, self._batch
        if place == 0 or self._chunk is None:
            self._start_of_chunk = self._draws.state()
            drawn = self._draws.draw((step - place) * batch, batch * self.chunk_steps)
            self._chunk = self._checked(drawn) if self._chunk is None else drawn
        return self._chunk[:, place * batch : (place + 1) * batch]

    def _checked(self, drawn: Tensor) -> Tensor:
        """The first sequences, seen to be states; not those of every step, as a GPU must wait for it."""
        for states, source in zip(drawn, self._sources, strict=True):
            check_drawn(states, source)
        return drawn

    def state(self, step: int) -> dict[str, Tensor]:
        """Returns what `restore` needs to go on at `step` with the same sequences."""
        return self._draws.state() if step % self.chunk_steps == 0 else self._start_of_chunk

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state`: the next step that is asked for has the sequences that it would have had."""
        self._draws.restore(state)
        self._chunk = None
