"""Claims of programs: the best one of all that were tried, what it leaves and where it fails."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import MODEL, TABLES, Claim, Condition, Status, Where
from mechmarkov.models.components import composed_parts, head_index
from mechmarkov.probing.dataset import NORMAL_95, last_model, normal_interval
from mechmarkov.probing.names import token_names
from mechmarkov.probing.score import Score, standing

from .measure import CONSTANT_NATS

# Under this many nats what is left of a model is not worth a word.
NEAR_NATS = 0.01

# A path is needed if without it this share of what there is to explain is lost.
MIN_PATH_SHARE = 0.1
ALIKE = 0.99  # of the largest weight: which lag has it is rounding
MIN_TOLD_WEIGHT = 0.1  # a head whose lags all have less reads none of them in particular
MIN_LOOKED_UP = 0.5  # weight of a lag; below, a head reads several tokens
MIN_REACH = 0.5  # a lag that fewer predictions reach is told with their share
MAX_BONUS = 12.0  # log odds; beyond, a fitted bonus is not identified and no number is told

BEST = "best program found"


def nearest_predictor(last: xr.Dataset) -> tuple[str, float]:
    """The exact predictor that leaves least of one model, and how much."""
    values = last["kl_predictor"]
    nearest = int(values.argmin("predictor"))
    return str(values["predictor"].values[nearest]), float(values[nearest])


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Returns what the fitted program and the weights' own tables explain, the better one first."""
    last = last_model(data)
    if not np.isfinite(float(last["explained"])):
        constant = (Condition("constant predictions"),)
        return [Claim(("mean prediction",), "explains", (MODEL,), 1.0, unit="share", because=constant)]
    fitted, weights = _fitted(last, scores), _by_weights(last, scores)
    if not weights.is_shown or (weights.value or 0.0) <= (fitted.value or 0.0):
        return [fitted, weights, *_fails(last)]
    # Several terms that explain less than the weights do are not identified: others would fit as well.
    is_simple = last.sizes["term"] == 2
    return [weights, fitted, *_fails(last)] if is_simple else [weights]


def _fitted(last: xr.Dataset, scores: dict[str, Score]) -> Claim:
    left, kl_mean = float(last["kl"]), float(last["kl_mean"])
    most = normal_interval(left, float(last["kl_error"]))[1]
    name, of_predictor = nearest_predictor(last)
    shift, source = int(last.attrs["query_shift"]), int(last.attrs["source_lag"])
    premises = (
        Condition("numbers", value=float(last["numbers"])),
        Condition("leaves", value=left, unit="nats"),
        Condition("at most", value=most, unit="nats"),
        Condition("of", value=kl_mean, unit="nats"),
        Condition("predictor leaves", value=of_predictor, unit="nats", words=(name,)),
        *(_term(last.isel(term=i), shift, source) for i in range(1, last.sizes["term"])),
    )
    score = scores["explained"]
    return Claim(
        (BEST,), "explains", (MODEL,), _number(score), score.interval, 0.0, "share", because=premises
    )


def _term(term: xr.Dataset, shift: int, source: int) -> Condition:
    """One term: its kind, and the tokens that it reads or how many it matches."""
    tokens = [token_names(lag, shift, source)[-1] for lag in map(int, term["term_lags"].values) if lag]
    order = float(term["term_order"]) or None
    return Condition("term", value=order, words=(str(term["term_kind"].item()), *tokens))


def _number(score: Score) -> float | None:
    return float(score.value) if isinstance(score.value, (int, float)) else None


def _by_weights(last: xr.Dataset, scores: dict[str, Score]) -> Claim:
    score = scores["explained_by_weights"]
    status: Status = "open" if standing(score) == "within" else "shown"
    premises = [Condition("within its null")] * (status == "open")
    premises += [_reads(last, path) for path in _needed_paths(last)]
    premises.append(Condition("leaves", value=float(last["kl_by_weights"]), unit="nats"))
    return Claim(
        (TABLES,), "explains", (MODEL,), _number(score), None, score.null, "share", status, "weights",
        because=tuple(premises),
    )  # fmt: skip


def _needed_paths(last: xr.Dataset) -> list[str]:
    """The paths without which the program would be worse, by a tenth of what there is to explain or more."""
    worth = last["kl_without"] - last["kl_by_weights"]
    order = np.argsort(-worth.values, kind="stable")
    least = max(CONSTANT_NATS, MIN_PATH_SHARE * float(last["kl_mean"]))
    return [str(last["path"].values[i]) for i in order if float(worth[i]) > least]


def _reads(last: xr.Dataset, path: str) -> Condition:
    """Returns what a path of the weights' program looks up: its table, and which token at which weight."""
    *before, name = composed_parts(path)
    shift, source = int(last.attrs["query_shift"]), int(last.attrs["source_lag"])
    table = (name, *before)
    head = head_index(name)
    if head is None:
        return Condition("looks up", words=(*table, *token_names(1, shift, source)))
    weight, bonus = last["lag_weight"][head], float(last["match_bonus"][head])
    if bonus > np.log(2):
        odds = float(np.exp(bonus)) if bonus < MAX_BONUS else None
        return Condition("looks up matches", value=odds, words=table)
    lag = int(weight.values.argmax())
    share = float(weight[lag])
    farthest = last["position"].values - shift + 1
    reach = float((farthest >= lag).mean())
    first = float((weight.values[farthest] / weight.values.cumsum()[farthest]).mean())
    if reach < MIN_REACH and first > 0.5:  # what is farthest, however far
        return Condition("looks up", value=first, words=(*table, "first token"))
    alike = int((weight.values[1:] > ALIKE * share).sum()) if lag else 1
    if alike > 1:
        return Condition("looks up many alike", value=float(alike), words=table)
    if share < MIN_TOLD_WEIGHT:
        return Condition("looks up no lag", value=share, words=table)
    reads_one = share >= MIN_LOOKED_UP or None
    return Condition("looks up", reads_one, share, words=(*table, *token_names(lag, shift, source)))


def _fails(last: xr.Dataset) -> Iterator[Claim]:
    """Yields where the program clearly leaves more than anywhere else."""
    if float(last["kl"]) < NEAR_NATS:
        return
    labels = [str(label) for label in last.attrs["labels"]]
    after, at = last["kl_after"].values, last["kl_at"].values
    state = _stands_out(after, last["kl_after_error"].values)
    position = _stands_out(at, last["kl_at_error"].values)
    program = ("program",)
    if state is not None:
        yield Claim(
            program, "fails_at", (MODEL,), float(after[state]), unit="nats",
            where=Where(states=(labels[state],)),
        )  # fmt: skip
    if position is not None:
        where = Where(positions=(int(last["position"][position]),))
        yield Claim(program, "fails_at", (MODEL,), float(at[position]), unit="nats", where=where)
    if state is None and position is None:
        around = (float(np.nanmin(after)), float(np.nanmax(after)))
        yield Claim(program, "fails_at", (MODEL,), None, around, unit="nats", status="open")


def _stands_out(nats: np.ndarray, error: np.ndarray) -> int | None:
    """The one whose interval is above all others'; None where there is none, or no other."""
    known = np.flatnonzero(np.isfinite(nats))
    if len(known) < 2:
        return None
    first = known[nats[known].argmax()]
    others = known[known != first]
    low, high = nats[first] - NORMAL_95 * error[first], (nats + NORMAL_95 * error)[others].max()
    return int(first) if low > high else None
