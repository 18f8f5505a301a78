"""Effects of interventions: loss and KL to the exact predictors, with and without, on the same sequences."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.kernels import fast_attention
from mechmarkov.models.replay import replayed
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import Chunk, chunked
from mechmarkov.probing.preconditions import predictor_of
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import interval
from mechmarkov.theory.kernel import FLOOR

Intervention = Callable[[HookedDecoder], AbstractContextManager[object]]

# Tokens that go through at every intervention: an effect needs its second digit, not its fourth.
MAX_MODEL_TOKENS = 1 << 13
MAX_TOKENS = 1 << 17  # of all models together
MAX_ELEMENTS = 5 << 20  # of the largest activation of each of a model's layers: wide models see fewer tokens
MIN_SEQUENCES = 32  # however long and however many models: a mean over fewer would be mostly noise

MEASURES = ("loss", "kl_bigram", "kl_unigram")


@dataclass(frozen=True, eq=False)
class Truth:
    """The references that predictions are judged by.

    Attributes:
        targets: The next states.
        bigram: The exact bigram (in context where the source redraws its chain).
        unigram: The exact unigram, likewise.
    """

    targets: Int[Tensor, "batch read"]
    bigram: Float[Tensor, "batch read state"]
    unigram: Float[Tensor, "batch read state"]

    @staticmethod
    def of(subject: Subject, batch: Batch, history: Int[Tensor, "batch known_position"]) -> "Truth":
        """The exact predictors behind histories `[batch, known_position]`, which may have been edited."""
        predictors, laws = subject.source.predictors(), {}
        for name in ("bigram", "unigram"):
            rule = predictors[predictor_of(subject.source, name)]
            laws[name] = torch.from_numpy(batch.in_context(rule.probabilities(history.numpy())))
        return Truth(batch.targets, **laws)

    @cached_property  # hundreds of interventions are judged by one truth
    def _laws(self) -> list[tuple[Tensor, Tensor]]:
        """Either predictor, and its own entropy: the least loss there is under it."""
        return [(law, torch.special.entr(law).sum(-1)) for law in (self.bigram, self.unigram)]

    def last(self) -> "Truth":
        """The truth of only the last prediction of each sequence."""
        return Truth(self.targets[:, -1:], self.bigram[:, -1:], self.unigram[:, -1:])

    def judge(
        self, probabilities: Float[Tensor, "member batch read state"]
    ) -> Float[np.ndarray, "member measure batch"]:
        """Mean over the predictions of each sequence: loss on the next state, KL from either predictor."""
        logs = probabilities.clamp_min(FLOOR).log()
        chosen = self.targets[None, :, :, None].expand(len(logs), -1, -1, 1)
        rows = [-logs.gather(-1, chosen)[..., 0]]
        for law, least in self._laws:
            rows.append(-least - (law * logs).sum(-1))
        return torch.stack([row.mean(-1) for row in rows], dim=1).numpy()


def sequences_for(subject: Subject) -> Batch:
    """The evaluation sequences that interventions are tried on: at least 32, fewer for long and wide models.

    On a null 32. An effect needs its second digit, not its fourth.
    """
    if subject.axis == "seed":
        return subject.batch.head(MIN_SEQUENCES)
    length = subject.batch.tokens.shape[1]
    elements = subject.config.n_layers * widest(subject.config, length)
    tokens = min(MAX_MODEL_TOKENS, MAX_TOKENS // len(subject.decoder), MAX_ELEMENTS // elements)
    return subject.batch.head(max(MIN_SEQUENCES, tokens // length))


def last_apart(subject: Subject) -> list[tuple[Subject, Batch]]:
    """Pairs of models and sequences: the earlier models of a run with the fewest, the last with the most.

    Verdict and scores are about the last model; a curve over training needs no more than a null does.
    """
    earlier = len(subject.decoder) - 1
    if subject.axis == "seed" or not earlier:
        return [(subject, sequences_for(subject))]
    last = subject.some(slice(earlier, None))
    few = subject.batch.head(MIN_SEQUENCES)
    return [(subject.some(slice(0, earlier)), few), (last, sequences_for(last))]


def widest(config: DecoderConfig, length: int) -> int:
    """Elements a token of a layer's largest activation: attention weights, or queries, keys and values apart.

    Args:
        config: The model.
        length: Tokens in a sequence.
    """
    return config.n_heads * max(length, 3 * config.d_model)


def positions_in_turn(sequences: int, positions: int) -> Int[Tensor, " sequence"]:
    """One position for each sequence: every position once before any is taken again.

    Where there are more positions than sequences they are spread over all, at uneven distances: what a model
    does at every other position is not missed.

    Example:
        >>> positions_in_turn(4, 3).tolist()
        [0, 2, 1, 0]
    """
    # By the golden ratio: even, and never periodic.
    order = torch.arange(positions, dtype=torch.float64) * 0.6180339887498949 % 1
    return order.argsort()[torch.arange(sequences) % positions]


def mean_by_position(
    values: Float[np.ndarray, "*lead sequence"], at: Int[np.ndarray, " sequence"], positions: int
) -> Float[np.ndarray, "*lead position"]:
    """The mean over the sequences that take a position; NaN where none does.

    Args:
        values: One a sequence.
        at: The position that each sequence takes, such as from `positions_in_turn`.
        positions: How many there are.

    Example:
        >>> mean_by_position(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 2]), 3).tolist()
        [1.5, nan, 4.0]
    """
    taken = (at[:, None] == np.arange(positions)).astype(float)
    count = taken.sum(0)
    return np.where(count > 0, values @ taken / np.maximum(count, 1), np.nan)


def model_chunks(subject: Subject, batch: Batch) -> Iterator[Chunk]:
    """Yields the models in groups of bounded memory (`chunked`), each with all sequences of a batch.

    The sequences stay together, as ablations at the mean take it over all of them.
    """
    n, length = batch.tokens.shape
    per_token = widest(subject.config, length)
    return chunked(subject.decoder, batch.tokens, subject.chunk_elements, per_token=per_token, sequences=n)


@torch.no_grad()
def predictions(
    subject: Subject, model: HookedDecoder, batch: Batch, tokens: Int[Tensor, "batch position"]
) -> Float[Tensor, "*member batch read state"]:
    """The predictions (probability) of a stack, or of one model, at the positions that are read.

    Args:
        subject: Its objective says how outputs are read.
        model: Any model or stack of that shape, such as `subject.decoder`.
        batch: Says which positions are read.
        tokens: What the model reads: `batch.tokens`, or these with an edited history.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
        >>> predictions(subject, subject.decoder, subject.batch, subject.batch.tokens).shape
        torch.Size([1, 8, 1, 6])
    """
    with fast_attention(model, tokens):
        return subject.objective.predict(model(tokens, read=batch.read).double())


def at_temperature(
    probabilities: Float[Tensor, "*lead state"], inverse: float | Float[Tensor, "*#lead #state"]
) -> Float[Tensor, "*lead state"]:
    """Returns predictions at another temperature; a zero counts as the least that is seen, or 1e-12.

    Args:
        probabilities: What a model predicts.
        inverse: One over the temperature: 2 is twice as sure.

    Example:
        >>> at_temperature(torch.tensor([0.8, 0.2]), 2.0)
        tensor([0.9412, 0.0588])
    """
    least = probabilities[probabilities > 0].min().clamp_max(FLOOR)
    return (inverse * probabilities.clamp_min(least).log()).softmax(-1)


def changes(
    subject: Subject, batch: Batch, interventions: Iterable[Intervention]
) -> tuple[Float[np.ndarray, "member measure batch"], Float[np.ndarray, "member intervention measure batch"]]:
    """Returns what each sequence measures without interventions, and with each of them less that (nats).

    Args:
        subject: The models.
        batch: The sequences.
        interventions: Each makes a context manager of a stack, such as `lambda model: ablate(model, "L0H0")`.

    Returns:
        Two arrays over `MEASURES`: loss on the next states, KL from the exact bigram, KL from the unigram.
    """
    tried = (nullcontext, *interventions)
    truth, changed = Truth.of(subject, batch, batch.history), []
    for chunk in model_chunks(subject, batch):
        rows = []
        with replayed(chunk.model):
            for intervention in tried:
                with intervention(chunk.model):
                    rows.append(truth.judge(predictions(subject, chunk.model, batch, batch.tokens)))
        changed.append(np.stack(rows, axis=1))
    whole = np.concatenate(changed)
    return whole[:, 0], whole[:, 1:] - whole[:, :1]


def effects(
    subject: Subject,
    batch: Batch,
    interventions: Mapping[tuple[str, ...], Intervention],
    dims: tuple[str, ...],
    name: str,
) -> xr.Dataset:
    """The effect of every intervention on every model: with it, less without it, on the same sequences.

    Args:
        subject: The models.
        batch: The sequences.
        interventions: By their coordinates along `dims`; combinations that are left out are NaN.
        dims: What tells interventions apart.
        name: The name of the variable.

    Returns:
        `clean` [axis, measure], and `name` with its 95 % bootstrap interval over sequences, `name_low` and
        `name_high` [axis, *dims, measure], all in nats.
    """
    clean, changed = changes(subject, batch, interventions.values())
    low, high = interval(changed)
    coords = {dim: list(dict.fromkeys(key[i] for key in interventions)) for i, dim in enumerate(dims)}
    cells: list[Any] = [[coords[dim].index(key[i]) for key in interventions] for i, dim in enumerate(dims)]
    shape = (len(clean), *map(len, coords.values()), len(MEASURES))
    per_cell = (subject.axis, *dims, "measure")
    data = xr.Dataset(
        {"clean": ((subject.axis, "measure"), clean.mean(-1), {"unit": "nats"})},
        coords={subject.axis: subject.coordinates, "measure": list(MEASURES), **coords},
    )
    for suffix, values in (("", changed.mean(-1)), ("_low", low), ("_high", high)):
        table = np.full(shape, np.nan)
        table[:, *cells] = values
        data[name + suffix] = (per_cell, table, {"unit": "nats"})
    return data
