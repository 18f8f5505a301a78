"""Counterfactuals: pairs of a clean and a corrupt sequence.

Minimal pairs differ in one state: the parent of what is predicted, the predecessor of a match, or any state
of a chain. All else is equal, and only the last prediction is read. Resampled pairs are two sequences of the
source that have nothing in common, and all predictions are read.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.interventions.tokens import swap_parent
from mechmarkov.models.config import DecoderConfig
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import Batch, draw
from mechmarkov.sources import Predictor, Source
from mechmarkov.utils.errors import choice_of, integer_of, list_of

Pairs = Literal["minimal", "resampled"]
PAIRS: tuple[Pairs, ...] = get_args(Pairs)
Which = Literal["parent", "match", "state"]
DRAWN = 8  # sequences for each that is needed: some have no match


@dataclass(frozen=True)
class Change:
    """The one state that a minimal pair differs in, for `case_of(…, change=Change("match", order=2))`.

    Attributes:
        which: `"parent"`: the state at one of `lags` before the predicted one; `"match"`: the last state of
            an earlier copy of the last `order` states, so that what followed it is no longer evidence;
            `"state"`: any.
        lags: The lags of a parent, at least 1: 1 is the state right before. Read for `"parent"` only.
        order: How many states a match has, at least 1. Read for `"match"` only.

    Raises:
        TypeError: For lags or an order that are not integers.
        ValueError: For another `which`, and for a lag or an order below 1.

    Example:
        >>> Change("parents")
        Traceback (most recent call last):
        ValueError: which is 'parents', expected one of 'parent', 'match', 'state'
    """

    which: Which = "parent"
    lags: tuple[int, ...] = (1,)
    order: int = 1

    def __post_init__(self) -> None:
        """Check the fields: another name would quietly be read as any state."""
        choice_of("which", self.which, get_args(Which))
        lags = list_of("lags", self.lags, "integers from 1: (1,)")
        if not lags:
            raise ValueError("lags is empty, expected integers from 1: (1,)")
        checked = tuple(integer_of(f"lags[{i}]", lag, least=1) for i, lag in enumerate(lags))
        object.__setattr__(self, "lags", checked)
        object.__setattr__(self, "order", integer_of("order", self.order, least=1))


def places(history: Int[Tensor, "batch position"], change: Change, *, seed: int) -> Int[Tensor, " batch"]:
    """Returns where each sequence is changed; -1 where it has no match.

    Raises:
        ValueError: For a lag or an order beyond the length of a history.

    Example:
        >>> history = torch.tensor([[0, 1, 0, 2, 0], [0, 1, 2, 1, 0], [1, 1, 2, 2, 0]])
        >>> places(history, Change("match"), seed=0)[1:]
        tensor([ 0, -1])
        >>> places(history, Change("parent", lags=(2,)), seed=0)
        tensor([3, 3, 3])
    """
    n, length = history.shape
    reach = {"parent": ("lags", max(change.lags)), "match": ("order", change.order), "state": ("", 0)}
    name, most = reach[change.which]
    if most > length:
        raise ValueError(
            f"{name} reach {most} states back, expected at most {length}, the states of a history"
        )
    generator = torch.Generator().manual_seed(seed)
    random = torch.rand(n, length, generator=generator, dtype=torch.float64)
    if change.which == "parent":
        lags = torch.tensor(change.lags)
        return length - lags[random[:, : len(lags)].argmax(-1)]
    allowed = torch.ones(n, length, dtype=torch.bool)
    if change.which == "match":
        order = change.order
        windows = history.unfold(1, order, 1)  # [batch, start, order]
        same = (windows == windows[:, -1:]).all(-1)
        allowed[:] = False
        # A copy that overlaps the last states is changed with them.
        ends = max(order - 1, length - order)
        allowed[:, order - 1 : ends] = same[:, : ends + 1 - order]
    chosen = random.where(allowed, -1.0).max(-1)
    return chosen.indices.where(chosen.values >= 0, -1)


def check_pairs(pairs: str) -> None:
    """Raise ValueError for what is not a way to make pairs."""
    choice_of("pairs", pairs, PAIRS)


def draw_pairs(
    source: Source,
    objective: Objective,
    config: DecoderConfig,
    *,
    pairs: Pairs | str,
    change: Change,
    seed: int,
    sequences: int,
) -> tuple[Batch, Batch]:
    """Clean and corrupt sequences, as many as are asked for.

    Raises:
        ValueError: For unknown `pairs`, and where too few sequences can be changed.
    """
    check_pairs(pairs)
    if pairs == "resampled":
        batch = draw(source, objective, config, seed=seed, sequences=2 * sequences)
        return batch.part(slice(sequences)), batch.part(slice(sequences, None))
    batch = draw(source, objective, config, seed=seed, sequences=DRAWN * sequences)
    at = places(batch.history, change, seed=seed)
    edited = swap_parent(batch.history, at.clamp_min(0))
    differs = (at >= 0) & (edited != batch.history).any(-1)
    rows = differs.nonzero().ravel()[:sequences]
    if len(rows) < sequences:
        raise ValueError(
            f"pairs is 'minimal', but {len(rows)} of {DRAWN * sequences} sequences can be changed at a "
            f"{change.which}, expected {sequences}: pairs='resampled' needs none"
        )
    clean = _last_read(_rows(batch, rows, batch.history))
    return clean, _last_read(_rows(batch, rows, edited))


def _rows(batch: Batch, rows: Int[Tensor, " row"], history: Int[Tensor, "batch position"]) -> Batch:
    tokens = batch.with_history(history)[rows]
    return Batch(tokens, history[rows], batch.following[rows], batch.read, batch.known, batch.first)


def _last_read(batch: Batch) -> Batch:
    parts = batch.tokens, batch.history, batch.following
    return Batch(*parts, batch.read[-1:], batch.known[-1:], batch.first)


def law_of(source: Source, batch: Batch) -> Float[Tensor, "batch read state"]:
    """The exact law of the next state at the positions that are read (probability): the best there is.

    Raises:
        ValueError: The source has none.
    """
    return torch.from_numpy(batch.in_context(known_best(source).probabilities(batch.history.numpy())))


def known_best(source: Source) -> Predictor:
    """Returns the best predictor of a source.

    Raises:
        ValueError: The source has none.
    """
    best = source.best()
    if isinstance(best, str):
        raise ValueError(f"source is {source.title()}, expected one whose best predictor is known: {best}")
    return best
