"""The evaluation batch: fresh sequences from the source, the model's input and the states to predict."""

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.objectives import Objective, evaluated_length, sequence_length
from mechmarkov.sources import Source
from mechmarkov.sources.base.source import check_drawn
from mechmarkov.utils.text import shown

# Predictions evaluated by default: enough that a mean KL of 0.01 nats is known to about a tenth.
DEFAULT_PREDICTIONS = 1 << 16
MIN_SEQUENCES, MAX_SEQUENCES = 64, 512
# A chain of its own a sequence: means are over chains, some of which cost a model far more than others.
MAX_REDRAWN = 2048
# Probabilities of all models over all predictions: in float64 512 MB. Each exact predictor adds its own.
MAX_PROBABILITIES = 1 << 26


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences for evaluation.

    Attributes:
        tokens: What the model reads.
        history: The states behind each prediction: `history[:, :i+1]` is known when `following[:, i]` is
            to be predicted.
        following: The state after each history position.
        read: The model's positions whose output is a prediction.
        known: The history positions that those predictions know last: their parents.
        first: The position of the first state: 1 behind the beginning-of-sequence token, else 0.
    """

    tokens: Int[Tensor, "batch position"]
    history: Int[Tensor, "batch known_position"]
    following: Int[Tensor, "batch known_position"]
    read: Int[Tensor, " read"]
    known: Int[Tensor, " read"]
    first: int = 0

    @property
    def states(self) -> Int[Tensor, "batch position"]:
        """The sequences as the source gave them."""
        return torch.cat([self.history[:, :1], self.following], dim=1)

    @property
    def targets(self) -> Int[Tensor, "batch read"]:
        """The states to be predicted."""
        return self.following[:, self.known]

    @property
    def parents(self) -> Int[Tensor, "batch read"]:
        """The states right before the predicted ones (lag 1)."""
        return self.history[:, self.known]

    @property
    def parent_lag(self) -> int:
        """Query position minus key position of lag 1: 0 for a next-token model, 1 behind a query token."""
        return int(self.read[-1] - self.known[-1]) - self.first

    @property
    def keys(self) -> slice:
        """The model's positions that hold the states of `history`."""
        return slice(self.first, self.first + self.history.shape[1])

    @cached_property
    def rows(self) -> slice | Tensor:
        """The positions that are read, as a slice where none between them is left out: no copy is made.

        A device is asked once: of a batch in parts, ask the whole.
        """
        first, last = int(self.read[0]), int(self.read[-1])
        return slice(first, last + 1) if last - first + 1 == len(self.read) else self.read

    @property
    def reach(self) -> Float[Tensor, " lag"]:
        """Share of the predictions that have a token at each lag, from lag 0 (the extra token) on."""
        lag = torch.arange(self.tokens.shape[1] + 1 - self.first)
        return (self.known[:, None] + 1 >= lag).double().mean(0)

    def seen(self, window: int | None) -> slice:
        """The history positions that the last prediction may look at, through a window (None: all)."""
        real = self.history.shape[1]
        first = 0 if window is None else max(0, int(self.read[-1]) - self.first - window)
        # A query token that sees only itself: all of them, unseen.
        return slice(first if first < real else 0, real)

    def visible(self, window: int | None) -> Bool[Tensor, "read key"]:
        """True where a prediction may look at a token: one known by then, within a window (None: all)."""
        key = torch.arange(self.history.shape[1], device=self.read.device)
        seen = key <= self.known[:, None]
        return seen if window is None else seen & (self.read[:, None] - self.first - key <= window)

    def extra_visible(self, window: int | None) -> Bool[Tensor, " read"]:
        """Returns whether each prediction may look at a token that is not a state."""
        if not self.first:
            return torch.full_like(self.read, bool(self.parent_lag), dtype=torch.bool)
        return self.read >= 0 if window is None else self.read <= window

    def with_history(self, history: Int[Tensor, "batch known_position"]) -> Int[Tensor, "batch position"]:
        """Returns what the model reads of other histories: a token that is not a state stays."""
        return torch.cat([self.tokens[:, : self.first], history, self.tokens[:, self.keys.stop :]], dim=1)

    def head(self, sequences: int) -> "Batch":
        """The first `sequences` sequences, as a batch."""
        return self.part(slice(0, sequences))

    def part(self, sequences: slice) -> "Batch":
        """A slice of the sequences, as a batch."""
        return replace(
            self,
            tokens=self.tokens[sequences],
            history=self.history[sequences],
            following=self.following[sequences],
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch with its tensors on a device."""
        parts = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "first"}
        return Batch(first=self.first, **{name: tensor.to(device) for name, tensor in parts.items()})

    def in_context(
        self, probabilities: Float[np.ndarray, "batch known_position state"]
    ) -> Float[np.ndarray, "batch read state"]:
        """A predictor's output at the positions that are read."""
        return probabilities[:, self.known.numpy()]


def draw(
    source: Source,
    objective: Objective,
    config: DecoderConfig,
    *,
    seed: int,
    sequences: int | None = None,
    models: int = 1,
) -> Batch:
    """Draw a batch from a CPU generator, so that it is the same on every device.

    Args:
        source: Where the sequences come from.
        objective: Says whether a query token ends the input, and which positions are read.
        config: The model; its `n_ctx` is the length of the input, or less where sequences are shorter.
        seed: The seed of the generator.
        sequences: How many; by default as many as give 65 536 predictions, between 64 and 512 (2048 where
            each sequence has a chain of its own), and fewer where the probabilities of all models would
            take more than 512 MB.
        models: How many will predict.

    Example:
        >>> import mechmarkov as mm
        >>> run = mm.example("walk")
        >>> draw(run.source, run.objective, run.config, seed=0, sequences=8).tokens.shape
        torch.Size([8, 97])
    """
    length = evaluated_length(source, objective, config.n_ctx)
    if sequences is None:
        n_read = 1 if objective.reads_last_only else length - 1
        affordable = MAX_PROBABILITIES // (n_read * source.n_states * models)
        most = MAX_REDRAWN if source.redraws else MAX_SEQUENCES
        sequences = max(MIN_SEQUENCES, min(most, DEFAULT_PREDICTIONS // n_read))
        sequences = max(1, min(sequences, affordable))
    generator = torch.Generator().manual_seed(seed)
    states = source.sample_held_out(sequences, length, generator=generator)
    return batch_of(check_drawn(states, source), source.n_states, objective, config)


def batch_of(
    states: Int[Tensor | np.ndarray, "batch position"],
    n_states: int,
    objective: Objective,
    config: DecoderConfig,
) -> Batch:
    """Sequences as a batch.

    Args:
        states: The sequences, each as long as the model's context and, without a query token, one longer.
            Shorter ones, where every position is read: then the model's last positions are not.
        n_states: The number of states of the source.
        objective: Says whether a query token ends the input, and which positions are read.
        config: The model.

    Raises:
        ValueError: Sequences of another length, none at all, or numbers that are not states.

    Example:
        >>> shape = {"n_layers": 1, "d_model": 4, "d_head": 4, "n_heads": 1, "n_ctx": 3, "d_vocab": 2}
        >>> config = DecoderConfig(attn_only=True, **shape)
        >>> batch = batch_of(np.array([[0, 1, 1, 0]]), 2, Objective(), config)
        >>> batch.tokens.tolist(), batch.targets.tolist()
        ([[0, 1, 1]], [[1, 1, 0]])
    """
    try:
        states = torch.as_tensor(states).cpu()
    except (TypeError, ValueError, RuntimeError):  # torch's words name no argument
        expected = "sequences of one length, of states by number: [[0, 1], [1, 0]]"
        raise TypeError(f"tokens is {shown(states)}, expected {expected}") from None
    length = sequence_length(objective, config.n_ctx)
    shorter = not objective.reads_last_only
    fits = states.ndim == 2 and (states.shape[1] == length or (shorter and 2 <= states.shape[1] < length))
    if len(states) == 0 or not fits:
        expected = f"(sequences, {length})" + " or fewer states, at least 2" * shorter
        one = ": for one sequence tokens=[sequence], or mm.tokens(run, sequence)" * (states.ndim == 1)
        raise ValueError(f"tokens have shape {tuple(states.shape)}, expected {expected}{one}")
    if states.dtype.is_floating_point or states.dtype == torch.bool or states.dtype.is_complex:
        raise ValueError(f"tokens are {states.dtype}, expected integers")
    states = states.long()
    if not 0 <= int(states.min()) <= int(states.max()) < n_states:
        raise ValueError(
            f"tokens run from {int(states.min())} to {int(states.max())}, expected states 0 to {n_states - 1}"
        )
    history, following = states[:, :-1], states[:, 1:]
    tokens = objective.framed(history, config.d_vocab - 1)
    first, last_known = int(objective.bos), history.shape[1] - 1
    if objective.reads_last_only:
        read, known = torch.tensor([config.n_ctx - 1]), torch.tensor([last_known])
    else:
        known = torch.arange(history.shape[1])
        read = known + first
    return Batch(tokens, history, following, read, known, first)
