"""The sequences a loss is taken over: all there are where they are few, else a sample made symmetric."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.curvature.trainable_vector import Coordinates
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import FixedChain
from mechmarkov.sources.sampling.symmetries import elements, order
from mechmarkov.sources.sampling.whole_law import whole_law
from mechmarkov.theory.symmetry import Permutation

MAX_SEQUENCES = 256
MAX_PREDICTIONS = 2048
MIN_DRAWN = 8
MAX_PATTERN = 1 << 22  # entries of a layer's attention, in float64 32 MB
MAX_WORK = 1 << 26  # trainable parameters times tokens: each is met at every product with the Hessian
MAX_IMAGES = 64  # relabellings; a larger group's sample stays as it was drawn


@dataclass(frozen=True, eq=False, repr=False)
class Population:
    """Sequences, each of one weight, in groups that were drawn independently.

    Attributes:
        tokens: What the model reads, group by group.
        targets: What is to be predicted at the positions that are read.
        law: The exact law of the next state there, the parent's row of the chain.
        history: The states behind the last prediction.
        read: The model's positions whose output is a prediction.
        exact: Whether these are all the sequences there are, at their probabilities.
        relabellings: In which each drawn sequence is there; only the identity where the group is too large.
    """

    tokens: Int[Tensor, "group sequence position"]
    targets: Int[Tensor, "group sequence read"]
    law: Float[Tensor, "group sequence read state"]
    history: Int[Tensor, "group sequence known_position"]
    read: Int[Tensor, " read"]
    exact: bool
    relabellings: list[Permutation]

    def __repr__(self) -> str:
        """The number of sequences, and whether they are all."""
        return f"Population({self.describe()})"

    @property
    def images(self) -> int:
        """Returns how many relabellings of each drawn sequence there are."""
        return len(self.relabellings)

    def describe(self) -> str:
        """Returns what it is, in words."""
        groups, each = self.tokens.shape[:2]
        if self.exact:
            return f"all {groups * each} sequences there are"
        if self.images > 1:
            drawn = groups * each // self.images
            return f"{groups * each} sequences, {drawn} drawn, each in {self.images} relabellings"
        return f"{groups * each} sequences drawn"


def population_of(subject: Subject, batch: Batch | None = None) -> Population:
    """The sequences that a subject's loss is judged on, from a batch; None for the subject's own.

    A deterministic chain has one sequence for each start: these are all. Otherwise the first sequences of the
    evaluation batch, each in every relabelling by an automorphism of the chain, so that what symmetry makes
    cancel does cancel. The subject's source is a `FixedChain`.

    Example:
        >>> import mechmarkov as mm
        >>> population_of(mm.Subject.of(mm.example("trap"), sequences=8)).describe()
        'all 6 sequences there are'
    """
    source, config = subject.source, subject.config
    batch = subject.batch if batch is None else batch
    assert isinstance(source, FixedChain)
    pattern = config.n_heads * batch.tokens.shape[1] ** 2
    work = Coordinates.of(subject.run).size * batch.tokens.shape[1]
    predictions = max(32, MAX_PREDICTIONS // len(batch.read))
    affordable = (MAX_SEQUENCES, MAX_PATTERN // pattern, predictions, MAX_WORK // work)
    room = max(MIN_DRAWN, min(affordable))
    whole, identity = _all_sequences(source, batch.history.shape[1] + 1, room), tuple(range(source.n_states))
    if whole is not None:
        group, groups, history, following = [identity], len(whole), whole[:, :-1], whole[:, 1:]
    else:
        group = elements(source.P, MAX_IMAGES) if order(source.P) <= MAX_IMAGES else [identity]
        drawn = min(batch.tokens.shape[0], max(MIN_DRAWN, room // len(group)))
        groups = min(drawn, 8)
        history = _relabelled(batch.history[:drawn], group)
        following = _relabelled(batch.following[:drawn], group)
    # As many groups of whole orbits of sequences; what does not fill one is left out.
    each = len(history) // len(group) // groups * len(group)
    query = batch.tokens[:1, batch.history.shape[1] :]  # of no length where there is no query token
    tokens = torch.cat([history, query.expand(len(history), -1)], dim=1)

    def split(x: Tensor) -> Tensor:
        return x[: groups * each].reshape(groups, each, x.shape[1])

    law = torch.tensor(source.P)[split(history[:, batch.known])]
    targets, exact = split(following[:, batch.known]), whole is not None
    return Population(split(tokens), targets, law, split(history), batch.read, exact, group)


def _relabelled(states: Int[Tensor, "sequence position"], group: Sequence[Permutation]) -> Tensor:
    """Each sequence in every relabelling, those of one sequence next to each other."""
    images = torch.tensor(group)[:, states]  # [g, sequence, position]
    return images.transpose(0, 1).flatten(0, 1)


def _all_sequences(source: FixedChain, length: int, room: int) -> Int[Tensor, "sequence position"] | None:
    """Every sequence of a deterministic chain, if they are equally probable and not too many."""
    starts = np.flatnonzero(source.pi)
    deterministic = np.isin(source.P[starts], (0.0, 1.0)).all()
    if not deterministic or len(starts) > room or np.ptp(source.pi[starts]) > 1e-12:
        return None
    return whole_law(source, length)[0]
