"""The same measures after each parent state, and at each position after it."""

from itertools import product

import numpy as np
from einops import rearrange
from jaxtyping import Float
from scipy.sparse import csr_array

from mechmarkov.probing import Subject
from mechmarkov.probing.dataset import Variables, variables
from mechmarkov.probing.preconditions import best_of, predictor_of
from mechmarkov.sources import Stationary
from mechmarkov.theory.bootstrap import mean_after
from mechmarkov.theory.kernel import kl

from .compared import Compared

MAX_CELLS = 2048  # states times positions


def after_states(seen: Compared) -> Variables:
    """Mean predictions and KL after each parent state, and what share of the predictions comes after it.

    Args:
        seen: The models' predictions.
    """
    subject, rare = seen.subject, seen.rare
    parents, n = subject.batch.parents.numpy(), subject.source.n_states
    each = [[mean_after(parents, one, n) for one in member] for member in seen.nats]
    values = np.moveaxis(np.array(each), 2, 0)  # [mean and error, member, predictor, state]
    if rare.after is not None:
        values[..., rare.states] = rare.after
    mean, error = values.swapaxes(-1, -2)
    of_models = subject.axis, "state_from"
    implied = mean_after_states(subject, seen.model)
    return (
        variables("probability", (*of_models, "state_to"), implied=implied)
        | variables("nats", (*of_models, "predictor"), kl_after=mean, kl_after_error=error)
        | variables("share", "state_from", share_after=_shares_after(subject))
        | variables("nats", ("state_from", "predictor"), varies_after=_varies_after(subject))
    )


def _varies_after(subject: Subject) -> Float[np.ndarray, "state_from predictor"]:
    """Returns how far each exact predictor is from its mean after each state, in nats."""
    parents, n = subject.batch.parents.numpy(), subject.source.n_states
    rows = (mean_after_states(subject, law[None])[0] for law in subject.exact.values())
    laws = zip(subject.exact.values(), rows, strict=True)
    return np.stack([mean_after(parents, kl(law, row[parents]), n)[0] for law, row in laws], axis=-1)


def in_cells(seen: Compared) -> Variables:
    """KL after each parent state at each position, of the laws that are asked.

    Args:
        seen: The models' predictions.
    """
    subject, nats, laws = seen.subject, seen.nats, seen.subject.exact
    n, parents = subject.source.n_states, subject.batch.parents.numpy()
    size = n * parents.shape[1]
    if size > MAX_CELLS or not isinstance(subject.source, Stationary):
        return {}
    cells = parents * parents.shape[1] + np.arange(parents.shape[1])
    mean, error = np.full((2, *nats.shape[:2], size), np.nan)
    for member, (i, law) in product(range(len(nats)), enumerate(laws)):
        if law in asked_by_place(subject):
            mean[member, i], error[member, i] = mean_after(cells, nats[member, i], size)
    known, shape = np.isfinite(error), (*nats.shape[:2], n, parents.shape[1])
    axes = (subject.axis, "predictor", "state_from", "position")
    values = {"kl_cell": np.where(known, mean, np.nan), "kl_cell_error": np.where(known, error, np.nan)}
    return variables("nats", axes, **{name: value.reshape(shape) for name, value in values.items()})


def asked_by_place(subject: Subject) -> set[str]:
    """Returns the laws that are asked place by place: the best one and the bigram."""
    return {best_of(subject.source, subject.exact) or "", predictor_of(subject.source, "bigram")}


def _shares_after(subject: Subject) -> np.ndarray:
    """Returns which share of predictions comes after each parent state: `pi` where there is one chain."""
    if isinstance(subject.source, Stationary):
        return np.array(subject.source.pi)
    parents = subject.batch.parents.numpy().ravel()
    return np.bincount(parents, minlength=subject.source.n_states) / parents.size


def mean_after_states(subject: Subject, values: np.ndarray) -> np.ndarray:
    """Means after each parent state: `[axis, batch, read, value]` to `[axis, state_from, value]`.

    NaN for a state that is never a parent.
    """
    parents = subject.batch.parents.numpy().ravel()
    one_hot = csr_array((np.ones(parents.size), (parents, np.arange(parents.size))))
    one_hot.resize(subject.source.n_states, parents.size)
    total = np.stack([one_hot @ rearrange(one, "b r j -> (b r) j") for one in values])
    with np.errstate(invalid="ignore"):
        return np.asarray(total / one_hot.sum(axis=1)[:, None])
