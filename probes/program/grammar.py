"""The grammar of fitted programs: terms that read a context, whose scores add up before a softmax.

    score[j] = bias[j] + sum over terms of term(context)[j]

A term is one of these:

- a table of the token at one lag, or of two tokens;
- how often each state has come, times the row of the current one (Ildiz et al. 2024, arXiv 2402.13512);
- counts of n-grams in the context, with a fitted pseudo-count and a weight that changes with the position;
- a head that mixes lags: one softmax over them, one table;
- a head that looks for tokens: a weight for each pair of query and key token, one table (skip-trigrams);
- an induction head: the tokens that followed a match, one table;
- a bias for each part of the context.

A program may begin with a table of the current token at each position, or with two of them in turn.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .context import EXACT_POSITIONS, MAX_HEAD_LAGS, Context, Scores

MAX_BACK = 8  # tokens: tables of single tokens
MAX_PAIR_ROWS = 512
MAX_STATES = 64  # of a table of states by states that is fitted

Parameters = list[Tensor]


class Term(ABC):
    """One term of a program, whose numbers are in several tensors."""

    tensors: ClassVar[int]

    @property
    @abstractmethod
    def name(self) -> str:
        """For people and files."""

    @abstractmethod
    def start(self, context: Context, law: Scores, now: Scores) -> Parameters:
        """Parameters to start from, given the model's predictions and the program's so far (probability)."""

    @abstractmethod
    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """Returns what the term adds to the scores."""


def _proportional(
    cell: Int[Tensor, "batch read"], rows: int, law: Scores, now: Scores
) -> Float[Tensor, "row state"]:
    """The table that makes the program's mean prediction in each cell the model's, one step of it."""
    n = law.shape[-1]
    index = cell.flatten()

    def means(x: Scores) -> Tensor:
        total = torch.zeros(rows, n, dtype=torch.float64).index_add_(0, index, x.reshape(-1, n))
        return total.clamp_min(1e-12)

    seen = torch.bincount(index, minlength=rows)[:, None] > 0
    return torch.where(seen, (means(law) / means(now)).log(), 0.0)


@dataclass(frozen=True)
class Table(Term):
    """A table of the tokens at one lag or at several.

    Attributes:
        lags: The lags, ascending; 1 is the parent of the predicted token.
    """

    tensors: ClassVar[int] = 1
    lags: tuple[int, ...]

    @property
    def name(self) -> str:
        """For people and files: "lag 1", "lags 1, 2"."""
        return f"lag{'s' * (len(self.lags) > 1)} {', '.join(map(str, self.lags))}"

    def _cell(self, context: Context) -> Int[Tensor, "batch read"]:
        cell = torch.zeros_like(context.token(1))
        for lag in self.lags:
            cell = cell * (context.n_states + 1) + context.token(lag)
        return cell

    def start(self, context: Context, law: Scores, now: Scores) -> Parameters:
        """The table that fits by itself."""
        return [_proportional(self._cell(context), (context.n_states + 1) ** len(self.lags), law, now)]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """A look-up."""
        return parameters[0][self._cell(context)]


@dataclass(frozen=True)
class PlacedTable(Term):
    """A table of the current token at each position."""

    name: ClassVar[str] = "lag 1 by position"
    tensors: ClassVar[int] = 1
    lags: ClassVar[tuple[int, ...]] = (1,)

    def _places(self, context: Context) -> tuple[Int[Tensor, " read"], int]:
        """Returns which table each prediction looks up, and how many there are."""
        return context.known, context.history.shape[1]

    def _cell(self, context: Context) -> Int[Tensor, "batch read"]:
        return self._places(context)[0] * (context.n_states + 1) + context.token(1)

    def start(self, context: Context, law: Scores, now: Scores) -> Parameters:
        """The tables that fit by themselves."""
        rows = self._places(context)[1] * (context.n_states + 1)
        return [_proportional(self._cell(context), rows, law, now)]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """A look-up."""
        return parameters[0][self._cell(context)]


@dataclass(frozen=True)
class TurnTable(PlacedTable):
    """A table of the current token at even positions, and another at odd ones."""

    name: ClassVar[str] = "lag 1 in turn"

    def _places(self, context: Context) -> tuple[Int[Tensor, " read"], int]:
        return context.known % 2, 2


@dataclass(frozen=True)
class Position(Term):
    """A bias for each part of the context."""

    name: ClassVar[str] = "position"
    tensors: ClassVar[int] = 1

    def start(self, context: Context, law: Scores, now: Scores) -> Parameters:
        """The biases that fit by themselves."""
        cell = context.part_of_context.expand(len(context.history), -1)
        return [_proportional(cell, context.parts_of_context, law, now)]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """A look-up."""
        return parameters[0][context.part_of_context].expand(len(context.history), -1, -1)


@dataclass(frozen=True)
class Counts(Term):
    """N-grams in the context, smoothed, with a weight that changes with the position.

    `w(t) log(count_j + a ((1 - m) / K + m u_j))`, up to what is the same for every state j. K is the number
    of states, `u_j = (n_j + 1) / (n + K)` the law of single tokens there; m is 0 for order 1.
    `w(t) = w_0 + w_1 log(t / 8)` after t known tokens. Parameters: `[log a]`, `[logit m]`, `[w_0, w_1]`.

    Attributes:
        order: The number of tokens of an n-gram, the predicted one among them.

    Example:
        >>> context = Context(torch.tensor([[0, 1, 0, 1, 0]]), known=torch.tensor([4]), n_states=2)
        >>> term = Counts(order=2)
        >>> term.scores(context, term.start(context, None, None)).exp().round(decimals=2).tolist()
        [[[0.25, 0.75]]]
    """

    tensors: ClassVar[int] = 3
    order: int

    @property
    def name(self) -> str:
        """For people and files: "counts of 2"."""
        return f"counts of {self.order}"

    def start(self, context: Context, _law: Scores, _now: Scores) -> Parameters:
        """One of each state added, weight one."""
        log_a = torch.tensor([float(context.n_states)]).double().log()
        return [log_a, torch.tensor([-2.0]).double(), torch.tensor([1.0, 0.0]).double()]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """The weighted logarithm of smoothed counts."""
        n = context.n_states
        single = context.counts(1)
        unigram = (single + 1) / (single + 1).sum(-1, keepdim=True)
        mixed = parameters[1].sigmoid() if self.order > 1 else torch.zeros(1, dtype=torch.float64)
        prior = (1 - mixed) / n + mixed * unigram
        smooth = context.counts(self.order) + parameters[0].clamp(-12, 12).exp() * prior
        weight = parameters[2][0] + parameters[2][1] * torch.log((context.known.double() + 1) / 8)
        return weight[:, None] * (smooth / smooth.sum(-1, keepdim=True)).log()


@dataclass(frozen=True)
class WeightedRow(Term):
    """`log(n_j + a) + T[q, j]`: how often state j has come, times the row of the current state q."""

    name: ClassVar[str] = "counts times a row"
    tensors: ClassVar[int] = 2

    def _log_counts(self, context: Context, log_a: Tensor) -> Scores:
        return (context.counts(1) + log_a.clamp(-30, 12).exp()).log()

    def start(self, context: Context, law: Scores, now: Scores) -> Parameters:
        """Little added to the counts, and the table that fits next to them."""
        n, log_a = context.n_states, torch.tensor([-6.0]).double()
        weighted = (now.log() + self._log_counts(context, log_a)).softmax(-1)
        return [log_a, _proportional(context.token(1), n + 1, law, weighted)]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """The logarithm of the product."""
        return self._log_counts(context, parameters[0]) + parameters[1][context.token(1)]


@dataclass(frozen=True)
class LagHead(Term):
    """A head that mixes lags: one softmax over them, one table of the token that is read."""

    name: ClassVar[str] = "head over lags"
    tensors: ClassVar[int] = 2

    def start(self, context: Context, law: Scores, now: Scores) -> Parameters:
        """All lags equally, and the parent's table."""
        n = context.n_states
        table = _proportional(context.token(1), n + 1, law, now)[:n]
        return [torch.zeros(MAX_HEAD_LAGS + 1, dtype=torch.float64), table]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """The mean row of the tokens that are read."""
        weight = (parameters[0] - parameters[0].max()).exp()
        by_lag, rest = context.by_lag
        read = torch.einsum("l,brls->brs", weight[:-1], by_lag) + weight[-1] * rest
        return read @ parameters[1] / read.sum(-1, keepdim=True)


@dataclass(frozen=True)
class TokenHead(Term):
    """A head that looks for tokens: a weight for each query and key token, one table (skip-trigrams)."""

    name: ClassVar[str] = "head by tokens"
    tensors: ClassVar[int] = 2

    def start(self, context: Context, law: Scores, now: Scores) -> Parameters:
        """Weights that differ a little, and the parent's table."""
        n = context.n_states
        table = _proportional(context.token(1), n + 1, law, now)[:n]
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(n, n, generator=generator, dtype=torch.float64), table]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """The mean row of the tokens that are read."""
        weight = parameters[0] - parameters[0].amax(-1, keepdim=True)
        read = context.counts(1) * weight[context.token(1)].exp()
        return read @ parameters[1] / read.sum(-1, keepdim=True).clamp_min(1e-300)


@dataclass(frozen=True)
class MatchHead(Term):
    """An induction head: it reads the tokens that followed the last `order - 1` tokens before, one table.

    It gives all tokens together a weight too, as of some matches: where nothing matches it reads them all.

    Attributes:
        order: One more than the number of tokens that match.
    """

    tensors: ClassVar[int] = 2
    order: int

    @property
    def name(self) -> str:
        """For people and files: "head on matches of 1"."""
        return f"head on matches of {self.order - 1}"

    def start(self, context: Context, _law: Scores, _now: Scores) -> Parameters:
        """One match's weight on all tokens, and a table that copies."""
        return [torch.zeros(1, dtype=torch.float64), torch.eye(context.n_states, dtype=torch.float64)]

    def scores(self, context: Context, parameters: Parameters) -> Scores:
        """The mean row of the tokens that are read."""
        single = context.counts(1)
        unigram = single / single.sum(-1, keepdim=True)
        read = context.counts(self.order) + parameters[0].clamp(-30, 30).exp() * unigram
        return read @ parameters[1] / read.sum(-1, keepdim=True)


def terms(n_states: int, length: int) -> list[Term]:
    """The terms that a program may have.

    Args:
        n_states: The number of states of the source.
        length: The number of known tokens of the context.

    Example:
        >>> [term.name for term in terms(n_states=3, length=2)][:6]
        ['lag 1', 'lag 2', 'lags 1, 2', 'counts of 1', 'counts of 2', 'position']
    """
    candidates: list[Term] = []
    if n_states <= MAX_STATES:
        candidates += [Table((lag,)) for lag in range(1, min(MAX_BACK, length) + 1)]
    if (n_states + 1) ** 2 <= MAX_PAIR_ROWS:
        candidates += [Table(lags) for lags in ((1, 2), (1, 3), (2, 3)) if max(lags) <= length]
    if length > 1:
        candidates += [Counts(order) for order in (1, 2, 3) if order <= length]
        candidates.append(Position())
        if n_states <= MAX_STATES:
            candidates += [WeightedRow(), LagHead(), TokenHead()]
            candidates += [MatchHead(order) for order in (2, 3) if order <= length]
    return candidates


def placed_terms(n_states: int, length: int) -> list[Term]:
    """The terms that a program may begin with where the others leave much: tables that change over positions.

    Args:
        n_states: The number of states of the source.
        length: The number of known tokens of the context.

    Example:
        >>> [term.name for term in placed_terms(n_states=3, length=12)]
        ['lag 1 in turn', 'lag 1 by position']
    """
    if length < 2 or n_states > MAX_STATES:
        return []
    few = length <= EXACT_POSITIONS and length * (n_states + 1) <= MAX_PAIR_ROWS
    return [TurnTable(), *[PlacedTable()] * few]
