"""The rule that turns claims into a badge: solved, partly, at the unigram, another law, trapped, untrained.

"Solved" asks that the best law is reached, with its interval; the title says where it fails. A loss on scores
has another optimum than cross-entropy: there a head that reads the parent only, with the target's table, is
as good.
"""

from typing import Literal

from mechmarkov.claims.claim import Claims

Badge = Literal["solved", "partly", "at the unigram", "another law", "trapped", "untrained"]

# What each word means, for who points at it.
MEANS: dict[Badge, str] = {
    "solved": "the best law, with at most a tenth of the nats from the unigram left; or its exact circuit",
    "partly": "more than a tenth of the nats from unigram to best is gained, or the best law at some places",
    "at the unigram": "its law and its loss are the unigram's, within a tenth of the nats to the best",
    "another law": "not near the unigram, nor on the way to the best law; or uniform where counts lose more",
    "trapped": "no gradient tells states apart",
    "untrained": "no step was made",
}

ALL_EDGES = ("edges of all such heads", "edges of the graph")
UNIGRAM_PROGRESS = 0.1  # within this of the unigram's loss, on either side
UNIGRAM_KL = 0.1  # KL from the unigram, as a share of the way from its loss to the best
SOLVED_COSINE = 0.99
SOLVED_ATTENTION = 0.99  # of a head on the parent
SOLVED_ACCURACY = 0.99  # share of the highest accuracy that is possible


def badge(claims: Claims) -> Badge | None:
    """The one word for a model; None where no probe tells, or the unigram is not told apart."""
    reaches = claims.first("reaches", probe="behaviour")
    if reaches is None:
        return None
    apart, same_law = map(reaches.holds, ("unigram is told from the best", "the best is the unigram"))
    reached = reaches.is_shown and reaches.holds("the nearest law is the best")
    alike = not apart and reaches.status != "excluded" and not (same_law and reached)
    exact = is_exact(claims)
    learned = reached or exact
    if learned and not alike:
        return "solved"
    if reaches.holds("no step was made"):
        return "untrained"
    if alike:
        return None
    value, low, high = progress(claims)
    is_wide = low < -UNIGRAM_PROGRESS <= value and high > UNIGRAM_PROGRESS  # on either side of the unigram
    if value > UNIGRAM_PROGRESS and is_uniform_below_the_unigram(claims):
        return "another law"
    # The best law but for its temperature or some states is a part of it too.
    if (value > UNIGRAM_PROGRESS and not is_wide) or learned or has_but_for(claims):
        return "partly"
    trapped = claims.first("is_trapped_by", status="shown")
    if trapped is not None:
        return "trapped"
    if is_wide:
        return None
    if high > UNIGRAM_PROGRESS and value > 0:
        return "partly"
    gap, away = map(reaches.number, ("unigram is told from the best", "the nearest law is the unigram"))
    near = reaches.holds("the nearest law is the unigram") and away <= UNIGRAM_KL * gap
    if not near or value < -UNIGRAM_PROGRESS:
        return "another law"
    return "at the unigram" if high <= UNIGRAM_PROGRESS else None


def is_uniform_below_the_unigram(claims: Claims) -> bool:
    """Returns whether the model has the uniform law, where counts of tokens have a larger loss than that."""
    reaches = claims.first("reaches", probe="behaviour")
    is_uniform = claims.first("imitates", object="uniform", status="shown", probe="behaviour") is not None
    return is_uniform and reaches is not None and reaches.holds("the uniform law is better than the unigram")


def has_but_for(claims: Claims) -> bool:
    """Returns whether the model has the best law but for its temperature, or some states or positions."""
    fails, reaches, tempers = (
        claims.first(name, probe="behaviour") for name in ("fails_at", "reaches", "tempers")
    )
    if reaches is None:
        return False
    tempered = tempers is not None and tempers.is_shown and tempers.object == reaches.object
    return tempered or (fails is not None and fails.object == reaches.object)


def progress(claims: Claims) -> tuple[float, float, float]:
    """The share of the way from the unigram's loss to the best, and its interval; ±1 if there is no way."""
    way = claims.first("is_on_the_way_to", probe="behaviour")
    if way is None or way.value is None:
        reaches = claims.first("reaches", probe="behaviour")
        value = 1.0 if reaches is not None and reaches.is_shown else -1.0
        return value, value, value
    low, high = way.interval or (way.value, way.value)
    return way.value, low, high


def is_exact(claims: Claims) -> bool:
    """Returns whether a loss on scores made the circuit of the best law, with predictions that are as right.

    That is a head that reads the parent only and has the target's table, or heads with all of the graph.
    """
    reaches = claims.first("reaches", probe="behaviour")
    if reaches is None or not reaches.holds("loss on scores") or not is_as_right(claims):
        return False
    recovers = claims.first("recovers", status="shown")
    if recovers is not None and len(set(map(recovers.number, ALL_EDGES))) == 1:
        return True
    matches = claims.first("matches", status="shown")
    if matches is None or matches.unit != "cosine" or (matches.value or 0.0) < SOLVED_COSINE:
        return False
    reads = claims.everywhere().where("attends_to", object="parent", status="shown", probe="attention")
    looks = max((claim.value or 0.0 for claim in reads if claim.subject[0] in matches.subject), default=0.0)
    return looks >= SOLVED_ATTENTION


def is_exactly_as_right(claims: Claims) -> bool:
    """Returns whether accuracy is the highest that is possible, to the tenth of a percent that is shown."""
    right = claims.first("is_right", probe="behaviour")
    return right is not None and (right.value or 0.0) > right.number("possible") - 1e-3


def is_as_right(claims: Claims) -> bool:
    """Returns whether the model is right as often as any can be."""
    right = claims.first("is_right", probe="behaviour")
    possible = 0.0 if right is None else right.number("possible")
    return right is not None and possible > 0 and (right.value or 0.0) >= SOLVED_ACCURACY * possible
