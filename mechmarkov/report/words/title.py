"""The title of a result: what the badge means, and who does it, in at most twelve words."""

import math
from collections.abc import Mapping, Sequence

from mechmarkov.claims.claim import Claim, Claims, Where
from mechmarkov.claims.tile import Tile
from mechmarkov.report.first_screen.verdict import UNIGRAM_PROGRESS, Badge, is_exactly_as_right, progress
from mechmarkov.report.words.names import (
    MAX_NAMED,
    bare_law,
    heads,
    law,
    nats,
    parts,
    share,
    token,
    verb,
)
from mechmarkov.report.words.phrases.laws import but_not, sureness
from mechmarkov.report.words.phrases.premises import premise
from mechmarkov.utils.text import listed

MAX_TITLE_WORDS = 12
NO_PARTS = ("uniform", "unigram", "in_context_unigram")  # laws near which a loss says nothing
UNDECIDED = "Undecided: too few sequences tell it from the unigram"
NEARLY_UNIFORM = 0.1  # nats: scores of untrained models, as probabilities, may be far from uniform
WIDE = 0.2  # of a way, from which on an interval is told and not its middle
CLOSE = 0.25  # of what the part is worth that is needed most, from which on it is not named without the next


def title(word: Badge | None, claims: Claims, lives: Tile | None) -> str:
    """Returns the verdict on a model in at most twelve words.

    Args:
        word: The badge.
        claims: The claims of all probes, consistent.
        lives: The answer to "Where does it live?".
    """
    reaches = claims.where("reaches", probe="behaviour")[0]
    best = bare_law(reaches.object[0])
    closest, fails = (claims.first(name, probe="behaviour") for name in ("is_closest_to", "fails_at"))
    few = None if fails is None else fails.condition("share of places")
    if word == "solved":
        if few is not None and not few.holds:
            fails = None  # a tile says where
        if not reaches.is_shown:
            nearly = "" if is_exactly_as_right(claims) else ", right nearly as often as possible"
            return _with(f"Learned the {best}'s circuit{nearly}", how(claims, lives))
        name = best if closest is None else bare_law(closest.object[0])
        if fails is not None:
            return but_not(f"Learned the {name}", fails, MAX_TITLE_WORDS)
        return _with(f"Learned the {name}", how(claims, lives))
    tempered = claims.first("tempers")
    if tempered is not None and word != "untrained":
        has, how_sure = f"Has {law(tempered.object[0])}, but", sureness(tempered)
        ways = [f"{has} is {how_sure} than it should be"] * (tempered.value is not None)
        return _longest(*ways, f"{has} is {how_sure}", f"{has} {how_sure}", f"{has} not as sure")
    if fails is not None and word in ("partly", "another law") and fails.object[0] not in NO_PARTS:
        return but_not(f"Has {law(fails.object[0])}", fails, MAX_TITLE_WORDS)
    if word == "partly":
        return _on_the_way(claims, best, how(claims, lives))
    if word == "trapped":
        return "Trapped by symmetry: no gradient tells one state from another"
    if word == "at the unigram" and _is_held(claims):
        return "Stuck at the unigram, at a local minimum"
    if word == "at the unigram":
        at = f"At the unigram: {_hardly(progress(claims)[2])} of the way"
        return _longest(f"{at} to the {best}", at)
    if word == "another law":
        return _another(claims, best, closest)
    if word == "untrained":
        return "Untrained: no step was made"
    if claims.first("is_on_the_way_to") is not None:
        return _undecided(closest)
    other = "unigram"
    if reaches.holds("the best is the unigram") and closest is not None:
        other = next((bare_law(name) for name in closest.object if name not in reaches.object), other)
    return f"The {other} and the {best} coincide within 0.01 nats"


def _undecided(closest: Claim | None) -> str:
    """A model whose loss is the unigram's or not, within its error; its law may be clear all the same."""
    if closest is not None and closest.is_shown and not {*closest.object} & {*NO_PARTS}:
        near = f"Closest to {law(closest.object[0])}"
        rest = (", with a loss not told from the unigram's", ": perhaps the unigram's loss")
        return _longest(*(f"{near}{text}" for text in rest), UNDECIDED)
    return UNDECIDED


def _is_held(claims: Claims) -> bool:
    """Returns whether a model far from the best is at a minimum, beyond what the second order shows."""
    point = claims.first("is_at", object="minimum", status="shown")
    near = None if point is None else point.condition("near the best")
    return (
        point is not None
        and near is not None
        and near.holds is False
        and not point.holds("to second order only")
    )


def _hardly(most: float) -> str:
    """Returns a share that is at most a tenth."""
    return "0%" if most <= 0 else f"at most {math.ceil(100 * most - 1e-9)}%"


def _another(claims: Claims, best: str, closest: Claim | None) -> str:
    """Neither unigram nor best; the law that it is closest to, and whether its loss is above the unigram's."""
    value, low, high = progress(claims)
    if claims.first("is_on_the_way_to") is None:
        reaches = claims.where("reaches", probe="behaviour")[0]
        if reaches.holds("the best is the unigram"):
            return f"Not the {best}: {nats(reaches.value)} away"
        return f"Not the {best}, nor the unigram, which nearly coincide"
    named = f"Not the {best}"
    if closest is not None and closest.is_shown:
        named = f"Closest to {law(closest.object[0])}"
        like = claims.first("imitates", object="uniform", probe="behaviour")
        if closest.object[0] == "uniform" and like is not None and isinstance(like.null, tuple):
            least, _, most = like.null
            is_fresh = least <= (like.value or 0.0) <= min(most, NEARLY_UNIFORM)
            named = "Uniform, as untrained models are" if is_fresh else named
    opposes = claims.first("opposes", status="shown", probe="behaviour")
    if opposes is not None:
        named = f"Has the opposite of {law(opposes.object[0])}"
    way = claims.first("is_on_the_way_to", probe="behaviour")
    above = high < 0 or (way is not None and way.holds("the loss is above the unigram's"))
    where = "near" if value >= -0.1 else "above" if above else "perhaps above"
    where = "below" if low > UNIGRAM_PROGRESS else where
    worse = where == "above" and way is not None and way.condition("the loss is above the uniform law's")
    than = "the uniform law's" if worse else "the unigram's"
    if (
        opposes is None
        and worse
        and closest is not None
        and closest.object[:1] == ("uniform",)
        and closest.is_shown
    ):
        return f"{named}, with a larger loss"
    return _longest(*(f"{named}{link} a loss {where} {than}" for link in (", with", ":")), named)


def _on_the_way(claims: Claims, best: str, ways: Sequence[str]) -> str:
    """Returns how far a model has come, from where to where, and who does it, as far as a title has room.

    A law between the two that it has is named instead of them.
    """
    reaches, closest = claims.where("reaches", probe="behaviour")[0], claims.first("is_closest_to")
    way = way_come(claims)
    from_where = next(iter(premise(reaches, "unigram is told from the best").words), "unigram")
    told = _longest(f"{way} from {bare_law(from_where)} to {best}", f"{way} to the {best}")
    like = claims.where("imitates", probe="behaviour", status="shown")
    if closest is not None and closest.object in [
        claim.object for claim in like if claim.object[0] not in (from_where, *NO_PARTS, *reaches.object)
    ]:
        has = f"has {law(closest.object[0])}"
        return _longest(
            f"{told}: {has}", f"{way} to the {best}: {has}", f"{has[0].upper()}{has[1:]}: {way}", told
        )
    return _with(told, ways)


def way_come(claims: Claims) -> str:
    """Returns how much of the way to the best law a model has come: its interval, where that is wide."""
    value, *ends = progress(claims)
    is_wide = ends[1] - ends[0] >= WIDE or ends[0] <= 0 < ends[1]
    low, high = (share(min(1.0, max(0.0, end))) for end in ends)
    return f"{f'{low} to {high}' if is_wide else share(value)} of the way"


def _longest(*ways: str) -> str:
    """Returns the first of these, the longest first, that a title has room for; otherwise the last."""
    return next((text for text in ways if len(text.split()) <= MAX_TITLE_WORDS), ways[-1])


def _with(short: str, ways: Sequence[str]) -> str:
    """The longest way to say who does it that a title has room for."""
    return _longest(*(f"{short}: {who}" for who in ways if who), short)


def how(claims: Claims, lives: Tile | None) -> list[str]:
    """Returns phrases for who does it, the longest first; [""] where nothing is named. Phrases may repeat.

    They come from the shown claims of `lives.answer`.

    Args:
        claims: The claims of all probes; `behaviour` has a `reaches` claim, otherwise an IndexError is raised.
        lives: The tile that answers "Where does it live?", or None.
    """
    best = claims.where("reaches", probe="behaviour")[0].object
    shown = [] if lives is None else [claim for claim in lives.answer if claim.is_shown]
    # Where the bigram is stored says nothing of a better law.
    shown = [claim for claim in shown if claim.relation != "stores" or claim.object == best]
    needed = [claim.value or 0.0 for claim in shown if claim.relation in ("is_needed", "is_needed_most")]
    if len(needed) > 1 and needed[1] >= CLOSE * needed[0]:  # it is in all of these: a tile names them
        return [""]
    told = [text for claim in shown if (text := in_short(claim, claims))]
    feeds = [claim for claim in shown if claim.relation == "feeds"]
    if not feeds:
        return [listed(told), *told[:1]]
    circuit = [claim for claim in shown if claim.relation in ("feeds", "is_induction_head")]
    inside = {name for claim in circuit for name in (*claim.subject, *claim.object)}
    if any(
        one.condition("does harm") and inside.issuperset(one.subject) for one in claims.where("is_needed")
    ):
        return [""]  # what has come of the way has not come by it
    if any(not inside.issuperset(claim.subject) for claim in shown):  # the circuit is not all that is needed
        return [listed(told)]
    feeders, fed = (tuple(dict.fromkeys(name for claim in feeds for name in getattr(claim, which)))
                    for which in ("subject", "object"))  # fmt: skip
    verb_of = verb(feeders, "feeds", "feed")
    counted_only = f"{_count(feeders)} {verb_of} {_count(fed)}"
    if len(feeds) > 1:  # who feeds whom is told of all of them, or of none
        return [listed(told), counted_only]
    return [listed(told), *told[:1], f"{heads(feeders)} {verb_of} {heads(fed)}", counted_only]


def _count(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} heads"


def in_short(claim: Claim, claims: Claims) -> str:
    """Returns a claim of parts in a few words; "" for one that names none."""
    who = claim.subject
    if claim.relation == "feeds":
        return f"{heads(who)} {verb(who, 'feeds', 'feed')} induction {verb(claim.object, 'head', 'heads')} {heads(claim.object)}"
    if claim.relation == "is_induction_head":
        return f"induction {verb(who, 'head', 'heads')} {heads(who)}"
    if claim.relation == "stores":
        if claim.condition("corrected by") is not None:  # it is not in that part only: a tile tells
            return ""
        reads = claims.everywhere().first(
            "attends_to", subject=who[0], object="parent", status="shown", probe="attention"
        )
        if len(who) == 1 and reads is not None:
            return f"{who[0]} reads {token(reads.object)}"
        if len(who) > MAX_NAMED:
            return f"spread over {len(who)} parts"
        return f"{'spread over' if claim.condition('not stable') else 'in'} {parts(who)}"
    if claim.where != Where():  # a tile tells which
        return ""
    if claim.relation == "attends_to":
        return f"{heads(who)} {verb(who, 'reads', 'read')} {token(claim.object)}"
    known = {
        "is_needed_most": f"{parts(who)} {verb(who, 'is', 'are')} needed most",
        "matches": f"{parts(who)} {verb(who, 'has', 'have')} it in the weights",
        "recovers": f"{heads(who)} follows the graph",
    }
    return known.get(claim.relation, "")


def not_judged(missing: Sequence[str], failed: Mapping[str, str]) -> str:
    """Returns that a circuit was not judged which, if exact, would change the badge, and how to have it."""
    why = [f"{name} failed" for name in missing if name in failed]
    if unasked := [name for name in missing if name not in failed]:
        why.append(f"add {listed(unasked)} to the probes")
    start = "The loss is on scores, where an exact circuit counts as solved. The circuit was not judged: "
    return f"{start}{', '.join(why)}."
