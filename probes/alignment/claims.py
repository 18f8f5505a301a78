"""Claims of value circuits: which path has the target of the loss in its weights, and how well."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import Claim, Claims, Condition, Status, Where
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.probing.dataset import IMITATION_NATS, MIN_GAP_NATS, last_model
from mechmarkov.probing.names import token_names
from mechmarkov.probing.score import Score
from mechmarkov.theory import kernel as k

from .measure import MIN_COSINE, TIE

# A path that takes off less than this share of what the unigram is away holds nothing of the kernel.
MIN_GAIN_SHARE = 0.05

# Of a law that is next to the unigram, at most so much is left where a path holds it.
MAX_LEFT = 0.1

MIN_SLOPE = 0.5  # of a table whose scale is the target's
MIN_ALONG = 0.99  # that of one at another scale

# A row is another one where it is further than this from the law's, and the law's where it is nearer than
# `IMITATION_NATS`.
WORSE_ROW_NATS = 1e-3  # by which a right row is off at a slope that mends others
WRONG_ROW_NATS = 0.05

ROUNDING = 1e-12  # of a cosine

EQUAL_ROWS = "all rows are equal"
DISTANCES = ("predicts by itself", "the unigram is away")  # premises that say nothing where there is no law

# Of a head with less of its attention at its lag, most of the output is left at its mean.
MIN_ATTENDED_MASS = 0.5
ALL_ATTENTION = 0.995  # of the attention, from which on a table counts as a whole


def best_path(data: xr.Dataset) -> xr.DataArray:
    """For each model the path that by itself predicts the chain best: by the most nats below the unigram.

    Not by the smallest KL: far lags are near the unigram whatever the weights, and would win with nothing.
    Those come first that read one token most of the time and predict clearly better than the unigram; then
    those that point along the target, as of a table that is far too sure no prediction is good.
    """
    # A path that is constant is nobody's answer while there is one that says something.
    says = data["constant"] == 0
    gain = data["gain"].where(says, -np.inf)
    able = gain.where(_reads(data) & (gain >= MIN_GAIN_SHARE * data["unigram_kl"]), -np.inf)
    along = data["kernel_cosine"].where(says & (data["kernel_cosine"] >= MIN_ALONG), -np.inf)
    along = along.where(data.attrs["n_states"] > 2, -np.inf)
    chosen = along.where((along > -np.inf).any("path"), gain)
    chosen = able.where((able > -np.inf).any("path"), chosen)
    return (chosen >= chosen.max("path") - TIE).argmax("path")  # the first of equals, whatever their rounding


def of_best_path(data: xr.Dataset) -> xr.Dataset:
    """The last model's best path."""
    last = last_model(data)
    return last.isel(path=int(best_path(last)))


def alike(data: xr.Dataset) -> list[str]:
    """The last model's best path, and those that predict as well as it at the same lag."""
    last, best = last_model(data), of_best_path(data)
    ties = (abs(last["gain"] - best["gain"]) <= TIE) & (last["attended_lag"] == best["attended_lag"])
    return [str(path) for path in last["path"].values[(ties & (last["constant"] == 0)).values]]


def target_of(best: xr.Dataset) -> tuple[str, np.ndarray]:
    """Returns what the best path's circuit should be under the objective: its name, and the matrix."""
    return k.target_for(best.attrs["objective"], best["law"].values)


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Returns which paths have the target in their weights, or come nearest to it."""
    score, best = _deciding(data, scores), of_best_path(data)
    constant, reads = bool(best["constant"]), bool(_reads(best))
    names = (str(best["path"].item()),) if constant else tuple(alike(data))
    target, _ = target_of(best)
    gain, nats, slope = (float(best[name]) for name in ("gain", "kernel_kl", "kernel_slope"))
    # Where the unigram is as near to this law, what is the law is it all the same.
    is_law = 0 < nats + gain < MIN_GAP_NATS and nats <= MAX_LEFT * (nats + gain)
    holds = not constant and (gain >= MIN_GAIN_SHARE * float(data["unigram_kl"]) or is_law) and reads
    conditions = _conditions(data, best, nats + gain)
    value = _unrounded(score.value) if score is not None and isinstance(score.value, float) else None
    null, unit = (None, "") if score is None else (score.null, score.unit)
    is_another = unit == "cosine" and value is not None and value < MIN_COSINE
    if is_another and not constant and reads and np.isfinite(best["row_left"]).any():
        is_another, holds = False, True  # most rows are right: a few far off decide cosine and gain
    status: Status = "shown" if holds and not is_another else "excluded"
    if not constant and unit == "cosine" and not is_another and not holds and reads:
        off = not MIN_SLOPE < slope < 1 / MIN_SLOPE  # near 1 the scale is right, and the rest is not
        conditions.append(Condition("only its direction", off, gain, "nats"))
    rows, where = _rows(data, best) if status == "shown" else ((), Where())
    told = Claim(
        names, "matches", (target,), value, None, null, unit, status, "weights", where, (*conditions, *rows)
    )
    return [told, *_at_other_lags(data, int(best["attended_lag"]))] if status == "shown" else [told]


def _conditions(data: xr.Dataset, best: xr.Dataset, away: float) -> list[Condition]:
    """Returns the premises of the best path's claim; the unigram is `away` nats from its law."""
    path, source_lag = str(best["path"].item()), int(data.attrs["source_lag"])
    conditions = [
        _law(data, best),
        _by_itself(best),
        Condition("the unigram is away", value=away, unit="nats"),
        Condition("by mean output", mlp_index(path) is not None),
        Condition("norm's scale at its mean", bool(data.attrs["has_norm"])),
    ]
    if source_lag > 1:
        conditions.append(Condition("lag of the source", value=source_lag))
    no_law = ""
    if source_lag > 1 and away < MIN_GAP_NATS:
        no_law = "a token that tells nothing"
    elif away < TIE:
        no_law = EQUAL_ROWS
    if no_law:
        conditions = [one for one in conditions if one.name not in DISTANCES] + [Condition(no_law)]
    if bool(best["constant"]):
        return [Condition("constant"), *conditions]
    if head_index(path) is not None and no_law != EQUAL_ROWS:
        mass, lag = float(best["attended_mass"]), int(best["attended_lag"])
        words = token_names(lag, int(data.attrs["query_shift"]), source_lag)
        conditions.append(Condition("attends", mass >= MIN_ATTENDED_MASS, mass, "probability", words))
        if int(best["lags_alike"]) > 1 and not no_law:
            conditions.append(Condition("lags alike"))
    if np.isfinite(best["kernel_slope"]):
        conditions.append(Condition("slope", value=_unrounded(float(best["kernel_slope"]))))
    return conditions


def _unrounded(value: float) -> float:
    """Returns a cosine or a slope; 0 for what is rounding."""
    return 0.0 if abs(value) < ROUNDING else value


def _reads(data: xr.Dataset) -> xr.DataArray:
    """Returns which paths read one token most of the time: any does but a head that looks elsewhere."""
    is_head = [head_index(str(path)) is not None for path in np.atleast_1d(data["path"].values)]
    others = ~np.array(is_head).reshape(data["path"].shape)
    return (data["attended_mass"] >= MIN_ATTENDED_MASS) | xr.DataArray(others, dims=data["path"].dims)


def _by_itself(path: xr.Dataset) -> Condition:
    """Returns how far a path's table is from its law, weighed with the attention that its head gives it."""
    is_weighed = float(path["attended_mass"]) < ALL_ATTENTION
    words = ("attention",) if is_weighed else ()
    return Condition("predicts by itself", value=float(path["kernel_kl"]), unit="nats", words=words)


def _law(data: xr.Dataset, path: xr.Dataset) -> Condition:
    """Returns which law a path's circuit is compared with: by how many steps, or of which lag."""
    of_lag = ("lag",) if bool(path["of_own_lag"]) else ("lagged",)
    return Condition(
        "law", value=int(path["attended_lag"]), words=() if data.attrs["first_order"] else of_lag
    )


def _rows(data: xr.Dataset, path: xr.Dataset) -> tuple[tuple[Condition, ...], Where]:
    """Returns which rows of a path are another law's, and after which states it has the law, if not all.

    A cosine over all entries of log P hardly sees them next to transitions that are hardly possible. Rows are
    not another law's if a slope and a mean output mend them all and make none worse that is right as it is:
    at another temperature a flat row is right too. With two states these mend everything, and say nothing.
    """
    own, left = path["row_kl"].values, path["row_left"].values
    known = np.isfinite(left)
    wrong, right = known & (own > WRONG_ROW_NATS), known & (own < IMITATION_NATS)
    labels = np.array([str(label) for label in data.attrs["labels"]])
    mends, spares = left[wrong] < IMITATION_NATS, left[right] < own[right] + WORSE_ROW_NATS
    mended = known.sum() > 2 and mends.all() and spares.all()
    if mended or not (wrong.any() and right.any()):
        if known.sum() <= 2 or (left[known] <= WRONG_ROW_NATS).all():  # of two a slope tells it
            return (), Where()
        most = bool((left[known] <= WRONG_ROW_NATS).mean() > 0.5)  # of them are the law's at one slope
        return (Condition("no row is right", most, float(left[known].max()), "nats"),), Where()
    worst = Condition("other rows", value=float(own[wrong].max()), unit="nats", words=tuple(labels[wrong]))
    return (worst,), Where(states=tuple(labels[known & ~wrong]))


def _at_other_lags(data: xr.Dataset, told: int) -> Iterator[Claim]:
    """Yields paths that have the law of another token than the best one's, where several tell the next."""
    last, least = last_model(data), MIN_GAIN_SHARE * float(data["unigram_kl"])
    name, unit = ("kernel_cosine", "cosine") if data.attrs["n_states"] > 2 else ("kernel_slope", "1 is exact")
    for path in map(str, last["path"].values if not data.attrs["first_order"] else ()):
        one = last.sel(path=path)
        lag, value = int(one["attended_lag"]), float(one[name])
        is_table = np.isfinite(value) and (unit != "cosine" or value >= MIN_COSINE)
        gains = not bool(one["constant"]) and float(one["gain"]) >= least
        if lag != told and gains and is_table and bool(_reads(one)):
            target, _ = target_of(one)
            premises = (
                _law(data, one),
                *[Condition("slope", value=float(one["kernel_slope"]))]
                * bool(np.isfinite(one["kernel_slope"])),
                _by_itself(one),
            )
            rows, where = _rows(data, one)
            yield Claim(
                (path,), "matches", (target,), value, unit=unit, evidence="weights", where=where,
                because=(*premises, *rows),
            )  # fmt: skip


def _deciding(data: xr.Dataset, scores: dict[str, Score]) -> Score | None:
    """The score that says how well: the cosine; at two states, where that is 1 for any model, the slope."""
    order = ["kernel_cosine"] if data.attrs["n_states"] > 2 else []
    order += ["kernel_slope", "recall"]
    return next((scores[name] for name in order if name in scores and scores[name].value is not None), None)


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns where it lives by weights, if no intervention tells."""
    matches = Claims(tuple(claims)).where("matches", status="shown", probe="alignment")
    return [Tile(LIVES, matches[:1], (), matches[0], rank=7)] if matches else []
