"""Claims of induction: which heads match tokens, what feeds them by which input, what the path carries."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import COPIES, MODEL, Claim, Claims, Condition, Evidence, Status, Where
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.models.components import head_index
from mechmarkov.probing.dataset import NORMAL_95, best_heads, head_name, last_model, normal_interval
from mechmarkov.probing.names import LawName
from mechmarkov.probing.score import Score, standing

from .circuit import (
    MAX_SHARE_LEFT,
    MIN_MOVED_SHARE,
    askers_of,
    fed_alike,
    is_moved,
    last_induction_head,
    strongest_feeder,
    tied_heads,
)
from .feeding import ESTIMATE

# A head looks at the previous token, or at copies, if these get more than this much of its attention.
MIN_ATTENTION = 0.5

# Below this many nats a path carries no predictions.
MIN_EFFECT_NATS = 0.01
# A head that writes at most this share of the law's log-odds backwards does not write against it.
MIN_AGAINST = 0.01
MIN_ALONG = 0.25  # and one that writes this share of them writes along it

# A head finds matches after a state if its score there is more than this share of an ideal head's, and misses
# them if less than the other: and so its log odds of a match, as a share of the best state's. That score
# is smaller where matches are few. Where an ideal head scores less than the third there is nothing to find.
MIN_FOUND_SHARE, MAX_MISSED_SHARE = 0.5, 0.2
MIN_IDEAL = 0.05

MIN_LOOKS = 0.01  # of the attention, beyond lag and tokens: with less a head does not look after copies


# Heads match k tokens if what k explain beyond k - 1 is over this share of an ideal head's score.
MIN_MATCHED_SHARE = 0.5

MIN_MOVED_TOO = 0.1  # of the ideal, from which on heads that are moved less than the best are named too

# Where a predecessor may move attention by more than this share of the ideal, too few sequences tell.
MIN_IDEAL_SHARE = 0.5

INTERVENED: Evidence = "intervention"


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """The induction heads, what feeds them and what that path carries; or what only looks like one."""
    last, (head, name) = last_model(data), last_induction_head(data)
    if not np.isfinite(float(head["induction"].sel(matched=1))):
        nothing = (Condition("no match"),)
        return [Claim((MODEL,), "is_induction_head", status="does not apply", because=nothing)]
    if not is_moved(head):
        return [_no_head(last), *_lookalikes(data, last)]
    heads = tuple(head_name({"layer": layer, "head": index}) for layer, index in tied_heads(last)) or (name,)
    feeds = list(_feeds(last, head, name))
    feeders = tuple(dict.fromkeys(who for claim in feeds if claim.is_shown for who in claim.subject))
    asked = list(_feeds_queries(head, heads))
    against, along = _writing(last, heads, -1, MIN_AGAINST), _writing(last, heads, 1, MIN_ALONG)
    carries = list(_carries(data, head, heads, feeders, against, along)) if feeders else []
    circuit = [*feeds, *asked, *carries] if feeders else []
    return [
        *circuit,
        _is_head(data, head, heads, scores, against),
        *([] if circuit else [*feeds, *asked]),
        *(claim for name in heads for claim in _partial(data, last, name)),
    ]


def _writing(last: xr.Dataset, heads: tuple[str, ...], sign: int, least: float) -> tuple[str, ...]:
    """Returns which heads clearly write the law's log-odds (1), or against them, what did not follow (-1)."""
    low = sign * last["along"] - NORMAL_95 * last["along_error"]
    at = {name: head_index(name) for name in heads}
    return tuple(name for name, where in at.items() if where and float(low[where]) > least)


def _tokens_matched(last: xr.Dataset, heads: tuple[str, ...]) -> int:
    """Returns of how many tokens in a row each of the heads clearly looks for copies."""
    matches = last["induction"] - NORMAL_95 * last["induction_error"] > MIN_MATCHED_SHARE * last["ideal"]
    at = [{"layer": where[0], "head": where[1]} for name in heads if (where := head_index(name))]
    each = np.array([matches.isel(where).values for where in at])
    return 1 + int(each[:, 1:].all(0).cumprod().sum())


def _is_head(
    data: xr.Dataset,
    head: xr.Dataset,
    heads: tuple[str, ...],
    scores: dict[str, Score],
    against: tuple[str, ...],
) -> Claim:
    """The heads that a predecessor moves, with how much beyond lag and tokens they put on matches."""
    effect, half = float(head["effect"]), float(head["effect_high"] - head["effect"])
    score = scores["induction_score"]
    within = standing(score) == "within"
    beside = [
        Condition("on matches", value=float(head["match_mass"].sel(matched=1)), unit="probability"),
        Condition("beyond lag and tokens", value=float(head["induction"].sel(matched=1)), unit="probability"),
        Condition("an ideal head has", value=float(data["ideal"].sel(matched=1)), unit="probability"),
    ]
    beside += [Condition("within its null")] * within + [Condition("equal within intervals")] * (
        len(heads) > 1
    )
    if (matched := _tokens_matched(last_model(data), heads)) > 1:
        beside.append(Condition("tokens matched", value=float(matched)))
    if effect - half > 1:
        beside.append(Condition("more than an ideal head"))
    if others := _moved_less(last_model(data), heads):
        most = max(others.values())
        beside.append(Condition("moved less", value=most, unit="of the ideal", words=tuple(others)))
    if against:
        beside.insert(0, Condition("write against the law", words=against))
    if not data.attrs["is_linear"] and (index := head_index(heads[0])) is not None and index[0] == 0:
        beside.append(Condition("its own convolution"))  # nothing else is before a first layer
    return Claim(
        heads, "is_induction_head", (), effect, (effect - half, effect + half), None, "of the ideal",
        "open" if within else "shown", INTERVENED, because=tuple(beside),
    )  # fmt: skip


def _moved_less(last: xr.Dataset, heads: tuple[str, ...]) -> dict[str, float]:
    """Returns other heads that a predecessor clearly moves by a part of the ideal, and by how much."""
    found = np.argwhere((last["effect_low"] > MIN_MOVED_TOO).transpose("layer", "head").values)
    effects = last["effect"].transpose("layer", "head").values
    others = {head_name({"layer": layer, "head": head}): float(effects[layer, head]) for layer, head in found}
    return {name: effect for name, effect in others.items() if name not in heads}


def _no_head(last: xr.Dataset) -> Claim:
    """No head that a predecessor moves, clearly or perhaps; or one that it moves the other way."""
    largest = best_heads(last["effect"])
    effect, high = (float(last[name].isel(largest)) for name in ("effect", "effect_high"))
    if not np.isfinite(effect):
        cannot = (Condition("no key to edit"),)
        return Claim((MODEL,), "is_induction_head", status="does not apply", because=cannot)
    most = float(last["effect_high"].max())
    status: Status = "excluded" if most <= MIN_MOVED_SHARE else "open"
    beside = [Condition("no strong circuit")] * (MIN_MOVED_SHARE < most < MIN_IDEAL_SHARE)
    lowest = best_heads(-last["effect"])
    value, low = float(last["effect"].isel(lowest)), float(last["effect_low"].isel(lowest))
    if value + (value - low) < -MIN_MOVED_SHARE:  # clearly the other way
        name = head_name(lowest)
        beside.append(Condition("moves the other way", value=value, unit="of the ideal", words=(name,)))
    around = (2 * effect - high, high)
    return Claim(
        (head_name(largest),), "is_induction_head", (), effect, around, None, "of the ideal", status,
        INTERVENED, because=tuple(beside),
    )  # fmt: skip


def _feeds(last: xr.Dataset, head: xr.Dataset, name: str) -> Iterator[Claim]:
    """Yields which earlier heads feed the keys of each head that ties, and what is left without them."""
    through = Condition("through", words=("keys",))
    tied = tied_heads(last) or [(int(head["layer"]), int(head["head"]))]
    for feeders, some in fed_alike(last, tied).items():
        heads = tuple(head_name({"layer": layer, "head": index}) for layer, index in some)
        if not feeders:
            yield (
                _not_fed(head, heads)
                if name in heads
                else Claim(
                    (), "feeds", heads, None, None, 1.0, "share", "open", INTERVENED, because=(through,)
                )
            )
            continue
        one = last.isel(layer=some[0][0], head=some[0][1])
        value, low, high = (float(one["tied_left"].sel(estimate=end)) for end in ESTIMATE)
        beside = [
            Condition(
                "previous token", value=float(last["previous_token"][at]), unit="probability", words=(who,)
            )
            for who in feeders
            if (at := head_index(who)) is not None
        ]
        if name in heads:
            beside += [
                Condition("score before and after", value=float(head["intact"])),
                Condition("after the cut", value=float(head["cut"].sel(input="K"))),
            ]
        yield Claim(
            feeders, "feeds", heads, value, (low, high), 1.0, "share", "shown", INTERVENED,
            because=(through, *beside),
        )  # fmt: skip


def _not_fed(head: xr.Dataset, heads: tuple[str, ...]) -> Claim:
    """Returns what is left of the score of a head that no earlier head feeds, without all of them."""
    through = Condition("through", words=("keys",))
    low, high = (float(head["earlier_left"].sel(estimate=end)) for end in ("low", "high"))
    if strongest_feeder(head) is None:
        return Claim((), "feeds", heads, None, None, 1.0, "share", "excluded", INTERVENED, because=(through,))
    if not np.isfinite(low):
        return Claim((), "feeds", heads, None, None, 1.0, "share", "open", INTERVENED, because=(through,))
    status: Status = "open" if low <= MAX_SHARE_LEFT else "excluded"
    ends = (max(0.0, low), min(1.0, high))
    return Claim((), "feeds", heads, None, ends, 1.0, "share", status, INTERVENED, because=(through,))


def _feeds_queries(head: xr.Dataset, heads: tuple[str, ...]) -> Iterator[Claim]:
    """The earlier heads by which a head knows what to look for; most heads see that in their own token."""
    if askers := tuple(head_name(asker) for asker in askers_of(head)):
        value, low, high = (float(head["query_left"].sel(estimate=end)) for end in ESTIMATE)
        through = Condition("through", words=("queries",))
        yield Claim(
            askers, "feeds", heads, value, (low, high), 1.0, "share", "shown", INTERVENED, because=(through,)
        )


def _carries(
    data: xr.Dataset,
    head: xr.Dataset,
    heads: tuple[str, ...],
    feeders: tuple[str, ...],
    against: tuple[str, ...] = (),
    along: tuple[str, ...] = (),
) -> Iterator[Claim]:
    """Yields what KL from the reference gains when the path from the feeders to the keys is cut."""
    intact, cut = float(head["kl_intact"]), float(head["kl_cut"].sel(input="K"))
    low, high = normal_interval(cut - intact, float(head["kl_error"].sel(input="K")))
    simpler, apart = float(data["kl_simpler"]), NORMAL_95 * float(head["simpler_error"])
    beside = [
        Condition("from", value=intact, unit="nats"),
        Condition("to", value=cut, unit="nats"),
        Condition("simpler law", value=simpler, unit="nats", words=(str(data.attrs["simpler"]),)),
    ]
    if high < 0 and cut - intact < -MIN_EFFECT_NATS:
        status: Status = "excluded"
        beside.append(Condition("does harm"))
    elif low > 0 and cut - intact > MIN_EFFECT_NATS:
        status = "shown"
        if set(against) == set(heads):  # what else there is would be too sure of the law without it
            status = "excluded"
            beside.append(Condition("takes from the law"))
        elif simpler - intact <= max(apart, MIN_EFFECT_NATS):
            other = Condition("not the law's", intact >= simpler + apart)
            # Heads that write along the law have some of it, and are too sure of it.
            beside.append(Condition("some of it") if set(along) == set(heads) else other)
        elif low <= MAX_SHARE_LEFT * (simpler - intact):
            beside.append(Condition("some of it"))
        elif intact + apart >= MAX_SHARE_LEFT * simpler:
            beside.append(Condition("most of what there is"))
    else:
        status = "excluded" if high <= MIN_EFFECT_NATS else "open"
    yield Claim(
        (*feeders, *heads), "carries", (str(data.attrs["reference"]),), cut - intact, (low, high), 0.0,
        "nats", status, INTERVENED, because=tuple(beside),
    )  # fmt: skip


def _partial(data: xr.Dataset, last: xr.Dataset, name: str) -> Iterator[Claim]:
    """After which states a head finds no matches, though it does after others."""
    if (at := head_index(name)) is None:
        return
    one = last.isel(layer=at[0], head=at[1])
    score, ideal = one["tied_after"].values, data["ideal_after"].values
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(ideal > MIN_IDEAL, score / ideal, np.nan)
    odds, low, high = (one["tied_odds_after"].sel(estimate=end).values for end in ESTIMATE)
    best = np.nanmax(np.where(np.isfinite(share), odds, -np.inf))
    finds = (share > MIN_FOUND_SHARE) & (low > MIN_FOUND_SHARE * best)
    misses = (share < MAX_MISSED_SHARE) & (high < MAX_MISSED_SHARE * best)
    if finds.any() and misses.any():
        labels = np.array(data.attrs["labels"]).astype(str)
        after, never = (tuple(labels[which]) for which in (finds, misses))
        yield Claim(
            (name,), "is_induction_head", ("after these states",), status="excluded", evidence=INTERVENED,
            where=Where(states=never), because=(Condition("finds after", words=after),),
        )  # fmt: skip


def _lookalikes(data: xr.Dataset, last: xr.Dataset) -> Iterator[Claim]:
    """Heads that a score by itself would take for parts of a circuit."""
    score = last["induction"].sel(matched=1)
    best = best_heads(score)
    if float(score.isel(best)) > max(MIN_LOOKS, 0.1 * float(data["ideal"].sel(matched=1))):
        clearly_nothing = float(last["effect_high"].isel(best)) <= MIN_MOVED_SHARE
        yield Claim(
            (head_name(best),), "attends_to", ("matches",), float(score.isel(best)), unit="probability",
            because=(Condition("not for their predecessors", clearly_nothing or None),),
        )  # fmt: skip
    previous, copies = last["previous_token"], last["duplicate_token"]
    # On a sticky chain the token before mostly is a copy: the larger of the two names the head.
    for values, others, chance, kind in (
        (previous, copies, last["previous_chance"], "previous token"),
        (copies, previous, last["duplicate_chance"], COPIES),
    ):
        at = best_heads(values.where(values >= others))
        value = float(values.isel(at))
        if value > MIN_ATTENTION + (1 - MIN_ATTENTION) * float(chance):
            yield Claim((head_name(at),), "attends_to", (kind,), value, None, float(chance), "probability")


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns the circuit's place, if an induction circuit is shown and needed, with what else is needed."""
    everything = Claims(tuple(claims))
    circuit = circuit_of(everything)
    if circuit is None:
        return []
    effects = [
        one for one in everything.where("is_needed", probe="ablation") if not one.condition("only undoes")
    ]
    bars = {claim.subject[0]: claim.value for claim in effects if claim.value is not None}
    most = everything.first("is_needed_most", status="shown")
    inside = {name for claim in circuit for name in (*claim.subject, *claim.object)}
    first = tuple(claim for claim in circuit if claim.relation == "feeds") or circuit[:1]
    if most is None or set(most.subject) <= inside:
        return [Tile(LIVES, first, circuit, most or circuit[0], bars, "effect")]
    # Whatever is worth more than all parts of the circuit is named with it.
    largest = max((one.value or 0.0 for one in effects if one.subject[0] in inside), default=0.0)
    others = [one for one in effects if one.is_shown and one.subject[0] not in {*inside, *most.subject}]
    larger = sorted(
        (one for one in others if (one.value or 0.0) > largest), key=lambda one: -(one.value or 0.0)
    )
    return [Tile(LIVES, (*first, most, *larger), (circuit[0], most), most, bars, "effect")]


def _is_or_matches_more(law: str, carried: str) -> bool:
    """Returns whether a law is the one that a circuit is judged by, or one in context of more tokens."""
    read = LawName.read(law)
    return law == carried or (read.in_context and read.base == "order")


def circuit_of(claims: Claims) -> tuple[Claim, ...] | None:
    """Returns the claims of an induction circuit that predictions need; None where there is none.

    They need it where they get worse without the path, or without a head itself; where predictions are a law
    at another temperature, or nearest to the one that the circuit writes, also where they get better.
    """
    head, carries = (claims.first(name, probe="induction") for name in ("is_induction_head", "carries"))
    if head is None or not head.is_shown or head.object:
        return None
    if (against := head.condition("write against the law")) is not None:
        head = replace(head, subject=tuple(name for name in head.subject if name not in against.words))
        if not head.subject:
            return None
    # A model that is too sure has a lower loss without what makes it sure.
    closest = claims.first("is_closest_to", status="shown", probe="behaviour")
    written = "in_context_bigram" if carries is None else carries.object[0]
    is_sized = claims.first("tempers", status="shown", probe="behaviour") is not None or (
        closest is not None and _is_or_matches_more(closest.object[0], written)
    )
    too_sure = is_sized and carries is not None and carries.condition("does harm")
    if carries is not None and carries.status == "excluded" and not too_sure:
        return None
    worth = [
        abs(claim.value or 0.0) if is_sized else claim.value or 0.0
        for claim in claims.where("is_needed", probe="ablation")
        if claim.subject[0] in head.subject
    ]
    if carries is not None:
        worth.append(carries.value or 0.0 if carries.is_shown else 0.0)
    if worth and max(worth) < MIN_EFFECT_NATS:
        return None
    acting = tuple(
        name
        for name in head.subject
        if (needed := claims.first("is_needed", subject=name)) is None
        or (abs(needed.value or 0.0) if is_sized else needed.value or 0.0) >= MIN_EFFECT_NATS
    )
    acting = acting or head.subject  # of heads that tie in what they look at, those that something comes of
    head = replace(head, subject=acting)
    fed = claims.where("feeds", status="shown", probe="induction")
    each = [(claim, tuple(name for name in claim.object if name in acting)) for claim in fed]
    return (*(replace(claim, object=names) for claim, names in each if names), head)
