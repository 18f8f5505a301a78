"""What a model is trained for, and how its output is read as a prediction."""

import operator
from typing import Literal

from jaxtyping import Float, Int
from pydantic import Field, model_validator

from mechmarkov.sources import Source
from mechmarkov.utils.config import Fields, Number, Truth
from mechmarkov.utils.lazy_torch import Tensor, torch

MAX_STATES_FIRST_AXIS = 16  # up to this many, softmax is three times as fast along the first axis as the last


class Objective(Fields):
    """A training objective; frozen, unknown keys refused.

    Attributes:
        kind: `cross_entropy` (softmax), `raw_log` (`-log(score_y + eps)`, Shi & Cao 2025, section 2),
            `normalised_log` (`-log(score_y / sum + eps)` over scores floored at 0) or `squared`
            (squared distance of the scores to the one-hot target).
        eps: The floor inside the logarithm of the two log kinds.
        read: Which positions are predictions: every one, or only the last.
        query: Whether sequences end in an extra query token, id `K = d_vocab - 1`, which stands in for
            the state to be predicted.
        bos: Whether sequences begin with an extra token, id `K = d_vocab - 1`, before the first state. What
            is predicted from only that token is not scored. Written to files only where it is true.
    """

    kind: Literal["cross_entropy", "raw_log", "normalised_log", "squared"] = "cross_entropy"
    eps: Number = Field(default=0.1, gt=0, le=1)
    read: Literal["all", "last"] = "all"
    query: Truth = False
    # Files of models without such a token stay as they were before it was known.
    bos: Truth = Field(default=False, exclude_if=operator.not_)

    @model_validator(mode="after")
    def _one_extra_token(self) -> "Objective":
        if self.bos and self.query:
            raise ValueError("bos is true, expected false where sequences end in a query token")
        return self

    @property
    def n_extra(self) -> int:
        """Returns how many tokens of a sequence are not states."""
        return int(self.query) + int(self.bos)

    @property
    def reads_last_only(self) -> bool:
        """Returns whether only the last position predicts; in front of a query what follows is in sight."""
        return self.read == "last" or self.query

    def framed(self, states: Int[Tensor, "*batch state"], extra: int) -> Int[Tensor, "*batch position"]:
        """Returns what a model reads of states: before them, or as a query behind them, the extra token.

        Example:
            >>> Objective(read="last", query=True).framed(torch.tensor([[0, 1]]), 2)
            tensor([[0, 1, 2]])
        """
        if not self.n_extra:
            return states
        token = torch.full_like(states[..., :1], extra)
        return torch.cat([token, states] if self.bos else [states, token], -1)

    def beginning(self) -> "Objective":
        """The same of sequences that begin with a token of their own (`bos`)."""
        return Objective(**{**self.model_dump(), "bos": True})

    def loss(
        self, scores: Float[Tensor, "*batch d_vocab_out"], targets: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """Loss of each prediction, in nats (`squared`: in squared score units).

        Example:
            >>> uniform = torch.zeros(1, 4)
            >>> Objective().loss(uniform, torch.tensor([2])).exp()
            tensor([4.])
        """
        if self.kind == "squared":
            return (scores - torch.nn.functional.one_hot(targets, scores.shape[-1])).square().sum(-1)
        if self.kind == "cross_entropy":
            axis = max(0, scores.ndim - 3) if scores.shape[-1] <= MAX_STATES_FIRST_AXIS else -1
            log_p = scores.movedim(-1, axis).log_softmax(axis)
            return -log_p.gather(axis, targets.unsqueeze(axis)).squeeze(axis)
        values = scores if self.kind == "raw_log" else self.predict(scores)
        return -(values.gather(-1, targets[..., None]).squeeze(-1) + self.eps).log()

    @property
    def unit(self) -> str:
        """Returns the unit of the loss: nats, or squared score for squares."""
        return "squared score" if self.kind == "squared" else "nats"

    def expected_loss(
        self, scores: Float[Tensor, "*batch d_vocab_out"], law: Float[Tensor, "*read d_vocab_out"]
    ) -> Float[Tensor, "*batch"]:
        """Mean loss of each prediction over next states drawn from a law, in the unit of `loss`.

        The law's leading axes are the last of the scores': one law serves the models of a stack.

        Example:
            >>> fair = torch.tensor([[0.5, 0.5]])
            >>> Objective().expected_loss(torch.zeros(1, 2), fair).exp()
            tensor([2.])
        """
        if self.kind == "squared":
            return scores.square().sum(-1) - 2 * (law * scores).sum(-1) + 1
        if self.kind == "cross_entropy":
            return -(law * scores.log_softmax(-1)).sum(-1)
        values = scores if self.kind == "raw_log" else self.predict(scores)
        return -(law * (values.where(law > 0, 1.0) + self.eps).log()).sum(-1)

    def predict(self, scores: Float[Tensor, "*batch d_vocab_out"]) -> Float[Tensor, "*batch d_vocab_out"]:
        """The scores as probabilities: softmax, or `max(score, 0) / sum`, uniform where the sum is 0.

        Example:
            >>> Objective(kind="raw_log").predict(torch.tensor([[3.0, 1.0, -5.0], [0.0, 0.0, 0.0]]))
            tensor([[0.7500, 0.2500, 0.0000],
                    [0.3333, 0.3333, 0.3333]])
        """
        if self.kind == "cross_entropy":
            return scores.softmax(-1)
        positive = scores.clamp_min(0)
        total = positive.sum(-1, keepdim=True)
        uniform = torch.full_like(scores, 1 / scores.shape[-1])
        # Only a sum of zero is uniform: a NaN stays a NaN.
        return torch.where(total == 0, uniform, positive / total.where(total != 0, 1))


def mean_over(
    values: Float[Tensor, "stack batch read"], weights: Float[Tensor, "*stack batch read"] | None
) -> Float[Tensor, " stack"]:
    """The mean over sequences and targets, by what each stands for where that is given."""
    if weights is None:
        return values.mean((-2, -1))
    return (values * weights.to(values.dtype)).mean(-1).sum(-1)


def check_length(source: Source, objective: Objective, n_ctx: int) -> None:
    """Refuse a context that does not fit a source whose sequences are all of one length.

    Args:
        source: The source; one whose sequences may be of any length takes every context.
        objective: The objective; a query token takes one position of the context.
        n_ctx: The length of the model's context (positions).

    Raises:
        ValueError: naming `model.n_ctx`.
    """
    fits = None if source.length is None else source.length - 1 + objective.n_extra
    if fits is not None and n_ctx != fits:
        raise ValueError(
            f"model.n_ctx is {n_ctx}, expected {fits}: sequences of the source have {source.length} states"
        )


def sequence_length(objective: Objective, n_ctx: int) -> int:
    """States per training sequence: the model's inputs and the target after them.

    Of N inputs N-1 are states where one is a query or the beginning of the sequence, so N states are drawn;
    else N+1.
    """
    return n_ctx + 1 - objective.n_extra


def evaluated_length(source: Source, objective: Objective, n_ctx: int) -> int:
    """States of a sequence to evaluate on: those of training, or all there are where the data have fewer.

    A model that predicts at every position is as good at those that shorter sequences reach. One that is read
    only at its last position is not: there as many are needed, and the source refuses them.
    """
    length = sequence_length(objective, n_ctx)
    if objective.reads_last_only:
        return length
    return source.held_out_length(length)


def inputs_and_targets(
    states: Int[Tensor, "*stack batch state"], objective: Objective, n_states: int
) -> tuple[Int[Tensor, "*stack batch position"], Int[Tensor, "*stack batch read"]]:
    """Split sequences into what the model reads and what it must predict at the positions that are read.

    Raises:
        ValueError: The objective has a beginning-of-sequence token, which no training of ours has.

    Example:
        >>> states = torch.tensor([[0, 1, 2, 1]])
        >>> inputs_and_targets(states, Objective(), 3)
        (tensor([[0, 1, 2]]), tensor([[1, 2, 1]]))
        >>> inputs_and_targets(states, Objective(read="last", query=True), 3)
        (tensor([[0, 1, 2, 3]]), tensor([[1]]))
    """
    if objective.bos:
        raise ValueError("objective.bos is true: a training of ours has no beginning-of-sequence token")
    tokens = objective.framed(states[..., :-1], n_states)
    return tokens, states[..., 1:] if objective.read == "all" else states[..., -1:]
