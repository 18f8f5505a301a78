"""The induction circuit that predictions need, of all claims about a model, and its tile."""

from collections.abc import Sequence
from dataclasses import replace

from mechmarkov.claims.claim import Claim, Claims
from mechmarkov.claims.tile import LIVES, Tile
from mechmarkov.probing.names import LawName

from .claims import MIN_EFFECT_NATS

MOST_LEFT = 0.5  # of the way from the unigram to the best law


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


def _rest_has_it(claims: Claims, heads: Sequence[str]) -> bool:
    """Returns whether without one of some heads a model is most of the way to the best law.

    Then what they write is not a law of which they are too sure: they disturb the law of other parts.
    """
    reaches = claims.first("reaches", probe="behaviour")
    gap = None if reaches is None else reaches.condition("unigram is told from the best")
    if reaches is None or gap is None or gap.value is None or reaches.value is None:
        return False
    harm = [one for one in claims.where("is_needed", probe="ablation") if one.condition("does harm")]
    without = [reaches.value + (one.value or 0.0) for one in harm if one.subject[0] in heads]
    return min(without, default=gap.value) < MOST_LEFT * gap.value


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
    too_sure = is_sized and carries is not None and any(map(carries.condition, ("does harm", "too sure")))
    if carries is not None and carries.status == "excluded" and not too_sure:
        return None
    if too_sure and _rest_has_it(claims, head.subject):
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
