"""Which paths hold the law that a model has, where that is neither the bigram nor one that needs no part."""

import numpy as np
import xarray as xr

from mechmarkov.probing.dataset import IMITATION_NATS, variables
from mechmarkov.probing.names import LawName
from mechmarkov.probing.recording import PATHS
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.kernel import kl

from .game import MIN_GAIN_NATS, share_out
from .home import smallest_set

SIMPLE = ("uniform", "unigram", "bigram")  # laws that no part needs to hold, or that `shares` tells of
NUMBERED = ("step", "lag", "order")  # what names of laws of tokens at fixed distances begin with
MOST = 0.5  # of the positions, at which the model has the law


def of_another_law(subject: Subject) -> xr.Dataset:
    """Shares of the paths in the law that each model predicts like.

    Returns:
        `other_law` [axis]: which of `laws_of(subject)` it is, -1 where there is none;
        `other_gain`, `other_left` [axis] (nats): how much nearer all paths together bring the model to it,
        and how far away it is then;
        `other_share` [axis, path]: of that; NaN where there is none, or less than 0.01 nats;
        `other_holds` [axis, path]: whether the path is one of the fewest that hold nine tenths.

    Example:
        >>> import mechmarkov as mm
        >>> data = of_another_law(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.other_law.values.tolist()  # it is on its way to the bigram
        [-1]
    """
    laws = laws_of(subject)
    models, paths = len(subject.decoder), list(subject.recorded(PATHS).names)
    which, (gain, left) = np.full(models, -1), np.full((2, models), np.nan)
    share, holds = np.full((models, len(paths)), np.nan), np.zeros((models, len(paths)), dtype=bool)
    for member in range(models):
        name = _like(subject, member, laws)
        if name is None:
            continue
        game = share_out(subject, member, name)
        gain[member], left[member] = (game.empty - game.full).mean(), game.full.mean()
        if not gain[member] >= MIN_GAIN_NATS:
            continue
        which[member] = laws.index(name)
        share[member] = game.worth.mean(-1) / gain[member]
        nearer = (game.only.mean(-1) < game.empty.mean()) & (game.along > 0)
        chosen = smallest_set(share[member], nearer, np.arange(len(paths)))
        holds[member, [i for i in chosen if game.along[i] > 0]] = True
    axis = subject.axis
    return xr.Dataset(
        variables("index", axis, other_law=which)
        | variables("nats", axis, other_gain=gain, other_left=left)
        | variables("share", (axis, "path"), other_share=share, other_holds=holds),
        coords={axis: subject.coordinates, "path": paths},
    )


def laws_of(subject: Subject) -> list[str]:
    """Returns the exact laws of one or more tokens at fixed distances that are not the bigram's."""
    named = {name: LawName.read(str(name)) for name in subject.exact}
    return [str(name) for name, law in named.items() if law.base in NUMBERED and not law.in_context]


def _like(subject: Subject, member: int, laws: list[str]) -> str | None:
    """The law that a model predicts like at most positions, clearly nearer than any simple one."""
    q = subject.probabilities[member].astype(np.float64)
    nats = {name: kl(law, q).mean(0) for name, law in subject.exact.items()}
    if not laws:
        return None
    name = min(laws, key=lambda one: nats[one].mean())
    simple = min(float(nats[one].mean()) for one in SIMPLE if one in nats)
    has = (nats[name] < IMITATION_NATS).mean() >= MOST and nats[name].mean() + IMITATION_NATS < simple
    return name if has else None
