"""The context as a fitted program sees it: tokens by lag, counts of n-grams, the part of the context."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.probing.batch import Batch

MAX_HEAD_LAGS = 16  # with a weight of their own; all farther ones share one
EXACT_POSITIONS = 16  # of a context with a bias for each position
POSITION_PARTS = 12  # of a longer one

Scores = Float[Tensor, "batch read state"]


@dataclass(frozen=True, eq=False)
class Context:
    """The inputs that a program may look at, for some predictions of some sequences.

    Attributes:
        history: The states, `[batch, known_position]`.
        known: The last known position of each prediction.
        n_states: The number of states of the source.
    """

    history: Int[Tensor, "batch known_position"]
    known: Int[Tensor, " read"]
    n_states: int
    _counted: dict[int, Scores] = field(default_factory=dict, init=False)

    @staticmethod
    def of(batch: Batch, n_states: int, reads: Int[Tensor, " read"] | None = None) -> "Context":
        """The context of a batch's predictions.

        Args:
            batch: The sequences.
            n_states: The number of states of the source.
            reads: The indices of the predictions, if not all.

        Example:
            >>> import mechmarkov as mm
            >>> batch = mm.Subject.of(mm.example("induction"), sequences=8).batch
            >>> context = Context.of(batch, n_states=3)
            >>> context.token(2)[0, :3].tolist(), context.token(1)[0, :3].tolist()  # 3: there is none
            ([3, 0, 0], [0, 0, 0])
        """
        known = batch.known if reads is None else batch.known[reads]
        return Context(batch.history, known, n_states)

    def token(self, lag: int) -> Int[Tensor, "batch read"]:
        """The token at a lag; `n_states` where there is none."""
        at = self.known - (lag - 1)
        tokens = self.history[:, at.clamp_min(0)]
        return torch.where(at >= 0, tokens, self.n_states)

    @cached_property
    def onehot(self) -> Float[Tensor, "batch known_position state"]:
        """The states, one-hot."""
        return torch.nn.functional.one_hot(self.history, self.n_states).double()

    def counts(self, order: int) -> Scores:
        """Returns how often each state followed the last `order - 1` tokens; for order 1, at all."""
        if order not in self._counted:
            self._counted[order] = self._count(order)
        return self._counted[order]

    def _count(self, order: int) -> Scores:
        if order == 1:
            return self.onehot.cumsum(1)[:, self.known]
        key = torch.arange(self.history.shape[1])
        match = (key <= self.known[:, None]) & (key >= order - 1)
        match = match.expand(len(self.history), -1, -1)
        for back in range(order - 1):
            before = self.history[:, (key - 1 - back).clamp_min(0)]
            match = match & (before[:, None] == self.token(1 + back)[..., None])
        return match.double() @ self.onehot

    @cached_property
    def by_lag(self) -> tuple[Float[Tensor, "batch read lag state"], Scores]:
        """The tokens at the first lags, one-hot (0 where there is none), and the counts of all others."""
        eye = torch.eye(self.n_states + 1, self.n_states, dtype=torch.float64)
        lags = [self.token(lag) for lag in range(1, MAX_HEAD_LAGS + 1)]
        at_lags = eye[torch.stack(lags, dim=-1)]
        return at_lags, self.counts(1) - at_lags.sum(2)

    @property
    def parts_of_context(self) -> int:
        """Returns how many parts a context has: positions, if they are few."""
        positions = self.history.shape[1]
        return positions if positions <= EXACT_POSITIONS else POSITION_PARTS

    @property
    def part_of_context(self) -> Int[Tensor, " read"]:
        """The part of the context that each position is in: itself, or parts growing by half."""
        if self.history.shape[1] <= EXACT_POSITIONS:
            return self.known
        return (torch.log2(self.known.double() + 1) * 2).long().clamp_max(POSITION_PARTS - 1)
