"""A model's predictions next to every exact predictor, with states that are rare in contexts of their own."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from mechmarkov.probing import Subject
from mechmarkov.probing.preconditions import predictor_of
from mechmarkov.probing.rare_states import rare_states
from mechmarkov.sources import Predictor
from mechmarkov.theory.bootstrap import standard_error
from mechmarkov.theory.kernel import kl


@dataclass(frozen=True, eq=False)
class Rare:
    """The part of states that the batch shows too rarely in means over it, weighted by `pi` (nats).

    Attributes:
        common: Whether a prediction of the batch counts, `[batch, read]`.
        kl: What the rare states add to KL from each predictor, and its standard error.
        gaps: What they add to KL(best ‖ each predictor).
        after: KL after each rare state, and its standard error.
        states: The rare states.
    """

    common: Bool[np.ndarray, "batch read"]
    kl: Float[np.ndarray, "member predictor"]
    kl_error: Float[np.ndarray, "member predictor"]
    gaps: Float[np.ndarray, " predictor"]
    after: Float[np.ndarray, "two member predictor rare"] | None = None
    states: Int[np.ndarray, " rare"] | None = None


def _rare(subject: Subject) -> Rare:
    rare, size = rare_states(subject), (len(subject.coordinates), len(subject.exact))
    if rare is None:
        nothing = np.zeros(size)
        return Rare(np.ones(subject.batch.parents.shape, dtype=bool), nothing, nothing, nothing[0])
    nats = np.stack([[kl(p, q) for p in rare.exact.values()] for q in rare.probabilities])
    mean, error = nats.mean(-1), standard_error(nats)  # [member, predictor, rare]
    best, gaps = subject.source.best(), np.zeros(size[1])
    if not isinstance(best, str):
        gaps = np.array([kl(rare.exact[best.name], p).mean(-1) @ rare.pi for p in rare.exact.values()])
    total_error = np.sqrt((error * rare.pi) ** 2 @ np.ones(len(rare.pi)))
    return Rare(rare.common, mean @ rare.pi, total_error, gaps, np.stack([mean, error]), rare.states)


@dataclass(frozen=True, eq=False)
class Compared:
    """The models of a subject and the exact predictors, on the same sequences.

    Attributes:
        subject: The models.
        model: Their predictions.
        onehot: The states that came next.
        nats: KL from each exact predictor to each model, of each prediction.
        rare: The states that the sequences show too rarely.
    """

    subject: Subject
    model: Float[np.ndarray, "member batch read state"]
    onehot: Float[np.ndarray, "batch read state"]
    nats: Float[np.ndarray, "member predictor batch read"]
    rare: Rare

    @staticmethod
    def of(subject: Subject) -> "Compared":
        """The predictions of a subject's models, in float64."""
        model = subject.probabilities.astype(np.float64)
        onehot = np.eye(subject.source.n_states)[subject.batch.targets.numpy()]
        nats = np.stack([[kl(p, q) for p in subject.exact.values()] for q in model])
        return Compared(subject, model, onehot, nats, _rare(subject))

    @property
    def laws(self) -> list[Float[np.ndarray, "batch read state"]]:
        """Returns the exact predictors."""
        return [*self.subject.exact.values()]

    @cached_property
    def best(self) -> Predictor | str:
        """The Bayes-optimal predictor, or why none is known."""
        return self.subject.source.best()

    @property
    def truth(self) -> Float[np.ndarray, "batch read state"]:
        """Returns the law of the next state, or the states that came where no best predictor is known."""
        return self.onehot if isinstance(self.best, str) else self.subject.exact[self.best.name]

    @property
    def at_unigram(self) -> int:
        """Returns which of the predictors is the unigram."""
        return [*self.subject.exact].index(predictor_of(self.subject.source, "unigram"))

    @cached_property
    def kl(self) -> Float[np.ndarray, "member predictor batch"]:
        """The mean KL of each sequence, rare states weighted by their probability (nats)."""
        return np.asarray((self.nats * self.rare.common).mean(-1) + self.rare.kl[..., None])
