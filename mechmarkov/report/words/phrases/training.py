"""Sentences of loss surface and training: traps, stationary points, and what came when."""

from collections.abc import Sequence

from mechmarkov.claims.claim import RISE, Claim
from mechmarkov.report.words.names import event, fitting, law, nats, number, simplest, within
from mechmarkov.report.words.phrases.premises import Phrase, cap, reason_in, value_in
from mechmarkov.utils.text import clean, listed

WAS_LOST = {
    True: ", and was lost again",
    False: ", was lost later, and came back",
    None: ", and was lost later, perhaps for good",
}
LOST = {True: ", and lost again", False: ", lost later and regained", None: ", lost later, perhaps for good"}
HEADS = ("previous_token_head", "induction_head", "graph_head", "selection")  # events


def _trapped(claim: Claim) -> str:
    if claim.condition("near the best") is not None:
        return "Not stuck: it is near the best possible"
    if claim.status == "does not apply":
        return "The symmetric trap is the walk model's, and says nothing of this one"
    K, n = int(claim.number("states")), int(claim.number("states that a label counts"))
    shifts = claim.object == ("shifts",)
    if claim.is_shown and shifts:
        return f"Trapped: moves are certain and {K} divides the {n} tokens that it reads, so uniform attention and its gradient see all states equally"
    if claim.is_shown:
        return "Trapped in the population: the token mean tells nothing of the label"
    if claim.status == "open":
        return f"Whether symmetry traps it is open{reason_in(claim)}"
    if shifts:
        return f"Not trapped, though {K} divides N − 1 = {n} and the first gradient is flat"
    if claim.condition("states divide the length") and not claim.holds("states divide the length"):
        return f"Not trapped: {K} does not divide N − 1 = {n}, so some states are read once more"
    return "Not trapped: the token mean tells of the label, so a step tells states apart"


def _is_at(claim: Claim) -> str:
    smallest = f"smallest Hessian eigenvalue {number(value_in(claim))}{within(claim)}"
    value = "" if claim.value is None else f": {smallest}"
    if claim.status == "open":
        has_sign = claim.interval is not None and claim.interval[0] * claim.interval[1] > 0
        limit = claim.number("flat within") if claim.condition("flat within") else 0.0
        if has_sign and abs(value_in(claim)) <= limit:
            either = f"{', '.join(claim.object[:-1])} or {claim.object[-1]}".capitalize()
            bent = f"is within the ±{number(limit)} that the gradient left may make"
            about = f"the smallest Hessian eigenvalue {number(value_in(claim))}"
            return fitting(f"{either} is open: the {smallest} {bent}", f"{either} is open: {about} {bent}")
        return f"Whether it is at a {kinds_of(claim)} is open{value}{reason_in(claim)}"
    inside = claim.condition("drift")  # where it may move all the same
    it_is = "It is" if inside is None else "Outside the symmetric subspace it is"
    if claim.object == ("saddle",):
        growing = claim.condition("growing directions")
        count = int(claim.number("growing directions"))
        many = f"{count}{' or more' if growing is not None and growing.holds is False else ''}"
        return f"{it_is} at a saddle with {many} growing {'direction' if count == 1 else 'directions'}{value}"
    order = (
        ", or flat, to second order"
        if claim.holds("to second order only") and not claim.holds("near the best")
        else ""
    )
    if claim.condition("tied embeddings favour repeats"):
        return f"It is at a local minimum{order}, as tied embeddings favour repeats, and this chain tends to switch"
    as_zero = ", counted as zero" if value_in(claim) < 0 and not order else ""  # "or flat" says it
    order = ", or flat" if order and inside is not None else order
    return f"{it_is} at a local minimum{order}{value}{as_zero}"


def kinds_of(claim: Claim) -> str:
    """Returns kinds of points that are not told apart, behind "at a"."""
    if "neither" not in claim.object:
        return "minimum or at a saddle"
    return "minimum, a saddle or neither" if "minimum" in claim.object else "saddle or no stationary point"


def _moves(claim: Claim) -> str:
    if claim.condition("the law has zeros"):
        return "It is at no stationary point: the law has zeros, which no softmax reaches"
    if steps := claim.number("steps of L-BFGS"):
        return f"It is at no stationary point: {int(steps)} steps of L-BFGS lower the loss by {nats(claim.value, claim.unit)}"
    if claim.value is None:
        return "It is at no stationary point: its gradient is not zero, and how far down it leads is open"
    return (
        f"It is at no stationary point: the loss of the nearest one is {nats(claim.value, claim.unit)} away"
    )


def _leaves(claim: Claim) -> str:
    if claim.status == "does not apply":
        return "The first probed step is already away from the saddle, so when it left cannot be seen"
    if claim.status == "excluded":
        if claim.condition("no growing pattern"):
            return "By linear theory nothing grows there, so it does not leave"
        return "It is on the symmetric subspace to the last bit, so no growing direction is ever entered"
    step = int(value_in(claim))
    if claim.condition("seen"):
        return f"It left the saddle by step {step}"
    if claim.holds("by linear theory"):
        return f"By linear theory it will leave the saddle by step {step}"
    return f"Linear theory had it leave by step {step}, and it has not"


def _left_with(claim: Claim) -> str:
    of = int(claim.number("cases"))
    learned = f"{round(of * value_in(claim))} of {of}"
    if claim.object == ("another length",):
        K = int(claim.number("states"))
        return f"To try: a number of tokens that {K} does not divide ({learned} measured walks learned)"
    return f"To try: {clean(claim.object[0])} ({learned} measured runs learned)"


def _lies_in(claim: Claim) -> str:
    e, w = claim.number("e"), claim.number("w")
    at = f"Its canonical coordinates ({number(e)}, {number(w)})"
    if claim.status == "open":
        return f"{at} would lie in the basin of the {clean(claim.object[0])}, but other paths add to them"
    return f"{at} lie in the basin of the {clean(claim.object[0])}"


def _came_by(claim: Claim) -> str:
    to = event(claim.object[0], claim)
    what = cap(to)
    first, last = claim.where.steps or (0, 0)
    if claim.object == (RISE,):
        if claim.value is None:
            return "The learning coefficient rises nowhere beyond its error"
        low, high = claim.interval or (0, 0)
        sure = "most" if claim.is_shown else "somewhere"
        return f"The learning coefficient rises {sure} between steps {int(low)} and {int(high)}"
    if claim.status == "does not apply":
        return f"When it was halfway to {to} cannot be seen here"
    if claim.value is None:
        if claim.status == "open":
            return f"Whether it is halfway to {to} by step {last} is open"
        if claim.object[0] in HEADS:
            return f"No head got halfway to {to} (steps {first} to {last})"
        return f"It never got halfway to {to} (steps {first} to {last})"
    away = claim.condition("lost again")
    lost = "" if away is None else LOST[away.holds]
    was_lost = "" if away is None else WAS_LOST[away.holds]
    if claim.condition("from the first probed step"):
        return f"{what} was there at step {int(claim.number('from the first probed step'))}, the first probed{was_lost}"
    low, high = claim.interval or (0, 0)
    sure = "" if claim.is_shown else ", not clearly"
    return f"Halfway to {to} between steps {int(low)} and {int(high)}{sure}{lost}"


def _lost(claim: Claim) -> str:
    what = event(claim.object[0], claim)
    if claim.is_shown:
        return f"{cap(what)} is lost at the last step"
    return (
        f"{cap(what)} is there at the last step"
        if claim.status == "excluded"
        else f"Whether {what} is lost is open"
    )


def _passed(claim: Claim) -> str:
    start, stop = claim.where.steps
    when = f"at step {start}" if start == stop else f"from step {start} to {stop}"
    if claim.status == "open":
        return f"Which law is closest {when} is open: perhaps {law(simplest(claim.object))}"
    here = ", here uniform," if "uniform" in claim.object and claim.object != ("uniform",) else ""
    return f"{cap(law(simplest(claim.object)))}{here} is closest {when}"


def _events(claim: Claim, names: Sequence[str]) -> str:
    return listed([event(name, claim) for name in names])


TRAINING: dict[str, Phrase] = {
    "is_trapped_by": _trapped,
    "is_at": _is_at,
    "moves": _moves,
    "leaves_by": _leaves,
    "is_left_with": _left_with,
    "lies_in": _lies_in,
    "came_by": _came_by,
    "came_before": lambda claim: (
        f"{cap(_events(claim, claim.subject))} came before {_events(claim, claim.object)}"
    ),
    "was_lost": _lost,
    "passed": _passed,
}
