"""Temperatures at which a model is nearest to a law, over all predictions and by place."""

from collections.abc import Iterable
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from mechmarkov.probing.dataset import IMITATION_NATS, IMITATION_SHARE, Variables, variables
from mechmarkov.sources import Stationary
from mechmarkov.theory.bootstrap import standard_error
from mechmarkov.theory.kernel import kl
from mechmarkov.theory.temperature import best_temperature

from .after_states import asked_by_place
from .compared import Compared

# Predictions that a temperature is fitted to, of every sequence.
TEMPERED_PREDICTIONS = 4096
TEMPERED_OF_A_PLACE = 256  # likewise, after a state or at a position


def tempered(seen: Compared) -> Variables:
    """The best temperature next to each exact predictor and KL there, on as many predictions as tell it.

    Args:
        seen: The models' predictions.
    """
    subject, model, exact = seen.subject, seen.model, seen.subject.exact
    reads = slice(None, None, max(1, model.shape[1] * model.shape[2] // TEMPERED_PREDICTIONS))
    fitted = []
    for q in model[:, :, reads]:
        fits = [best_temperature(p[:, reads], q, opposite=True) for p in exact.values()]
        fitted.append([(t, nats.mean(), standard_error(nats)) for t, nats in fits])
    temperature, nats, error = np.moveaxis(np.array(fitted, dtype=float), -1, 0)
    axes = (subject.axis, "predictor")
    return (
        variables("temperature", axes, temperature=temperature)
        | variables("nats", axes, kl_tempered=nats, kl_tempered_error=error)
        | _by_place(seen)
    )


def _by_place(seen: Compared) -> Variables:
    """The best temperatures after each state and at each position, and KL there, of the laws that are asked.

    Of two states each row is at some temperature the law's, or its opposite's: these say nothing.
    """
    subject, model, exact = seen.subject, seen.model, seen.subject.exact
    n, parents = subject.source.n_states, subject.batch.parents.numpy()
    if n < 3 or not isinstance(subject.source, Stationary):
        return {}
    asked = asked_by_place(subject)
    each = np.broadcast_to(np.arange(parents.shape[1]), parents.shape)
    found: Variables = {}
    for axis, where, size, name in (
        ("state_from", parents, n, "after"),
        ("position", each, len(each[0]), "at"),
    ):
        fits = np.full((2, len(model), size, len(exact)), np.nan)
        for member, (i, law) in product(range(len(model)), enumerate(exact)):
            if law in asked:
                places = (np.flatnonzero(where == place)[:TEMPERED_OF_A_PLACE] for place in range(size))
                p, q = (x.reshape(-1, n) for x in (exact[law], model[member]))
                fits[:, member, :, i] = _fits(p, q, places)
        axes = (subject.axis, axis, "predictor")
        found |= variables("temperature", axes, **{f"temperature_{name}": fits[0]})
        found |= variables("nats", axes, **{f"kl_tempered_{name}": fits[1]})
    return found


def _fits(
    p: Float[np.ndarray, "prediction state"],
    q: Float[np.ndarray, "prediction state"],
    places: Iterable[Int[np.ndarray, " some"]],
) -> Float[np.ndarray, "fit place"]:
    """Temperatures and KL there of places where q is not p, up to the first that is p at none; else NaN."""
    fits: list[tuple[float, float]] = []
    is_p = True  # at some temperature, so far
    for there in places:
        heat, left = np.nan, np.nan
        if is_p and len(there) and (own := kl(p[there], q[there]).mean()) > IMITATION_NATS:
            heat, nats = best_temperature(p[there][:, None], q[there][:, None])
            left = float(nats.mean())
            is_p = left < IMITATION_SHARE * own
        fits.append((heat, left))
    return np.array(fits).T
