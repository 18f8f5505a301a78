"""Sentences of laws: which one a model is like, where not, and how far it has come."""

from mechmarkov.claims.claim import Claim
from mechmarkov.report.words.names import MAX_NAMED, law, nats, number, share, some, within
from mechmarkov.report.words.phrases.premises import Phrase, reason_in, value_in
from mechmarkov.utils.text import format_range, listed

ROUNDING = 1e-6  # of a share of a way, computed from predictions in float32


def _imitates(claim: Claim) -> str:
    does = {"shown": "predicts like", "open": "may predict like", "excluded": "does not predict like"}.get(
        claim.status, "cannot be compared with"
    )
    return f"It {does} {law(claim.object[0])}: KL {nats(claim.value)}{within(claim)}"


def _closest(claim: Claim) -> str:
    names = [law(name) for name in claim.object]
    if claim.is_shown:
        return f"It is closest to {names[0]} (KL {nats(claim.value)})"
    return f"It is closest to {listed(names[:MAX_NAMED])}, which are not told apart (KL {nats(claim.value)})"


def _tempers(claim: Claim) -> str:
    heat = "less" if value_in(claim) < 1 else "more"
    return f"At temperature {number(value_in(claim))} it is {law(claim.object[0])}: right, but {heat} sure"


def _reaches(claim: Claim) -> str:
    best = "the best possible" if claim.object else "the best"
    away = f"It is {nats(claim.value)} from {best}{within(claim)}"
    if claim.status == "open" and claim.against is None:
        return f"{away}: whether that is under a tenth of the way is open"
    return f"{away}{reason_in(claim)}"


def _on_the_way(claim: Claim) -> str:
    to, high = law(claim.object[0]), value_in(claim) if claim.interval is None else claim.interval[1]
    if high < -ROUNDING:
        return "Its expected loss is above the unigram's"
    if value_in(claim) < -ROUNDING:
        return f"Its expected loss is perhaps above the unigram's{within(claim)}"
    if value_in(claim) < ROUNDING:
        return f"It has come 0% of the way from the unigram to {to}"
    return f"It has come {share(claim.value)} of the way from the unigram to {to}{within(claim)}"


def _is_right(claim: Claim) -> str:
    possible = claim.condition("possible")
    right = f"It is right {share(claim.value, 1)} of the time"
    return right if possible is None else f"{right}, where {share(possible.value, 1)} is possible"


def _fails_at(claim: Claim) -> str:
    at = where(claim)
    if claim.subject == ("program",):
        if claim.status == "open":
            low, high = claim.interval or (0.0, 0.0)
            return (
                f"Where the program leaves most is open: {format_range(low, high, 3)} nats after each state"
            )
        return f"What it leaves is most {at} ({nats(claim.value)})"
    return f"{at[:1].upper()}{at[1:]} it is {nats(claim.value)}{within(claim)} from {law(claim.object[0])}"


def where(claim: Claim) -> str:
    """Returns the states or positions of a claim in words."""
    states, positions = claim.where.states, claim.where.positions
    if states:
        return f"after {'state' if len(states) == 1 else 'states'} {some(states)}"
    return f"at {'position' if len(positions) == 1 else 'positions'} {some([str(at) for at in positions])}"


def but_not(start: str, claim: Claim, most: int) -> str:
    """Returns a few words, and where they do not hold: by names, or only how many places if that is too long."""
    told = f"{start}, but not {where(claim)}"
    if len(told.split()) <= most:
        return told
    states = claim.where.states
    many = f"after {len(states)} states" if states else f"at {len(claim.where.positions)} positions"
    return f"{start}, but not {many}"


LAWS: dict[str, Phrase] = {
    "imitates": _imitates,
    "is_closest_to": _closest,
    "tempers": _tempers,
    "reaches": _reaches,
    "is_on_the_way_to": _on_the_way,
    "is_right": _is_right,
    "fails_at": _fails_at,
}
