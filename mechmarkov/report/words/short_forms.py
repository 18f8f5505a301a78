"""Claims as answers of a few words."""

from collections.abc import Callable, Sequence

from mechmarkov.claims.claim import Claim, Where
from mechmarkov.report.words.conditions import stream
from mechmarkov.report.words.names import MAX_NAMED, heads, law, nats, parts
from mechmarkov.report.words.phrases.laws import but_not, sureness, where
from mechmarkov.report.words.phrases.training import kinds_of
from mechmarkov.report.words.sentences import phrase
from mechmarkov.utils.text import clean, listed

MAX_ANSWER_WORDS = 12
FILTER = "forward_filter"


def has_room(answer: str) -> bool:
    """Returns whether an answer is short enough for a tile."""
    return len(answer.split()) <= MAX_ANSWER_WORDS


def short(claim: Claim) -> str:
    """Returns a claim as an answer of a few words.

    Example:
        >>> short(Claim(("L0H0",), "stores", ("bigram",), 0.99, unit="share"))
        'L0H0'
    """
    told = _SHORT.get(claim.relation)
    return phrase(claim) if told is None else told(claim)


def coinciding(names: Sequence[str]) -> str:
    """Returns a law, and one that it coincides with here; of a law that is uniform here, that it is."""
    others = [name for name in names if name != "uniform"]
    if names[0] == FILTER:
        return f"{law(FILTER)}: the exact belief over hidden states"
    if len(others) < len(names) and others:
        return f"{law(others[0])}, here uniform"
    return ", here ".join(law(name) for name in names[:2])


def _closest(claim: Claim) -> str:
    names = [law(name) for name in claim.object]
    return f"closest to {names[0] if claim.is_shown else listed(names[:MAX_NAMED])}"


def _reaches(claim: Claim) -> str:
    away = f"{nats(claim.value)} from the best possible"
    if claim.holds("no step was made"):
        return "not started"
    if claim.is_shown:
        return f"no: {away}"
    if claim.holds("loss on scores"):
        return "open: it was trained on another loss than cross-entropy"
    if (fell := claim.condition("the loss fell")) is not None:
        return f"open: the loss fell since step {fell.words[0]}"
    return f"not at the best possible: {nats(claim.value)} away"


def _trapped(claim: Claim) -> str:
    if claim.is_shown:
        return "yes, by symmetry"
    return "perhaps, by symmetry" if claim.status == "open" else "no symmetry holds it"


def _point(claim: Claim) -> str:
    if claim.status == "open":
        kinds = "minimum or a saddle" if "neither" not in claim.object else kinds_of(claim)
        return f"at a {kinds}: open"
    second, solved = map(claim.holds, ("to second order only", "near the best"))
    if claim.object == ("minimum",) and second and not solved and claim.condition("drift") is None:
        return "at a minimum, or flat, to second order"
    near = claim.condition("near the best")
    is_stuck = claim.object == ("minimum",) and near is not None and near.holds is False
    if claim.condition("drift") is not None:
        return f"outside the symmetric subspace at a {claim.object[0]}"
    return f"yes, at a local {claim.object[0]}" if is_stuck else f"at a {claim.object[0]}"


def _stores(claim: Claim) -> str:
    if claim.is_shown:
        if len(claim.subject) > MAX_NAMED:
            return f"spread over {len(claim.subject)} parts"
        told = f"{'spread over ' if claim.condition('not stable') else ''}{parts(claim.subject)}"
        if claim.where != Where():
            told = (
                f"{told}, {where(claim)}"
                if has_room(f"{told}, {where(claim)}")
                else f"{told}, at some places"
            )
        return told if has_room(told) else f"spread over {len(claim.subject)} parts"
    if claim.condition("the mean is it"):
        return "no part needs to: the mean is the bigram"
    if claim.condition("too little to share"):
        return "too little to place"
    return "open which part holds it" if claim.status == "open" else f"no part holds {law(claim.object[0])}"


def _most(claim: Claim) -> str:
    if claim.is_shown:
        told = parts(claim.subject)
        return told if has_room(told) else f"{len(claim.subject)} parts"
    if claim.condition("within its null"):
        return "no more than in untrained models"
    if (clear := claim.condition("clearly needed")) is not None:
        return f"{parts(clear.words)}, perhaps others more"
    if claim.status == "open":
        return "no part is clearly needed"
    if (harm := claim.condition("does harm")) is not None and harm.words:
        return f"in none: {parts(harm.words)} does harm"
    return "in no single part"


_SHORT: dict[str, Callable[[Claim], str]] = {
    "imitates": lambda claim: coinciding(claim.object),
    "is_closest_to": _closest,
    "fails_at": lambda claim: but_not(law(claim.object[0]), claim, MAX_ANSWER_WORDS),
    "opposes": lambda claim: f"the opposite of {law(claim.object[0])}",
    "tempers": lambda claim: f"{law(claim.object[0])}, {sureness(claim)}",
    "reaches": _reaches,
    "is_trapped_by": _trapped,
    "is_at": _point,
    "moves": lambda _: "no: not at a stationary point",
    "stores": _stores,
    "is_needed_most": _most,
    "feeds": lambda claim: f"{heads(claim.subject)} → {heads(claim.object)}",
    "is_induction_head": lambda claim: heads(claim.subject),
    "matches": lambda claim: (
        f"{parts(claim.subject)}, by weights{', at some states' * (claim.where != Where())}"
    ),
    "attends_to": lambda claim: (
        f"{heads(claim.subject)}, {where(claim) if claim.where != Where() else 'by attention'}"
    ),
    "recovers": lambda claim: heads(claim.subject),
    "carries_belief": lambda claim: f"{stream(claim.subject[0])}: the belief over {clean(claim.object[0])}",
    "is_relied_on": lambda claim: parts(claim.subject),
}
