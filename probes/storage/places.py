"""Which part holds the bigram at some positions, or after some states, where the rest is another law.

Shares are means over all predictions: where a model is right at half of them and wrong at the others, all
paths together may be no nearer to the bigram than none. At the places where it is right a part may hold it.
"""

from collections.abc import Iterator

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from mechmarkov.claims.claim import Where
from mechmarkov.probing.dataset import IMITATION_NATS, variables
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import mean_after
from mechmarkov.theory.kernel import kl

from .game import FAR_NATS, MAX_SCORES, MIN_GAIN_NATS, Coalitions
from .home import MIN_HOME_SHARE


def by_place(subject: Subject) -> xr.Dataset:
    """KL from the bigram with each path only, with none and with all, by position and by the current state.

    Args:
        subject: The models, of a source with one chain.

    Returns:
        `place_only_at` [axis, path, position], `place_empty_at`, `place_full_at` [axis, position], and the
        same `_after` each state [.., state_from] (nats); NaN at positions that are not looked at;
        `place_simple_after` [state_from] (nats): KL from the bigram to the uniform law or the unigram there,
        whichever is nearer.

    Example:
        >>> import mechmarkov as mm
        >>> data = by_place(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.place_full_at.round(1).values.tolist()  # nats, at the one position that is read
        [[0.2]]
    """
    axis, batch, n_states = subject.axis, subject.batch, subject.source.n_states
    at: list[np.ndarray] = []
    after: list[np.ndarray] = []
    for member in range(len(subject.decoder)):
        most = MAX_SCORES // (64 * len(subject.decoder) * n_states)
        game = Coalitions(subject, member, most)
        n = len(game.moves)
        nats = game.places(np.concatenate([np.zeros((1, n)), np.ones((1, n)), np.eye(n)]).astype(bool))
        by_position = np.full((n + 2, len(batch.read)), np.nan)
        by_position[:, game.reads] = nats.mean(1)
        parents = batch.parents.numpy()[: nats.shape[1]][:, game.reads]
        at.append(by_position)
        after.append(np.stack([mean_after(parents, one, n_states)[0] for one in nats]))
    P, pi = (np.array(getattr(subject.source, name)) for name in ("P", "pi"))
    simple = np.minimum(kl(P, pi), kl(P, np.full(n_states, 1 / n_states)))
    data = xr.Dataset(variables("nats", "state_from", place_simple_after=simple))
    for place, values, name in (("position", np.stack(at), "at"), ("state_from", np.stack(after), "after")):
        ends = {f"place_empty_{name}": values[:, 0], f"place_full_{name}": values[:, 1]}
        only = {f"place_only_{name}": values[:, 2:]}
        data = data.assign(
            variables("nats", (axis, place), **ends) | variables("nats", (axis, "path", place), **only)
        )
    return data


def held_somewhere(last: xr.Dataset, labels: list[str]) -> Iterator[tuple[str, float, Where]]:
    """Yields the one path that holds the bigram where the model has it, if it has it at some places only.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
        labels: Names of the states.

    Returns:
        Its name, the share of what all paths are worth there that it is worth by itself, and the places.
    """
    for name, place, there in _where_it_is(last):
        full, empty = (last[f"place_{end}_{name}"].values for end in ("full", "empty"))
        only = last[f"place_only_{name}"].transpose("path", place).values[:, there].mean(-1)
        gain: Float[np.ndarray, " path"] = empty[there].mean() - only
        worth = float((empty - full)[there].mean())
        best = int(gain.argmax())
        if worth >= MIN_GAIN_NATS and gain[best] >= MIN_HOME_SHARE * worth:
            yield (
                str(last["path"].values[best]),
                min(1.0, float(gain[best]) / worth),
                _named(last, place, there, labels),
            )
            return


def lacking_somewhere(last: xr.Dataset, labels: list[str]) -> Where:
    """Returns where the model is far from the bigram, if it has it at other places; otherwise everywhere.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
        labels: Names of the states.
    """
    for name, place, _ in _where_it_is(last):
        return _named(last, place, last[f"place_full_{name}"].values > FAR_NATS, labels)
    return Where()


def _where_it_is(last: xr.Dataset) -> Iterator[tuple[str, str, Bool[np.ndarray, " place"]]]:
    """Yields kinds of places at some of which, and which, the model has the bigram, and at others has not."""
    for name, place in (("at", "position"), ("after", "state_from")):
        full = last[f"place_full_{name}"].values
        there = full < IMITATION_NATS
        if place == "position" and not last.attrs["determined"]:
            with np.errstate(invalid="ignore"):
                there &= last["parent_gain_at"].values >= MIN_GAIN_NATS
        if place == "state_from":  # where a simple law is the bigram, to predict it shows nothing
            there &= last["place_simple_after"].values >= IMITATION_NATS
        if place == "position" and not there[1:].any():
            continue  # where one token is seen, what reads any token reads the current one
        if there.any() and (full > FAR_NATS).any():
            yield name, place, there


def _named(last: xr.Dataset, place: str, which: Bool[np.ndarray, " place"], labels: list[str]) -> Where:
    if place == "position":
        return Where(positions=tuple(int(i) for i in last["position"].values[which]))
    return Where(states=tuple(np.array(labels)[which].tolist()))
