"""Bounds of a model's log odds at every position and for every parent, within a budget of seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from mechmarkov.certify.bounds import envelope
from mechmarkov.certify.bounds.counted import of_counts, why_no_counts
from mechmarkov.certify.bounds.envelope import Envelope
from mechmarkov.certify.bounds.later import last_layer, why_no_layers
from mechmarkov.certify.bounds.layer import Layer, why_no_layer
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.bounds.relaxed import longest_axes
from mechmarkov.certify.contexts import Contexts
from mechmarkov.models.components import norms_between
from mechmarkov.models.config import DecoderConfig

Forward = Callable[[Int[np.ndarray, "context key"]], Float[np.ndarray, "context state"]]
Kind = Literal["logits", "raw scores", "relaxed", "layers", "counts"]

# Parts of a box along its longest axis, and pieces: of every box, and then of those that decide the largest
# odds.
COARSE, FINE = (8, 64), (16, 256)


@dataclass(frozen=True, eq=False)
class Bounds:
    """The distances between the odds of any two states, at each position and in each case of `Contexts`.

    Attributes:
        kind: `logits` or `raw scores` of an attention-only layer, `relaxed` where something stands behind it,
            `layers` where other layers stand in front, `counts` where the odds are those against the counts
            of the states (`counted`).
        unit: Unit roundoff of the evaluations that are covered.
        exists: Whether any context is in that case there.
        log_odds: Upper bounds of `log(q_k / q_l)`; 0 where there is no context.
        stored: What a proof keeps, each `[read, case, ...]` but the `basis` of relaxed bounds.
        envelopes: Those that exist, by position and case.
    """

    kind: Kind
    unit: float
    exists: Bool[np.ndarray, "read case"]
    log_odds: Float[np.ndarray, "read case state_to state_against"]
    stored: dict[str, Float[np.ndarray, "..."]]
    envelopes: dict[tuple[int, int], Envelope]

    @property
    def reached(self) -> Float[np.ndarray, "read case state_to state_against"]:
        """`log(q_k / q_l)` that contexts reach: the bounds, or what was seen where these are relaxed."""
        if self.kind not in ("relaxed", "layers"):
            return self.log_odds
        log_odds = self.log_odds.copy()
        for where, one in self.envelopes.items():
            log_odds[where] = (one.scores[:, :, None] - one.scores[:, None]).max(0)
        return log_odds


def why_no_bounds(config: DecoderConfig, n_states: int, softmax: bool, query: bool = False) -> str | None:
    """Returns why there are no bounds for a model, in one line, or None.

    Args:
        config: The model.
        n_states: The states of its source.
        softmax: Whether scores predict by a softmax, else as `max(z, 0) / sum`.
        query: Whether an added query token ends the input.

    Example:
        >>> import mechmarkov as mm
        >>> why_no_bounds(mm.example("walk").config, n_states=6, softmax=False) is None
        True
    """
    if (why := why_no_layer(config)) is not None:
        return why
    if config.d_vocab_out != n_states:
        return f"it predicts {config.d_vocab_out} tokens of {n_states} states"
    if not softmax and config.n_layers > 1:
        return f"it has {config.n_layers} layers, and its scores are not logits: no bounds are known of both"
    if not softmax and not _adds_up(config):
        return "its scores are not logits and a norm or an MLP stands behind attention: no bounds are known"
    return why_no_layers(config, query) if config.n_layers > 1 else None


def _adds_up(config: DecoderConfig) -> bool:
    """Returns whether scores are sums of what the heads write."""
    return config.n_layers == 1 and config.attn_only and not norms_between(config, "direct")


def bounds(
    layer: Layer,
    contexts: Contexts,
    softmax: bool,
    seconds: float = np.inf,
    forward: Forward | None = None,
) -> Bounds:
    """The bounds of a model that `why_no_bounds` has nothing against.

    Args:
        layer: The model.
        contexts: Those that it can meet.
        softmax: Whether scores predict by a softmax, else as `max(z, 0) / sum`.
        seconds: Budget.
        forward: The model's scores behind the last key of some tokens. Of several layers it gives those of
            the contexts that bounds name; without it none are kept.

    Raises:
        TimeoutError: It was not enough for every position and parent; the message says for how many it was.
        ValueError: A norm may divide by zero, a sum is too long for float32, or scores may overflow.
    """
    end = time.monotonic() + seconds
    kind: Kind = "relaxed" if not _adds_up(layer.config) else "logits" if softmax else "raw scores"
    inner: dict[str, np.ndarray] = {}
    if layer.config.n_layers > 1:
        kind, (layer, inner) = "layers", last_layer(layer.config, layer.weights, layer.unit, contexts, end)
    shape = len(contexts.reads), contexts.n_cases
    exists = np.array([[contexts.exists(read, i) for i in range(shape[1])] for read in contexts.reads])
    basis = None
    if kind in ("relaxed", "layers"):
        last, case = np.argwhere(exists)[-1].tolist()
        basis = longest_axes(Reading.of(layer, contexts, contexts.reads[last], case, scored=False))

    def bound(i: int, case: int, cut: tuple[int, int]) -> Envelope:
        read = contexts.reads[i]
        reading = Reading.of(layer, contexts, read, case, scored=basis is None)
        if basis is None:
            return envelope.of_logits(reading) if softmax else envelope.of_raw_scores(reading)
        stream = layer.stream[read, contexts.token(case)]
        made = envelope.of_relaxed(layer, reading, stream, basis, *cut, close=cut == FINE)
        return _in_the_model(made, forward) if inner else made

    envelopes: dict[tuple[int, int], Envelope] = {}
    for i, case in np.argwhere(exists).tolist():
        if time.monotonic() > end:
            raise TimeoutError(
                f"{seconds:g} s were enough for {len(envelopes)} of {exists.sum()} positions and parents"
            )
        envelopes[i, case] = bound(i, case, COARSE)
    if basis is not None:
        while time.monotonic() < end and (deciding := _deciding(envelopes)):
            for i, case in deciding:
                if time.monotonic() < end:
                    envelopes[i, case] = bound(i, case, FINE)
    log_odds = np.zeros((*shape, contexts.n_states, contexts.n_states))
    for where, one in envelopes.items():
        log_odds[where] = one.log_odds
    stored = _stored(envelopes, shape) | inner | ({} if basis is None else {"basis": basis})
    return Bounds(kind, layer.unit, exists, log_odds, stored, envelopes)


def _in_the_model(envelope: Envelope, forward: Forward | None) -> Envelope:
    """The same with the model's own scores in its contexts, which no midpoint of forms gives."""
    if forward is None:
        return replace(envelope, worst=envelope.worst[:0], scores=envelope.scores[:0])
    return replace(envelope, scores=forward(envelope.worst))


def _stored(
    envelopes: dict[tuple[int, int], Envelope], shape: tuple[int, int]
) -> dict[str, Float[np.ndarray, "..."]]:
    """Returns what all keep, as arrays `[read, case, ...]`; what some have, as rows behind their place."""
    rows: list[np.ndarray] = []
    stored: dict[str, np.ndarray] = {}
    for where, one in envelopes.items():
        for name, value in one.stored.items():
            if name == "closed":
                rows += [np.array([*where, *row]) for row in value]
            else:
                stored.setdefault(name, np.zeros((*shape, *value.shape)))[where] = value
    return stored | ({"closed": np.stack(rows)} if rows else {})


def counted(layer: Layer, contexts: Contexts) -> Bounds | str:
    """The bounds of odds against the counts of states (`counted.of_counts`), or one line why not."""
    envelopes: dict[tuple[int, int], Envelope] = {}
    for i, read in enumerate(contexts.reads):
        for parent in range(contexts.n_states):
            reading = Reading.of(layer, contexts, read, parent)
            if (why := why_no_counts(reading)) is not None:
                return why
            envelopes[i, parent] = of_counts(reading)
    shape = len(contexts.reads), contexts.n_states
    log_odds = np.array([one.log_odds for one in envelopes.values()]).reshape(*shape, shape[1], shape[1])
    return Bounds("counts", layer.unit, np.ones(shape, dtype=bool), log_odds, {}, envelopes)


def _deciding(envelopes: dict[tuple[int, int], Envelope]) -> set[tuple[int, int]]:
    """The positions with the largest odds of some pair in some case that were not cut finely yet."""
    largest: dict[tuple[int, ...], tuple[float, tuple[int, int]]] = {}
    for where, one in envelopes.items():
        for pair, odds in np.ndenumerate(one.log_odds):
            if pair[0] != pair[1]:
                key = (where[1], *pair)
                largest[key] = max(largest.get(key, (-np.inf, where)), (float(odds), where))
    return {where for _, where in largest.values() if "closed" not in envelopes[where].stored}
