"""Laws estimated from sequences: counts of histories, smoothed, and the order that held-out data choose.

Counts after a history are smoothed with the law after the history without its oldest state, the hierarchical
Dirichlet prior of MacKay & Peto (1995); or every count has one added. After a history that never occurs the
law is that after the shorter one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array

MAX_ORDER = 5
FOLDS = 5
STANDARD_ERRORS = 2.0  # by which a higher order must gain
MIN_GAIN_NATS = 1.0  # in all, for each of the states: smoothing costs a deterministic chain a tenth of that
CONCENTRATIONS = tuple(2.0**k for k in range(-4, 17))

Smoothing = tuple[float, ...] | None  # a concentration for each order from 0 up; None adds one to every count


@dataclass(frozen=True, eq=False)
class Blocks:
    """States in blocks, with no transition from one piece of a block to another.

    Attributes:
        states: All states, one sequence after the other.
        place: How many states stand before each in its piece.
        block: The block that each state is in, ascending.
        n_states: How many states there may be.
    """

    states: Int[np.ndarray, " token"]
    place: Int[np.ndarray, " token"]
    block: Int[np.ndarray, " token"]
    n_states: int

    @classmethod
    def of(
        cls, states: Int[np.ndarray, " token"], lengths: Sequence[int], size: int, n_states: int
    ) -> "Blocks":
        """Cut sequences into pieces of at least `size` states, and gather short ones in such blocks.

        Args:
            states: The states of all sequences, one after the other.
            lengths: The lengths of the sequences.
            size: The number of states of a block, at least.
            n_states: How many states there may be.

        Example:
            >>> blocks = Blocks.of(np.array([0, 1, 0, 1, 1, 0]), [4, 2], size=2, n_states=2)
            >>> blocks.block.tolist(), blocks.place.tolist()
            ([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1])
        """
        parts = [max(1, length // size) for length in lengths]
        cuts = [np.diff(np.linspace(0, n, k + 1).astype(int)) for n, k in zip(lengths, parts, strict=True)]
        pieces = np.concatenate(cuts)
        starts = np.cumsum(pieces) - pieces
        n_blocks = min(len(pieces), max(1, round(len(states) / size)))
        block = np.minimum((starts + pieces // 2) * n_blocks // len(states), n_blocks - 1)
        _, block = np.unique(block, return_inverse=True)
        return cls(
            states, np.arange(len(states)) - np.repeat(starts, pieces), np.repeat(block, pieces), n_states
        )

    @property
    def n_blocks(self) -> int:
        """Returns how many blocks there are."""
        return int(self.block[-1]) + 1

    @cached_property
    def grams(self) -> "list[Grams]":
        """The runs of 1, 2, …, `MAX_ORDER` + 1 states."""
        by_order: list[Grams] = []
        before = np.zeros(len(self.states), dtype=np.int64)
        for n in range(MAX_ORDER + 1):
            whole = self.place >= n
            codes = before * self.n_states + self.states
            known, number = np.unique(codes[whole], return_inverse=True)
            index = np.full(len(codes), -1)
            index[whole] = number
            by_order.append(Grams(known, index))
            before = np.roll(index, 1)  # what ends one state earlier; across a cut it is never whole
        return by_order


@dataclass(frozen=True, eq=False)
class Grams:
    """The runs of n states that occur.

    Attributes:
        codes: The code of each, ascending: the number of its first n - 1 states times K, plus the last state.
        index: The number of the run that ends at each token; -1 where a piece begins too late for one.
    """

    codes: Int[np.ndarray, " run"]
    index: Int[np.ndarray, " token"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """The law of the next state given the last ones, from weighted counts.

    Attributes:
        blocks: The states, in blocks.
        weights: How often each block counts; 0 for one that is held out.
        smoothing: The concentrations; None adds one.
    """

    blocks: Blocks
    weights: Float[np.ndarray, " block"]
    smoothing: Smoothing

    def counts(self, order: int) -> csr_array:
        """Returns how often each state follows each history of that many states, `[history, state_to]`."""
        blocks, K = self.blocks, self.blocks.n_states
        after = blocks.grams[order].index
        whole = after >= 0
        if order:
            before = blocks.grams[order - 1]
            rows, n_rows = np.roll(before.index, 1)[whole], len(before.codes)
        else:
            rows, n_rows = np.zeros(int(whole.sum()), dtype=np.int64), 1
        weight = self.weights[blocks.block[whole]].astype(float)
        return csr_array((weight, (rows, blocks.states[whole])), shape=(n_rows, K))

    @cached_property
    def _tables(self) -> dict[int, tuple[csr_array, Float[np.ndarray, " history"]]]:
        return {}

    def _table(self, order: int) -> tuple[csr_array, Float[np.ndarray, " history"]]:
        if order not in self._tables:
            counts = self.counts(order)
            self._tables[order] = counts, np.asarray(counts.sum(1))
        return self._tables[order]

    def next_laws(
        self, tokens: Int[np.ndarray, "batch position"], order: int
    ) -> Float[np.ndarray, "batch position state"]:
        """The law after each position, given the last `order` states or, near the start, all there are."""
        K = self.blocks.n_states
        histories = self._histories(tokens, order)
        law = np.full((tokens.size, K), 1 / K)
        for level, rows in enumerate(histories):
            counts, total = self._table(level)
            seen = np.flatnonzero((rows >= 0) & (total[rows] > 0))
            n_after = counts[rows[seen]].toarray()
            a, base = self._prior(level, law[seen])
            law[seen] = (n_after + a * base) / (total[rows[seen], None] + a)
        return law.reshape(*tokens.shape, K)

    def _prior(self, order: int, shorter: Float[np.ndarray, "row state"]) -> tuple[float, np.ndarray]:
        """Concentration and mean of the Dirichlet prior after a history, from the law after a shorter one."""
        if self.smoothing is None:
            K = self.blocks.n_states
            return float(K), np.full_like(shorter, 1 / K)
        return self.smoothing[order], shorter

    def posterior(self) -> tuple[Float[np.ndarray, "row state"], Float[np.ndarray, "row state"]]:
        """The Dirichlet posterior of the rows of the pair law: counts, and what the prior adds to them."""
        K = self.blocks.n_states
        states = np.arange(K)[:, None]
        rows = self._histories(states, 1)[1]
        counts = np.zeros((K, K))
        counts[rows >= 0] = self._table(1)[0][rows[rows >= 0]].toarray()
        a, base = self._prior(1, self.next_laws(states, 0)[:, 0])
        return counts, a * base

    def _histories(self, tokens: Int[np.ndarray, "batch position"], order: int) -> list[np.ndarray]:
        """The number of the last 0, 1, …, `order` states at each position; -1 where they do not occur."""
        numbers = [np.zeros(tokens.shape, dtype=np.int64)]
        for grams in self.blocks.grams[:order]:
            before = np.full(tokens.shape, -1)
            before[:, 1:] = numbers[-1][:, :-1]
            if len(numbers) == 1:
                before[:] = 0
            codes = before * self.blocks.n_states + tokens
            place = np.minimum(np.searchsorted(grams.codes, codes), len(grams.codes) - 1)
            numbers.append(np.where((before >= 0) & (grams.codes[place] == codes), place, -1))
        return [rows.ravel() for rows in numbers]


@dataclass(frozen=True)
class Choice:
    """The order and smoothing that predict held-out blocks best.

    Attributes:
        order: The lowest that no higher one beats by more than two standard errors over blocks, and by more
            nats in all than there are states.
        smoothing: The better of both at that order.
        losses: One for each order from 0 up, with its better smoothing, on held-out blocks (nats a state).
        errors: The standard error, over blocks, of each loss's difference from the chosen order's.
    """

    order: int
    smoothing: Smoothing
    losses: tuple[float, ...]
    errors: tuple[float, ...]


def choose(blocks: Blocks, train: Bool[np.ndarray, " block"], order: int | None = None) -> Choice:
    """Choose order and smoothing by cross-validation over blocks.

    Every training block is predicted from four fifths of the others. All orders predict the same states:
    those with `MAX_ORDER` states before them in their piece, or as many as half of the states have.

    Args:
        blocks: The data.
        train: Which blocks may be looked at.
        order: Choose only the smoothing of this one.

    Raises:
        ValueError: No training block is longer than `order`.

    Example:
        >>> states = np.arange(400) % 3  # what follows is certain given one state
        >>> blocks = Blocks.of(states, [400], size=20, n_states=3)
        >>> choose(blocks, np.ones(blocks.n_blocks, dtype=bool)).order
        1
    """
    number = np.cumsum(train) - 1
    fold = np.where(train, number % min(FOLDS, int(train.sum())), -1)[blocks.block]
    deepest = MAX_ORDER
    while deepest > (order or 0) and (blocks.place[fold >= 0] >= deepest).mean() < 0.5:
        deepest -= 1
    at = np.flatnonzero((fold >= 0) & (blocks.place >= deepest))
    if not len(at):
        raise ValueError(
            f"order is {deepest}, but no sequence or block to estimate from has a longer history"
        )
    shorter = add_one = np.full(len(at), 1 / blocks.n_states)
    concentrations: list[float] = []
    best_of_order: list[tuple[np.ndarray, Smoothing]] = []
    for j in range(deepest + 1):
        pairs, total = _counts_without(blocks, fold, at, j)
        best = min(CONCENTRATIONS, key=lambda a: -np.log((pairs + a * shorter) / (total + a)).mean())
        shorter = (pairs + best * shorter) / (total + best)
        concentrations.append(best)
        add_one = np.where(total > 0, (pairs + 1) / (total + blocks.n_states), add_one)
        candidates = ((-np.log(shorter), tuple(concentrations)), (-np.log(add_one), None))
        best_of_order.append(min(candidates, key=lambda candidate: candidate[0].mean()))
    losses = [loss for loss, _ in best_of_order]
    block = np.unique(blocks.block[at], return_inverse=True)[1]

    least = MIN_GAIN_NATS * blocks.n_states / len(at)

    def beats(better: np.ndarray, loss: np.ndarray) -> bool:
        mean, error = _mean_and_error(loss - better, block)
        return mean > max(least, STANDARD_ERRORS * error)

    if order is None:
        order = next(j for j, loss in enumerate(losses) if not any(beats(x, loss) for x in losses[j + 1 :]))
    errors = tuple(_mean_and_error(loss - losses[order], block)[1] for loss in losses)
    return Choice(order, best_of_order[order][1], tuple(float(loss.mean()) for loss in losses), errors)


def _counts_without(
    blocks: Blocks, fold: Int[np.ndarray, " token"], at: Int[np.ndarray, " held"], order: int
) -> tuple[Float[np.ndarray, " held"], Float[np.ndarray, " held"]]:
    """Returns how often the history before each token came with it, and at all, in the other folds."""
    after = blocks.grams[order].index
    whole = (after >= 0) & (fold >= 0)
    before = np.roll(blocks.grams[order - 1].index, 1) if order else np.zeros_like(after)

    def elsewhere(number: np.ndarray) -> np.ndarray:
        size = int(number.max()) + 1
        inside = np.bincount(fold[whole] * size + number[whole], minlength=FOLDS * size).reshape(-1, size)
        return (inside.sum(0)[number[at]] - inside[fold[at], number[at]]).astype(float)

    return elsewhere(after), elsewhere(before)


def _mean_and_error(
    values: Float[np.ndarray, " held"], block: Int[np.ndarray, " held"]
) -> tuple[float, float]:
    """The mean, and its standard error over blocks of unequal size (a ratio estimator's)."""
    mean, size = values.mean(), np.bincount(block)
    apart = np.bincount(block, values) - mean * size
    n = len(size)
    return float(mean), float(np.sqrt((apart**2).sum() * n / max(n - 1, 1)) / len(values))
