"""Do sequences come from one law, or has each a chain of its own? An exact test by exchanging their ends.

If one law of order k is behind all sequences, then sequences whose last k states are the same may exchange
all that follows, and what they become is as likely. So the futures are dealt out anew at every position,
among the sequences that have the same k states before it, and a statistic of the data is compared with that
of data so exchanged. No law is estimated for it, and it may differ from position to position. (Exact tests
for Markov chains by exchange: Besag & Mondal 2013, Biometrics 69, 488.)

The statistic is the likelihood ratio of a chain for each sequence against one for all, a chain's rows drawn
from Dirichlet laws around the pooled rows. The ratio at the best chains (Anderson & Goodman 1957) would be
large for every sequence that is short compared with the number of states, whatever its chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer
from scipy.special import gammaln

DRAWS = 499
MAX_TOKENS = 1 << 13  # that are looked at: enough, and the test takes a second
MIN_LENGTH = 3
AT_ONCE = 1 << 21  # tokens of exchanged sequences in memory
ENDED = -1  # in the place of a state


class OneLawWarning(UserWarning):
    """Sequences do not look like draws of one law."""


@dataclass(frozen=True)
class Homogeneity:
    """The comparison of sequences with sequences of one law.

    Attributes:
        p_value: How often sequences with their ends exchanged have as large a likelihood ratio, at least
            `1 / (DRAWS + 1)`.
        gain: By how much a chain for each sequence fits better than in exchanged ones (nats a state).
        order: The order of the law that is tested.
        sequences: How many were looked at.
    """

    p_value: float
    gain: float
    order: int
    sequences: int


def homogeneity(
    states: Int[np.ndarray, " token"],
    lengths: Sequence[int],
    n_states: int,
    order: int,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Homogeneity | None:
    """Test whether sequences come from one law of some order, at least 1; None for fewer than two sequences.

    Args:
        states: The states of all sequences, one after the other.
        lengths: The lengths of the sequences.
        n_states: How many there may be.
        order: How many states back the one law looks. If its true order is higher, the test says so too.
        seed: The seed of the exchanges.
        draws: How often ends are exchanged.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> chains = rng.dirichlet(np.ones(2), (20, 2))  # one a sequence
        >>> walk = rng.integers(2, size=(20, 1))
        >>> for _ in range(50):
        ...     p = chains[np.arange(20), walk[:, -1], 1]
        ...     walk = np.column_stack([walk, rng.random(20) < p])
        >>> homogeneity(walk.ravel(), [51] * 20, 2, 1).p_value
        0.002
    """
    paths = _padded(states, lengths)
    if len(paths) < 2:
        return None
    order = max(1, order)
    contexts = _contexts(paths, order)
    # Around the pooled rows, each worth as many counts as there are states.
    counts = np.ones((n_states, n_states)) / n_states
    whole = paths[:, 1:] != ENDED
    np.add.at(counts, (paths[:, :-1][whole], paths[:, 1:][whole]), 1)
    prior = n_states * counts / counts.sum(1, keepdims=True)
    rng = np.random.default_rng(seed)
    evidence = _evidence(paths, prior)
    exchanged: list[float] = []
    while len(exchanged) < draws:
        some = min(draws - len(exchanged), max(1, AT_ONCE // paths.size))
        exchanged += [_evidence(one, prior) for one in _exchange(paths, contexts, some, rng)]
    # Equal counts in another order of summation are equal.
    larger = sum(one >= evidence - 1e-9 * max(1.0, abs(evidence)) for one in exchanged)
    gain = (evidence - float(np.mean(exchanged))) / int(whole.sum())
    return Homogeneity((1 + larger) / (draws + 1), gain, order, len(paths))


def _padded(
    states: Int[np.ndarray, " token"], lengths: Sequence[int]
) -> Int[np.ndarray, "sequence position"]:
    """Some of the sequences, evenly chosen, and of long ones the beginnings; `ENDED` after their ends."""
    ends = np.cumsum(lengths)
    long = np.flatnonzero(np.asarray(lengths) >= MIN_LENGTH)
    if not len(long):
        return np.empty((0, 0), dtype=np.int64)
    long_lengths = np.asarray(lengths)[long]
    most = max(64, MAX_TOKENS // len(long))  # states of each
    chosen = long[:: max(1, round(np.minimum(long_lengths, most).sum() / MAX_TOKENS))]
    longest = min(most, max(lengths[one] for one in chosen))
    paths = np.full((len(chosen), longest), ENDED, dtype=np.int64)
    for row, one in enumerate(chosen):
        begins = ends[one] - lengths[one]
        whole = states[begins : begins + min(lengths[one], longest)]
        paths[row, : len(whole)] = whole
    return paths


def _contexts(
    paths: Int[np.ndarray, "sequence position"], order: int
) -> list[Integer[np.ndarray, " sequence"]]:
    """Before each position, a number for what each sequence showed last; one for all that ended."""
    contexts = []
    for t in range(paths.shape[1]):
        shown = paths[:, max(0, t - order) : t]
        shown = np.where(paths[:, t : t + 1] == ENDED, ENDED, shown) if t else paths[:, :1] * 0
        contexts.append(np.unique(shown, axis=0, return_inverse=True)[1].ravel().astype(np.uint16))
    return contexts


def _exchange(
    paths: Int[np.ndarray, "sequence position"],
    contexts: list[Integer[np.ndarray, " sequence"]],
    draws: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "draw sequence position"]:
    """The sequences with their futures dealt out anew at every position, that many times."""
    whose = np.tile(np.arange(len(paths)), (draws, 1))  # path is being followed
    exchanged = np.empty((draws, *paths.shape), dtype=paths.dtype)
    for t, context in enumerate(contexts):
        before = context[whose]
        places = np.argsort(before, axis=1, kind="stable")
        # As float64 a context and a random fraction of one: sorted by context, at random within.
        dealt = np.argsort(before + rng.random(before.shape), axis=1)
        np.put_along_axis(whose, places, np.take_along_axis(whose, dealt, 1), 1)
        exchanged[:, :, t] = paths[whose, t]
    return exchanged


def _evidence(
    paths: Int[np.ndarray, "sequence position"], prior: Float[np.ndarray, "state_from state_to"]
) -> float:
    """The log probability of the transitions of sequences that have a chain each, drawn from the prior."""
    n_states = len(prior)
    row, at = np.nonzero(paths[:, 1:] != ENDED)
    before = row * n_states + paths[row, at]
    pair, count = np.unique(before * n_states + paths[row, at + 1], return_counts=True)
    a = prior.ravel()[pair % n_states**2]
    total = np.unique(before, return_counts=True)[1]
    rows = gammaln(n_states + total) - gammaln(n_states)  # a row of the prior sums to the number of states
    return float((gammaln(a + count) - gammaln(a)).sum() - rows.sum())
