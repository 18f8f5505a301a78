"""The exact belief that a stream may carry, and the baseline: what a model has that carries none."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from mechmarkov.interventions.belief import Reading, fit_reading
from mechmarkov.probing import Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.nulls import null_sequences
from mechmarkov.probing.subject import DoesNotApplyError

FOLDS = 5  # of sequences; each is read by a map fitted to the others
MIN_SEQUENCES = FOLDS
RECENT = 8  # tokens back that the baseline knows
MIN_VARIANCE = 1e-12  # of the belief; below, it is rounding
Rows = Float[np.ndarray, "batch read _"]  # of any width


@dataclass(frozen=True, eq=False)
class Carried:
    """The exact beliefs over what is hidden, and the sequences they are of.

    Attributes:
        batch: The sequences.
        belief: The probability of each hidden state given the context.
        laws: The law of the next token under each hidden state (probability).
        tokens: Every known token, one-hot.
    """

    batch: Batch
    belief: Float[np.ndarray, "batch read hidden"]
    laws: Float[np.ndarray, "batch read hidden state"]
    tokens: Float[np.ndarray, "batch known_position token"]

    @staticmethod
    def of(subject: Subject) -> "Carried":
        """The beliefs on a subject's sequences; a run and its null have equally many (`null_sequences`).

        Raises:
            ValueError: There are fewer than five sequences.
            DoesNotApplyError: The belief is the same in every context.
        """
        batch = subject.batch.head(null_sequences(subject.batch.tokens.shape[1]))
        if len(batch.tokens) < MIN_SEQUENCES:
            raise ValueError(
                f"sequences is {len(batch.tokens)}, expected at least {MIN_SEQUENCES}: a reading is held out"
            )
        source: Any = subject.source
        history = batch.history.numpy()
        laws = source.laws_of_hidden(history)[:, batch.known.numpy()]
        belief = batch.in_context(source.beliefs(history))
        carried = Carried(batch, belief, laws, np.eye(laws.shape[-1])[history])
        if carried.spread.mean() < MIN_VARIANCE:
            raise DoesNotApplyError("the exact belief is the same in every context: there is nothing to read")
        return carried

    @cached_property
    def spread(self) -> Float[np.ndarray, "batch read"]:
        """The squared distance of each belief from their mean."""
        return np.asarray(((self.belief - self.belief.mean((0, 1))) ** 2).sum(-1))

    @cached_property
    def recent(self) -> Rows:
        """The last 8 tokens, one-hot, zero before the first."""
        lags, length = range(RECENT), self.tokens.shape[1]
        back = [np.pad(self.tokens, ((0, 0), (lag, 0), (0, 0)))[:, :length] for lag in lags]
        return np.concatenate([self.batch.in_context(x) for x in back], axis=-1)

    @cached_property
    def baseline(self) -> Rows:
        """The last 8 tokens, and the law of the next one apart after each current token."""
        law = np.einsum("brh,brhj->brj", self.belief, self.laws)
        by_token = self.batch.in_context(self.tokens)[..., None] * law[..., None, :]
        return np.concatenate([self.recent, by_token.reshape(*law.shape[:2], -1)], axis=-1)

    def error(self, features: Rows) -> float:
        """Returns the mean squared error of a held-out reading, as a share of the belief's variance."""
        off = ((held_out(features, self.belief) - self.belief) ** 2).sum(-1)
        return float(off.mean() / self.spread.mean())


def held_out(
    features: Float[np.ndarray, "batch read feature"], belief: Float[np.ndarray, "batch read hidden"]
) -> Float[np.ndarray, "batch read hidden"]:
    """Each sequence's belief as read by a least-squares map that was fitted to other sequences.

    Args:
        features: The stream that is read.
        belief: The exact beliefs.

    Example:
        >>> belief = np.random.default_rng(0).dirichlet(np.ones(3), size=(20, 4))
        >>> features = belief @ np.random.default_rng(1).normal(size=(3, 5))
        >>> float(abs(held_out(features, belief) - belief).max()) < 1e-6
        True
    """
    fold = np.arange(len(belief)) % min(FOLDS, len(belief))
    reading = np.empty_like(belief)
    for k in range(fold.max() + 1):
        reading[fold == k] = fit(features[fold != k], belief[fold != k]).read(features[fold == k])
    return reading


def fit(features: Rows, belief: Rows) -> Reading:
    """The least-squares map from a stream to beliefs, over all sequences and positions.

    Args:
        features: The stream.
        belief: The beliefs.
    """
    return fit_reading(features.reshape(-1, features.shape[-1]), belief.reshape(-1, belief.shape[-1]))
