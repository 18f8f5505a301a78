"""Claims of a model's behaviour: which law it imitates, where it does not, and how far it has come."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Status, Where, decided
from mechmarkov.claims.tile import LEARNED, STUCK, Tile
from mechmarkov.probing.dataset import (
    IMITATION_NATS,
    IMITATION_SHARE,
    MIN_GAP_NATS,
    NORMAL_95,
    imitates,
    is_nearest,
    last_model,
    normal_interval,
)
from mechmarkov.probing.score import Score

from .contexts import FAR_NATS
from .places import chosen, nearest, somewhere
from .progress import REACHED, is_on_its_way, is_on_scores, knows_a_token, way

ROUNDING = 1e-9
MAX_BARS = 5  # of the picture on the first screen
COLDEST_TOLD, HOTTEST_TOLD = 1 / 128, 8.0  # beyond, what differs is near rounding, or predictions are certain
ROW_SHARE = 0.02  # of KL is left where a row is the law's at a temperature of its own: one is easily fitted
LESS_THAN_CHANCE = 3  # standard errors
MAX_ERROR_SHARE = 0.25  # of the way from chance to the best: a wider interval cannot say "at chance"

_STATUS: dict[bool | None, Status] = {True: "shown", None: "open", False: "excluded"}
_SUBJECT = (MODEL,)


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Returns which laws are imitated and where not, at which temperature, and the excess over the best."""
    last = last_model(data)
    closest = _closest(data, last, scores)
    in_places = list(somewhere(data, last))
    there = {claim.object: claim for claim in in_places if claim.relation == "imitates"}
    everywhere = [_imitates(data, last, scores, str(name)) for name in data["predictor"].values]
    like = [there.get(claim.object, claim) for claim in everywhere]
    tempered = list(_tempered(data, last)) or list(_tempered_somewhere(data, last))
    return [
        *tempered,
        closest,
        _is_right(last, scores),
        *(claim for claim in in_places if claim.relation == "fails_at"),
        *way(data, last, scores),
        *sorted(like, key=lambda claim: claim.object[0] not in closest.object[:1]),
    ]


def _closest(data: xr.Dataset, last: xr.Dataset, scores: dict[str, Score]) -> Claim:
    """The nearest law; with those that coincide with it, and those that are not clearly further away."""
    name, equals = nearest(data)
    value, rest = float(last["kl"].sel(predictor=name)), last["kl"].drop_sel(predictor=[name, *equals])
    ties = [
        str(other)
        for other in rest["predictor"].values
        if float(rest.sel(predictor=other)) - value
        <= NORMAL_95 * float(last["further_error"].sel(predictor=other))
    ]
    premises = [Condition("coincide", words=(name, *equals))] * bool(equals)
    if rest.size:
        second = str(rest.idxmin("predictor").item())
        premises.append(Condition("next law", value=float(rest.min()), unit="nats", words=(second,)))
    if floored := int(last["floored"].sel(predictor=name)):
        premises.append(Condition("floored", value=floored))
    interval = normal_interval(value, float(last["kl_error"].sel(predictor=name)), least=0.0)
    if float(data["gap"]) < MIN_GAP_NATS:  # laws that hardly differ: which is nearer says nothing
        premises.append(Condition("unigram is told from the best", False, float(data["gap"]), "nats"))
        best, unigram = str(data.attrs.get("best", name)), str(data.attrs["unigram"])
        near = [one for one in (unigram, best) if float(last["kl"].sel(predictor=one)) < value + MIN_GAP_NATS]
        ties = list(dict.fromkeys([*ties, *near]))
    ties = [other for other in ties if other not in (name, *equals)]
    if is_on_scores(data) and data.attrs.get("best") not in (name, *equals, *ties):
        premises.append(Condition("loss on scores", True))  # it may be as right as the best law
    status: Status = "open" if ties else "shown"
    names, null = (name, *equals, *ties), _null_of(last, scores, name)
    return Claim(
        _SUBJECT, "is_closest_to", names, value, interval, null, "nats", status, because=tuple(premises)
    )


def _imitates(data: xr.Dataset, last: xr.Dataset, scores: dict[str, Score], name: str) -> Claim:
    value, error = (float(last[each].sel(predictor=name)) for each in ("kl", "kl_error"))
    interval = normal_interval(value, error, least=0.0)
    if bool(is_nearest(last["kl"]).sel(predictor=name)):
        status = _STATUS[imitates(last["kl"], last["kl_error"])]
        if interval[1] >= FAR_NATS or (name != last.attrs.get("best") and is_on_its_way(last)):
            status = decided(interval, IMITATION_NATS, value, above=False)  # nearer to it than to others only
    else:
        status = decided(interval, IMITATION_NATS, value, above=False)
    if name in ("uniform", data.attrs["unigram"]) and knows_a_token(data, last):
        status = "excluded"  # all laws may be that near, and it is clearly nearer to the best than this one
    null = _null_of(last, scores, name)
    return Claim(_SUBJECT, "imitates", (name,), value, interval, null, "nats", status)


def _null_of(
    last: xr.Dataset, scores: dict[str, Score], name: str
) -> float | tuple[float, float, float] | None:
    """The null of the score of a law's KL; only the uniform law, unigram, bigram and the best have one."""
    known = {"uniform": "kl_uniform"} | {
        str(last.attrs[each]): f"kl_{each}" for each in ("unigram", "bigram")
    }
    known |= {str(last.attrs["best"]): "kl_best"} if "best" in last.attrs else {}
    return scores[known[name]].null if name in known and known[name] in scores else None


def _is_right(last: xr.Dataset, scores: dict[str, Score]) -> Claim:
    score, chance = scores["accuracy"], 1 / int(last.attrs["n_states"])
    premises = [Condition("chance", value=chance, unit="probability")]
    if "optimal_accuracy" in last:
        possible = float(last["optimal_accuracy"])
        premises.insert(0, Condition("possible", value=possible, unit="probability"))
    if _at_chance(last):
        premises.append(Condition("at chance"))
    value = score.value if isinstance(score.value, float) else None
    if value is not None and value + LESS_THAN_CHANCE * float(last["accuracy_error"]) < chance - ROUNDING:
        premises.append(Condition("less than chance", value=chance, unit="probability"))
    return Claim(
        _SUBJECT, "is_right", (), value, score.interval, score.null, "probability", because=tuple(premises)
    )


def _at_chance(last: xr.Dataset) -> bool:
    """Returns whether the model is uniform and right as often as chance, and sequences are enough to tell."""
    accuracy, error = float(last["accuracy"]), float(last["accuracy_error"])
    chance = 1 / last.attrs["n_states"]
    beyond = float(last["optimal_accuracy"]) - chance if "optimal_accuracy" in last else 1 - chance
    # Means of exact expectations have rounded.
    is_narrow = NORMAL_95 * error <= MAX_ERROR_SHARE * beyond + 1e-9
    closest = last["predictor"].values[is_nearest(last["kl"])][0]
    # Three of its standard errors from chance is no longer chance.
    return closest == "uniform" and is_narrow and abs(accuracy - chance) <= 3 * error + 1e-9


def _tempered(data: xr.Dataset, last: xr.Dataset) -> Iterator[Claim]:
    """The law that the model has at another temperature than its own; below 0 it has the opposite."""
    if "temperature" not in last:
        return
    if float(data["gap"]) < MIN_GAP_NATS:  # any law is the best at some temperature
        return
    for name in dict.fromkeys([str(data.attrs.get("best", nearest(data)[0])), str(data.attrs["bigram"])]):
        one = last.sel(predictor=name)
        nats, error = float(one["kl_tempered"]), float(one["kl_tempered_error"])
        own, own_error = float(one["kl"]), float(one["kl_error"])
        limit = min(FAR_NATS, IMITATION_SHARE * own)
        # A copy of the likeliest state is the law at some temperature but for what is a good part of its way.
        limit = min(limit, (1 - REACHED) * float(data["gap"]))
        within = nats + NORMAL_95 * error < limit
        heat, nearest_law = float(one["temperature"]), float(last["kl"].min())
        told = COLDEST_TOLD < abs(heat) < HOTTEST_TOLD
        if heat < 0 and nearest_law < IMITATION_NATS:  # the opposite of next to nothing
            continue
        if nearest_law < nats:  # a law as it is fits better than this one at another temperature
            continue
        if told and within and own - NORMAL_95 * own_error > IMITATION_NATS:
            left = Condition("left at that temperature", value=nats, unit="nats")
            at_own = Condition("at its own temperature", value=own, unit="nats")
            relation = "opposes" if heat < 0 else "tempers"
            yield Claim(_SUBJECT, relation, (name,), heat, None, 1.0, "temperature", because=(left, at_own))
            return


def _tempered_somewhere(data: xr.Dataset, last: xr.Dataset) -> Iterator[Claim]:
    """The law that the model has at temperatures that differ from state to state, or between positions."""
    if float(data["gap"]) < MIN_GAP_NATS:
        return
    names = dict.fromkeys([str(data.attrs.get("best", nearest(data)[0])), str(data.attrs["bigram"])])
    for name, which in product(names, ("after", "at")):
        if f"temperature_{which}" not in last:
            continue
        one = last.sel(predictor=name)
        heat, left, own = (one[f"{each}_{which}"].values for each in ("temperature", "kl_tempered", "kl"))
        weight = last["share_after"].values if which == "after" else np.ones(len(own))
        known = np.isfinite(own)
        off = known & (np.nan_to_num(own) > IMITATION_NATS)
        told = (heat > COLDEST_TOLD) & (heat < HOTTEST_TOLD) & (left < ROW_SHARE * own)
        if not off.any() or not told[off].all():
            continue
        at_own, rest = (
            float((nats * weight)[known].sum() / weight[known].sum())
            for nats in (own, np.where(off, left, own))
        )
        # Each place that is off is nearly the law at its temperature; the others are near it as they are.
        limit = min(FAR_NATS, (1 - REACHED) * float(data["gap"]))
        if rest >= limit or float(last["kl"].min()) < rest:
            continue
        if float(one["kl_tempered"]) <= rest:  # one temperature tells as much, of all places
            continue
        places = data.attrs["labels"] if which == "after" else data["position"].values
        words = tuple(str(place) for place in places)
        yield Claim(
            _SUBJECT, "tempers", (name,), unit="temperature",
            because=(
                Condition(f"surer {which}", words=chosen(words, off & (heat > 1))),
                Condition(f"less sure {which}", words=chosen(words, off & (heat < 1))),
                Condition("left at those temperatures", value=rest, unit="nats"),
                Condition("at its own temperature", value=at_own, unit="nats"),
            ),
        )  # fmt: skip
        return


def _bars(laws: Sequence[Claim], known: Sequence[Claim], best: str | None) -> dict[str, float]:
    """The KL of the nearest laws over all predictions, and of the best one in any case.

    Args:
        laws: What is imitated, some of it only at some places.
        known: Claims of what holds over all predictions: of the closest law, of the best one.
        best: The best law.
    """
    # What the loss is above the best is KL only where the best law is exact, so that KL itself comes last.
    values = {c.object[0]: c.value for c in known if c.value is not None}
    values |= {c.object[0]: c.value for c in laws if c.value is not None and c.where == Where()}
    nearest = sorted(values, key=lambda name: values[name])[:MAX_BARS]
    if best in values and best not in nearest:
        nearest[-1] = best
    return {name: values[name] for name in nearest}


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns what has it learned; and whether anything is left to be stuck at."""
    ours = Claims(tuple(claims)).where(probe="behaviour")
    closest, right, reaches = (ours.first(name) for name in ("is_closest_to", "is_right", "reaches"))
    tiles = []
    if closest is not None:
        like = ours.first("imitates", object=closest.object[0])
        tempered = ours.first("tempers") or ours.first("opposes")
        fails = ours.first("fails_at")
        if reaches is not None and reaches.holds("no step was made"):
            tempered = None  # what a random start is at another temperature says nothing
        has = reaches is not None and reaches.is_shown and reaches.object[0] in closest.object
        if like is not None and closest.is_shown and closest.condition("coincide"):
            like = replace(like, object=closest.object)
        told = [claim.object for claim in (reaches, like) if claim is not None]
        if fails is not None and reaches is not None and fails.object in told and not tempered:
            many = fails.condition("share of places")
            if many is not None and (many.holds or not reaches.is_shown):
                like, has = fails, True
        tempered = None if has and like is not fails else tempered
        # Of laws that are not told apart none is named by itself, though the model is near all of them.
        is_told = has or (like is not None and like.is_shown and closest.is_shown)
        answer = tempered or (like if like is not None and is_told else closest)
        known = [claim for claim in (reaches, closest) if claim is not None]
        bars = _bars(ours.where("imitates"), known, None if reaches is None else reaches.object[0])
        order = (fails, right) if like is fails else (right, fails)
        more = tuple(claim for claim in order if claim is not None)
        # Of a law that holds at some places the number is that of all, as in the bars and in the verdict.
        partly = like is None or (like.where != Where() and (like is not fails or closest.is_shown))
        number = closest if partly else like
        if tempered is not None:
            number = ours.everywhere().first("imitates", object=tempered.object[0]) or number
        tiles.append(Tile(LEARNED, (answer,), more, number, bars, "kl"))
    if reaches is not None and reaches.value is not None:
        gap = reaches.condition("unigram is told from the best")
        bars = {MODEL: reaches.value}
        if gap and gap.value is not None:
            bars |= {gap.words[0] if gap.words else "unigram": gap.value}
        tiles.append(Tile(STUCK, (reaches,), (), reaches, bars, "excess", rank=9))
    return tiles
