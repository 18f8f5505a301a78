"""Find the pairs of last tokens after which a law is imitated: a model may have it after some only."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from mechmarkov.claims.claim import ARROW, MODEL, Claim, Condition, Where
from mechmarkov.probing import Subject
from mechmarkov.probing.dataset import (
    IMITATION_NATS,
    IMITATION_SHARE,
    NORMAL_95,
    Variables,
    normal_interval,
    variables,
)
from mechmarkov.theory.bootstrap import mean_after
from mechmarkov.theory.kernel import kl

FAR_NATS = 0.05  # after a state or at a position from which a law is not imitated there
MOST = 0.5  # of the predictions: a law that holds in fewer is told as holding at those only
ROUNDING = 1e-9
UNCLEAR = 0.1  # of the predictions at most, where few sequences have a pair
LEAST_PAIRS = 0.05  # of the predictions, at least, that follow pairs after which only a law is told to hold
MAX_PAIRS = 256
BY_CHANCE = (
    0.01  # of models whose rows have nothing to do with a law, that are told to have it at some places
)


def after_pairs(subject: Subject, nats: Float[np.ndarray, "member predictor batch read"]) -> Variables:
    """KL from each predictor after each pair of last tokens, how often it comes, what each of the two tells.

    Nothing of more pairs than `MAX_PAIRS`.
    """
    n, history, known = subject.source.n_states, subject.batch.history.numpy(), subject.batch.known.numpy()
    reads = known >= 1
    if n * n > MAX_PAIRS or not reads.any():
        return {}
    pairs = history[:, known[reads] - 1] * n + history[:, known[reads]]
    each = [[mean_after(pairs, one, n * n) for one in member] for member in nats[:, :, :, reads]]
    mean, error = (x.reshape(*nats.shape[:2], n, n) for x in np.moveaxis(np.array(each), 2, 0))
    count = np.bincount(pairs.ravel(), minlength=n * n)
    model = subject.probabilities[:, :, reads].astype(np.float64)
    total = (
        np.array(
            [[np.bincount(pairs.ravel(), one[..., j].ravel(), n * n) for j in range(n)] for one in model]
        )
        .swapaxes(1, 2)
        .reshape(len(model), n, n, n)
    )  # [member, before, state, next]
    of_each = count.reshape(n, n, 1)
    rows = total.sum(1, keepdims=True) / np.maximum(of_each.sum(0, keepdims=True), 1)
    means = total / np.maximum(of_each, 1)
    told = kl(means, np.broadcast_to(rows, total.shape)).max(1)
    rows = total.sum(2, keepdims=True) / np.maximum(of_each.sum(1, keepdims=True), 1)
    told_last = kl(means, np.broadcast_to(rows, total.shape)).max(2)
    axes = (subject.axis, "predictor", "state_before", "state_from")
    return (
        variables("nats", axes, kl_pair=mean, kl_pair_error=error)
        | variables("nats", (subject.axis, "state_from"), told_before=told)
        | variables("nats", (subject.axis, "state_before"), told_last=told_last)
        | variables("share", ("state_before", "state_from"), share_pair=count.reshape(n, n) / count.sum())
    )


def in_pairs(
    last: xr.Dataset, name: str, labels: Sequence[str], simple: Sequence[str], wrong: float
) -> Iterator[Claim]:
    """Yields where a law is imitated and where it clearly is not, if the last two tokens tell all of it.

    Args:
        last: What was measured of one model.
        name: The law.
        labels: Names of states.
        simple: Laws that read no token: where these are as near, the places do not show the law.
        wrong: How many nats it is away elsewhere, on average, if it holds in less than half of
            predictions and is not another law there.
    """
    if "kl_pair" not in last or name in simple:
        return
    value, error = (
        last[each].sel(predictor=name).transpose("state_before", "state_from").values
        for each in ("kl_pair", "kl_pair_error")
    )
    with np.errstate(invalid="ignore"):
        fails = value - NORMAL_95 * error > FAR_NATS
        holds = value + NORMAL_95 * error < IMITATION_NATS
        by_chance = (last["kl_pair"].sel(predictor=list(simple)) < IMITATION_NATS).any("predictor").values
    known, share = np.isfinite(value), last["share_pair"].values
    if not (fails.any() and holds.any()):
        return
    if there := list(law_there(last, "kl_pair", known & ~holds)):
        fails = known & ~holds  # also where that law is near this one
    if share[known & ~fails & ~holds].sum() > UNCLEAR:
        return
    # After a state with one row for all tokens before it, a law that reads these is that row only by chance;
    # so is a law that reads the last state in a model that reads it nowhere.
    told = last["told_before"].values[fails.any(0) & holds.any(0)]
    if not told.size or (told < IMITATION_NATS).any():
        return
    reads_the_last = (last["told_last"].values >= IMITATION_NATS).any()
    if (fails.any(1) & holds.any(1)).any() and not reads_the_last:
        return
    few = float(share[holds].sum() / share[known].sum()) < MOST - ROUNDING
    away = float((value * share)[fails].sum() / share[fails].sum())
    if few and not (share[holds & ~by_chance].sum() >= LEAST_PAIRS and (there or away >= wrong)):
        return
    if few and not are_apart(value, holds, len(labels) - 1):
        return
    worst, nearest = (
        np.unravel_index(np.where(which, value, -np.inf).argmax(), value.shape) for which in (fails, holds)
    )
    ends = [normal_interval(float(value[at]), float(error[at]), least=0.0) for at in (worst, nearest)]
    only = tuple(ARROW.join(pair) for pair in _named(labels, holds)) if few else ()
    yield Claim(
        (MODEL,), "fails_at", (name,), float(value[worst]), ends[0], unit="nats",
        where=Where(pairs=_named(labels, fails)),
        because=(
            Condition("near elsewhere", few or None, float(value[nearest]), "nats", only),
            Condition("share of places", True, float(fails.sum() / known.sum()), "share"),
            *_all_of_a_kind(labels, fails, fails | holds),
            *there,
        ),
    )  # fmt: skip
    yield Claim(
        (MODEL,), "imitates", (name,), float(value[nearest]), ends[1], unit="nats",
        where=Where(pairs=_named(labels, holds)),
    )  # fmt: skip


def are_apart(
    nats: Float[np.ndarray, "..."], holds: Bool[np.ndarray, "..."], freedom: float = np.inf
) -> bool:
    """Returns whether places at which a law holds are clearly nearer to it than all others.

    Of many places where a model is off by more and less, one may be near by chance. If KL of all is a
    chi-squared variable up to one factor, the least of n is under a share r of the next with probability
    about r^(freedom / 2) n / (n - 1), as its law near 0 is a power's. All k of them are with about the k-th
    power of the first factor.

    Args:
        nats: KL from the law at each place, NaN where it is not known.
        holds: Where it is near.
        freedom: Numbers in which two rows may differ; infinite at places that are means over rows.
    """
    known = np.isfinite(nats)
    rest, n = nats[~holds & known], int(known.sum())
    by_chance = (BY_CHANCE * (n - 1) / max(n, 1)) ** (2 / (freedom * max(1, int(holds.sum()))))
    share = min(IMITATION_SHARE, by_chance)
    return not rest.size or bool(nats[holds].max(initial=0.0) <= share * rest.min())


def _named(labels: Sequence[str], which: Bool[np.ndarray, "before state"]) -> tuple[tuple[str, str], ...]:
    return tuple((labels[before], labels[state]) for before, state in np.argwhere(which))


def _all_of_a_kind(
    labels: Sequence[str], fails: Bool[np.ndarray, "before state"], known: Bool[np.ndarray, "before state"]
) -> Iterator[Condition]:
    """Yields that a law fails after all pairs of equal states, of different ones, or of some first ones."""
    equal = np.eye(len(labels), dtype=bool)
    for holds, kind in ((True, equal), (False, ~equal)):
        if (fails == (kind & known)).all():
            yield Condition("two equal states", holds)
            return
    before = np.asarray(fails.any(1))
    if (fails == (before[:, None] & known)).all():
        rest = known.any(1) & ~before
        for name, which in (("fails with before", before), ("holds with before", rest)):
            yield Condition(name, words=tuple(labels[int(i)] for i in np.flatnonzero(which)))


def law_there(last: xr.Dataset, variable: str, which: Bool[np.ndarray, "..."]) -> Iterator[Condition]:
    """Yields the law that is imitated at all of some places, where another one fails."""
    value, error = (last[each].transpose("predictor", ...).values for each in (variable, f"{variable}_error"))
    with np.errstate(invalid="ignore"):
        holds = (value + NORMAL_95 * error < IMITATION_NATS)[:, which].all(1)
    if holds.any():
        worst = np.where(holds, value[:, which].max(1), np.inf)
        nearest_law = int(worst.argmin())
        name = str(last["predictor"].values[nearest_law])
        yield Condition("law there", value=float(worst[nearest_law]), unit="nats", words=(name,))
