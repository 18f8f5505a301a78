"""Sentences of laws: which one a model is like, where not, and how far it has come."""

from collections.abc import Sequence
from itertools import pairwise

from mechmarkov.claims.claim import ARROW, Claim
from mechmarkov.report.words.names import MAX_NAMED, fitting, law, nats, number, share, some, within
from mechmarkov.report.words.phrases.premises import Phrase, cap, reason_in, value_in
from mechmarkov.utils.text import clean, format_range, listed

MUCH = 4.0  # times less or more sure
ROUNDING = 1e-6  # of a share of a way, computed from predictions in float32


def _imitates(claim: Claim) -> str:
    does = {"shown": "predicts like", "open": "may predict like", "excluded": "does not predict like"}.get(
        claim.status, "cannot be compared with"
    )
    if not claim.is_everywhere:
        at = where(claim)
        return f"{cap(at)} it {does} {law(claim.object[0])}: KL {nats(claim.value)} at most"
    return f"It {does} {law(claim.object[0])}: KL {nats(claim.value)}{within(claim)}"


def _closest(claim: Claim) -> str:
    names = [law(name) for name in claim.object]
    near = "Its scores, as probabilities, are" if claim.holds("loss on scores") else "It is"
    if claim.is_shown:
        return f"{near} closest to {names[0]} (KL {nats(claim.value)})"
    told, kl = f"{near} closest to {listed(names[:MAX_NAMED])}", f" (KL {nats(claim.value)})"
    apart = ", which are not told apart"
    return fitting(f"{told}{apart}{kl}", f"{told}, not told apart{kl}", f"{told}, not told apart")


def _tempers(claim: Claim) -> str:
    if claim.value is None:
        surer, less = _by_sureness(claim)
        told = [f"surer than it should be {surer}"] * bool(surer) + [f"less sure {less}"] * bool(less)
        return f"It is {law(claim.object[0])}, but {', and '.join(told)}"
    return (
        f"At temperature {number(value_in(claim))} it is {law(claim.object[0])}: right, but {sureness(claim)}"
    )


def _opposes(claim: Claim) -> str:
    return f"It has the opposite of {law(claim.object[0])}: what that law makes likely it makes unlikely"


def _by_sureness(claim: Claim) -> list[str]:
    """Returns after which states or at which positions a model is surer than a law, and less sure; or ""."""
    told = []
    for how in ("surer", "less sure"):
        after, at = (claim.condition(f"{how} {which}") for which in ("after", "at"))
        states, positions = (() if one is None else one.words for one in (after, at))
        told.append(
            after_states(states) if states else at_positions([*map(int, positions)]) if positions else ""
        )
    return told


def sureness(claim: Claim) -> str:
    """Returns how sure a model is of a law that it has at another temperature than 1, and where."""
    if claim.value is None:
        surer, less = _by_sureness(claim)
        if surer and less:
            places = "after some states" if claim.condition("surer after") else "at some positions"
            return f"more or less sure {places}"
        return f"{'more' if surer else 'less'} sure {surer or less}"
    heat = value_in(claim)
    much = "much " if not 1 / MUCH < heat < MUCH else ""
    return f"{much}{'less' if heat < 1 else 'more'} sure"


def _reaches(claim: Claim) -> str:
    best = "the best possible" if claim.object else "the best"
    away = f"It is {nats(claim.value)} from {best}{within(claim)}"
    if claim.status == "open" and claim.against is None:
        ways = (within(claim), "")
        told = (f"It is {nats(claim.value)} from {best}{ends}" for ends in ways)
        return fitting(*(f"{one}: whether that is under a tenth of the way is open" for one in told))
    if claim.status == "excluded" and (fell := claim.condition("the loss fell")) is not None:
        return f"{away}, {nats(fell.value)} less than at step {fell.words[0]}"
    return f"{away}{reason_in(claim)}"


def _on_the_way(claim: Claim) -> str:
    to, high = law(claim.object[0]), value_in(claim) if claim.interval is None else claim.interval[1]
    if claim.condition("the loss is above the uniform law's"):
        return "Its expected loss is above the uniform law's"
    if high < -ROUNDING or claim.holds("the loss is above the unigram's"):
        return "Its expected loss is above the unigram's"
    if value_in(claim) < -ROUNDING:
        return "Its expected loss is perhaps above the unigram's"
    if value_in(claim) < ROUNDING:
        return f"It has come 0% of the way from the unigram to {to}"
    return f"It has come {share(claim.value)} of the way from the unigram to {to}{within(claim)}"


def _is_right(claim: Claim) -> str:
    possible = claim.condition("possible")
    right, chance = f"It is right {share(claim.value, 1)} of the time", claim.condition("less than chance")
    if chance is not None:
        right = f"{right}, less often than by chance ({share(chance.value, 1)})"
    return right if possible is None else f"{right}, where {share(possible.value, 1)} is possible"


def _fails_at(claim: Claim) -> str:
    at = where(claim)
    if claim.subject == ("program",):
        if claim.status == "open":
            low, high = claim.interval or (0.0, 0.0)
            return f"Where the fitted program leaves most is open: {format_range(low, high, 3)} nats after each state"
        return f"What the fitted program leaves is most {at} ({nats(claim.value)})"
    places = (claim.where.states, claim.where.positions, claim.where.pairs)
    most = "up to " if any(len(some) > 1 for some in places) else ""  # of the worst
    if (there := claim.condition("law there")) is not None:
        like = law(there.words[0])
        return f"{cap(at)} it predicts like {like}, {most}{nats(claim.value)} from {law(claim.object[0])}"
    told = f"{cap(at)} it is {most}{nats(claim.value)}"
    return fitting(*(f"{told}{ends} from {law(claim.object[0])}" for ends in (within(claim), "")))


def where(claim: Claim) -> str:
    """Returns the states or positions of a claim in words."""
    states, positions = claim.where.states, claim.where.positions
    if claim.where.pairs:
        return after_pairs(claim, [ARROW.join(pair) for pair in claim.where.pairs])
    return " ".join([after_states(states)] * bool(states) + [at_positions(positions)] * bool(positions))


def after_pairs(claim: Claim, pairs: Sequence[str], *, elsewhere: bool = False) -> str:
    """Returns the pairs of last states at which a law fails in words, or those elsewhere, at which it holds.

    Args:
        claim: What says where the law fails.
        pairs: Names of the pairs.
        elsewhere: Whether they are those at which the law holds.
    """
    if (equal := claim.condition("two equal states")) is not None:
        return f"after two {'equal' if equal.holds is not elsewhere else 'different'} states"
    before = claim.condition(f"{'holds' if elsewhere else 'fails'} with before")
    if before is not None and len(before.words) <= MAX_NAMED:
        return f"where {' or '.join(map(clean, before.words))} came before the last state"
    return (
        f"after {listed([*map(clean, pairs)])}"
        if len(pairs) <= MAX_NAMED
        else f"after {len(pairs)} pairs of states"
    )


def after_states(states: Sequence[str]) -> str:
    """Returns states in words."""
    return f"after {'state' if len(states) == 1 else 'states'} {some(states)}"


def at_positions(positions: Sequence[int]) -> str:
    """Returns positions in words: runs of them by their ends, evenly spaced ones by the first and the last."""
    runs: list[list[int]] = []
    for at in positions:
        if runs and at == runs[-1][-1] + 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    ranges = [
        text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))
    ]
    steps = {later - at for at, later in pairwise(positions)}
    if len(ranges) <= MAX_NAMED:
        told = listed(ranges)
    elif len(steps) == 1:
        told = f"{positions[0]}, {positions[1]}, …, {positions[-1]}"
    else:
        told = some(ranges) if len(ranges) == len(positions) else some([str(at) for at in positions])
    return f"at {'position' if len(positions) == 1 else 'positions'} {told}"


def but_not(start: str, claim: Claim, most: int) -> str:
    """Returns the start of a sentence with where it does not hold: `like P, but not after state 2`.

    Where the claim holds at few places, or is open at more than a few, it is where it holds: `only after state 2`.

    Args:
        start: The words that the places are added to.
        claim: A claim with places (`Claim.where`), or with the condition `near elsewhere`.
        most: The most words of the result that names the places; beyond it their number is told.
    """
    near = claim.condition("near elsewhere")
    only = () if near is None else near.words
    states, positions = claim.where.states, claim.where.positions
    if only and claim.where.pairs:
        at, link, count = after_pairs(claim, only, elsewhere=True), " only", len(only)
    elif only:
        at = after_states(only) if states else at_positions([int(place) for place in only])
        link, count = " only" if near is not None and near.holds else "", len(only)
    else:
        at, link, count = where(claim), ", but not", len(states or positions or claim.where.pairs)
    count_of = f"after {count} states" if states else f"at {count} positions"
    ways = [at, f"after {count} pairs of states" if claim.where.pairs else count_of]
    if states and positions:
        ways[1:] = [f"{after_states(states)} at {len(positions)} positions", "at some places"]
    told = [f"{start}{link} {way}" for way in ways]
    return next((way for way in told if len(way.split()) <= most), told[-1])


LAWS: dict[str, Phrase] = {
    "imitates": _imitates,
    "is_closest_to": _closest,
    "tempers": _tempers,
    "opposes": _opposes,
    "reaches": _reaches,
    "is_on_the_way_to": _on_the_way,
    "is_right": _is_right,
    "fails_at": _fails_at,
}
