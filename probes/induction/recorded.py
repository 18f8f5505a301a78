"""Recorded: attention on matches, as sums over sequences."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import (
    Arrays,
    Hook,
    PerLayer,
    PerSequence,
    Quantity,
    Recording,
    Scope,
)
from mechmarkov.theory.kernel import FLOOR

from .matches import Matches, find_matches, sequences_for


@dataclass(frozen=True, eq=False)
class InductionReference:
    """The values that do not depend on the model.

    Attributes:
        matches: The matches of the first sequences of the batch; attention is read only on these.
        ideal: The score of a head that is uniform on the matches.
        queries: How many queries have a match.
        previous_chance: The previous-token score of uniform attention.
        duplicate_chance: The duplicate-token score of uniform attention.
    """

    matches: Matches
    ideal: Float[np.ndarray, " k"]
    queries: Float[np.ndarray, " k"]
    previous_chance: float
    duplicate_chance: float


@dataclass(frozen=True, eq=False)
class InductionStats:
    """Means over queries that have a match, per model, layer, head and number k of matched tokens.

    Attributes:
        mass: Attention on keys that match k tokens (probability).
        score: That, less what lag, tokens and matches of k - 1 tokens explain (`Matches.surprise`).
        error: Standard error of `score` over sequences.
        fidelity: `KL(uniform on the matches ‖ attention)` in nats; attention is floored at 1e-12.
        previous_token: Mean attention of tokens from the second on to the one before them.
        duplicate_token: Mean attention of those tokens to earlier copies of themselves.
        reference: The values of an ideal head and by chance.
    """

    mass: Float[np.ndarray, "member layer head k"]
    score: Float[np.ndarray, "member layer head k"]
    error: Float[np.ndarray, "member layer head k"]
    fidelity: Float[np.ndarray, "member layer head k"]
    previous_token: Float[np.ndarray, "member layer head"]
    duplicate_token: Float[np.ndarray, "member layer head"]
    reference: InductionReference


def _copies(batch: Batch) -> Float[Tensor, "batch query key"]:
    """TransformerLens' duplicate-token detection pattern, for a whole batch."""
    x = batch.history
    return (x[:, :, None] == x[:, None, :]).float().tril(-1)


# Null models read the same first sequences: what is there of them is not found again.
_known: WeakValueDictionary[tuple[bytes, int, int | None, int], InductionReference] = WeakValueDictionary()


def reference(batch: Batch, n_states: int, window: int | None) -> InductionReference:
    """The matches of a batch and the scores of ideal and of uniform attention on it.

    Args:
        batch: The sequences; matches are looked for in the first ones (`sequences_for`).
        n_states: The number of states of the source.
        window: How far back the model sees, if not to the start.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> reference(subject.batch, n_states=3, window=None).ideal.round(2).tolist()  # 1, 2, 3 tokens
        [0.42, 0.33, 0.22]
    """
    part = batch.head(sequences_for(batch))
    key = (part.states.numpy().tobytes(), n_states, window, part.first)
    of_batch = _known.get(key) or _reference(part, n_states, window)
    _known[key] = of_batch
    return of_batch


def _reference(part: Batch, n_states: int, window: int | None) -> InductionReference:
    matches = find_matches(part, n_states, window=window)
    queries = matches.queries.sum(-1).numpy()
    # Sequence by sequence: tables of all of them at once would be the most memory that a probe takes.
    each = [slice(i, i + 1) for i in range(len(part.tokens))]
    surprises = [(one.uniform * one.surprise).double().sum((1, 2, 3)) for one in map(matches.part, each)]
    with np.errstate(invalid="ignore"):
        ideal = torch.stack(surprises).sum(0).numpy() / queries
    position = torch.arange(part.history.shape[1])
    distance = position[:, None] - position
    seen = (distance >= 0) & (distance <= (len(position) if window is None else window))
    begins = position < (part.first * len(position) if window is None else part.first * window)
    uniform = seen / (seen.sum(-1) + begins)[:, None]
    copied = [float((_copies(part.part(one)) * uniform).double().sum()) for one in each]
    rows = max(1, len(position) - 1)
    return InductionReference(
        matches=matches,
        ideal=ideal,
        queries=queries,
        previous_chance=float(uniform.diagonal(-1).double().sum() / rows),
        duplicate_chance=float(np.mean(copied) / rows),
    )


@dataclass(frozen=True, eq=False)
class _Weights:
    """The weights that attention of some sequences is summed by.

    Attributes:
        both: Matches of k tokens, and then what of them is a surprise, as numbers.
        cells: The places of a query and a key, in a row, at which any sequence has a match.
        uniform: The attention of an ideal head there.
        floor: The sum of uniform times its logarithm.
        copies: The duplicate-token pattern.
    """

    both: Float[Tensor, "two_k batch read key"]
    cells: Int[Tensor, " cell"]
    uniform: Float[Tensor, "k batch cell"]
    floor: Float[Tensor, "k batch"]
    copies: Float[Tensor, "batch query key"]


class _AllWeights:
    """The weights of some sequences after others; all layers ask for the same."""

    def __init__(self, matches: Matches) -> None:
        self.matches, self._last = matches, slice(0)
        self._weights: _Weights | None = None

    def of(self, part: Batch, sequences: slice, device: torch.device) -> _Weights:
        """The weights of sequences of a batch, of which `part` are those."""
        if self._weights is None or sequences != self._last:
            of_part = self.matches.part(sequences)
            cells = of_part.match.any(0).any(0).flatten().nonzero()[:, 0].to(device)  # no wait for a device
            matches = of_part.to(device)
            self._last = sequences
            self._weights = _Weights(
                both=torch.cat([matches.match.float(), matches.surprise]),
                cells=cells,
                uniform=matches.uniform.flatten(2)[..., cells],
                floor=-(matches.count.clamp_min(1).log() * (matches.count > 0)).sum(-1),
                copies=_copies(part),
            )
        return self._weights


class _InductionSums(Recording[Arrays]):
    """Running sums of one layer, whose hooks' names begin with `at`."""

    def __init__(self, batch: Batch, weights: _AllWeights, at: str) -> None:
        self.batch, self.matches, self.weights, self.at = batch, weights.matches, weights, at
        n_sequences = self.matches.match.shape[1]
        self.sums: dict[str, PerSequence] = defaultdict(lambda: PerSequence(n_sequences, dim=1))

    def hooks(self, part: Batch, sequences: slice, /) -> list[Hook]:
        """A hook on attention."""
        return [(f"{self.at}.hook_pattern", lambda x, hook: self.add_pattern(x, part, sequences.start))]

    def add_pattern(
        self, pattern: Float[Tensor, "model batch head query key"], part: Batch, first: int
    ) -> None:
        """Attention of a chunk of sequences, the `first` of which is that one of the batch."""
        stop = min(first + pattern.shape[1], self.matches.match.shape[1])
        if first >= stop:
            return
        weights = self.weights.of(part.head(stop - first), slice(first, stop), pattern.device)
        pattern = pattern[:, : stop - first]
        rows = pattern[..., self.batch.rows, part.keys]
        tokens = pattern[..., part.keys, part.keys]
        both = einsum(rows, weights.both.to(rows.dtype), "m b h read key, k b read key -> m b h k")
        mass, score = both.chunk(2, -1)
        log = rows.flatten(-2)[..., weights.cells].clamp_min(FLOOR).log_()  # only where it is read
        on_log = einsum(log, weights.uniform.to(log.dtype), "m b h cell, k b cell -> m b h k")
        sums = {
            "mass": mass,
            "score": score,
            "fidelity": weights.floor.T[None, :, None] - on_log,
            "previous_token": tokens.diagonal(-1, -2, -1).double().sum(-1),
            "duplicate_token": einsum(tokens, weights.copies, "m b h t key, b t key -> m b h"),
        }
        for name, value in sums.items():
            self.sums[name].add(value.double())

    def compute(self) -> Arrays:
        """The fields of `InductionStats` for this layer, `[model, head, ...]`; NaN where nothing matches."""
        sums = {name: values.values.cpu() for name, values in self.sums.items()}
        queries = self.matches.queries  # [k, batch]
        total = torch.where(queries.sum(-1) > 0, queries.sum(-1), torch.nan)
        n = queries.shape[1]
        rows = max(1, self.batch.history.shape[1] - 1)
        fields = {name: sums[name].sum(1) / total for name in ("mass", "score", "fidelity")}
        fields["mass"] = fields["mass"].clamp(max=1.0)  # a row of float32 may sum to more than 1
        # A ratio of sums over sequences, by linearisation.
        off = sums["score"] - fields["score"][:, None] * queries.T[None, :, None]
        fields["error"] = (off.square().sum(1) * n / max(1, n - 1)).sqrt() / total
        fields |= {name: sums[name].mean(1) / rows for name in ("previous_token", "duplicate_token")}
        return {name: value.numpy() for name, value in fields.items()}


def _start(scope: Scope) -> PerLayer[InductionStats]:
    ideal = reference(scope.batch.to(torch.device("cpu")), scope.n_states, scope.model.config.window)
    of_layer = partial(_InductionSums, scope.batch, _AllWeights(ideal.matches))
    return PerLayer(scope.model, of_layer, partial(InductionStats, reference=ideal))


INDUCTION: Quantity[InductionStats] = Quantity("induction", _start, reads_attention=True)
