"""The sentence of each relation: subject, verb, object and number, by status; at most 20 words."""

from collections.abc import Callable, Sequence

from mechmarkov.certify.sentence import at_most, program_in_words
from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.report.words.conditions import stream, term
from mechmarkov.report.words.names import (
    MAX_NAMED,
    event,
    heads,
    law,
    nats,
    number,
    parts,
    share,
    token,
    verb,
    within,
)
from mechmarkov.utils.text import clean, counted, format_range, listed

Phrase = Callable[[Claim], str]


def _of(claim: Claim, name: str) -> float:
    condition = claim.condition(name)
    return 0.0 if condition is None or condition.value is None else condition.value


def _has(claim: Claim, name: str) -> bool:
    condition = claim.condition(name)
    return condition is not None and bool(condition.holds)


def _reason(claim: Claim) -> str:
    """Why a claim is open though its own measurement is not: what contradicts it."""
    if claim.against is None:
        return ""
    return f", as {claim.against.probe or 'another probe'} says otherwise"


def _value(claim: Claim) -> float:
    return 0.0 if claim.value is None else claim.value


def _imitates(claim: Claim) -> str:
    does = {
        "shown": "predicts like",
        "open": "may predict like",
        "excluded": "does not predict like",
    }.get(claim.status, "cannot be compared with")
    return f"It {does} {law(claim.object[0])}: KL {nats(claim.value)}{within(claim)}"


def _closest(claim: Claim) -> str:
    names = [law(name) for name in claim.object]
    if claim.is_shown:
        return f"It is closest to {names[0]} (KL {nats(claim.value)})"
    return f"It is closest to {listed(names[:MAX_NAMED])}, which are not told apart (KL {nats(claim.value)})"


def _tempers(claim: Claim) -> str:
    heat = "less" if _value(claim) < 1 else "more"
    return f"At temperature {number(_value(claim))} it is {law(claim.object[0])}: right, but {heat} sure"


def _reaches(claim: Claim) -> str:
    best = "the best possible" if claim.object else "the best"
    verb_ = {
        "shown": "It reaches",
        "open": "Whether it reaches the best possible is open: it is",
        "excluded": "It is",
    }.get(claim.status, "It is")
    if claim.is_shown:
        return f"It is {nats(claim.value)} from {best}{within(claim)}"
    return f"{verb_} {nats(claim.value)} from {best}{within(claim)}{_reason(claim)}"


def _on_the_way(claim: Claim) -> str:
    to = law(claim.object[0])
    if _value(claim) < 0:
        return "Its expected loss is above the unigram's"
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
    return f"It is not {law(claim.object[0])} {at}: KL {nats(claim.value)}{within(claim)}"


def where(claim: Claim) -> str:
    """Returns the states or positions of a claim in words."""
    states, positions = claim.where.states, claim.where.positions
    if states:
        return f"after {'state' if len(states) == 1 else 'states'} {_some(states)}"
    return f"at {'position' if len(positions) == 1 else 'positions'} {_some([str(at) for at in positions])}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return listed([clean(name) for name in names[:MAX_NAMED]] + [f"{more} more"] * (more > 0))


def _attends_to(claim: Claim) -> str:
    who, mass = heads(claim.subject), share(claim.value, 1)
    if claim.object == ("matches",):
        why = {True: "not", None: "not surely"}[_condition(claim, "not for their predecessors").holds or None]
        return f"{who} looks at tokens after copies ({number(_value(claim))} beyond chance), but {why} for their sake"
    what = "copies of the current token" if claim.object[0].startswith("copies") else token(claim.object)
    if claim.status == "excluded":
        return f"No head settles on one token: {who} gives {what} {mass}"
    if _has(claim, "within its null"):
        return f"{who} gives {what} {mass} of its attention, no more than untrained models"
    return f"{who} gives {what} {mass} of its attention{_reason(claim)}"


def _condition(claim: Claim, name: str) -> Condition:
    return claim.condition(name) or Condition(name, None)


def _evenly(claim: Claim) -> str:
    if claim.status == "does not apply":
        return "There is one token to attend to, so attention says nothing"
    n, uniform = int(_of(claim, "tokens")), claim.null if isinstance(claim.null, float) else 0.0
    if not claim.is_shown:
        return f"Attention tells tokens apart: shares differ by up to {number(_value(claim))}"
    only = "" if _has(claim, "at every prediction") else " in the last prediction"
    exact = "exactly even" if claim.value == 0 else "even"
    return f"Attention is {exact}{only}: each of the {n} tokens gets {share(uniform, 2)}"


def _attends_by(claim: Claim) -> str:
    who = heads(claim.subject)
    if claim.object[0] == "tokens":
        return f"{who} looks by token: tokens explain {share(claim.value)} of its logits' variance"
    classes, modulo = listed(list(claim.object[1:])), int(_of(claim, "modulo"))
    return (
        f"{who} attends to lags that are {classes} modulo {modulo}: {share(claim.value, 1)} of its attention"
    )


def _matches(claim: Claim) -> str:
    lag = int(_of(claim, "law"))
    target = claim.object[0]
    if lag > 1:
        target = f"{target} of the {lag}-step law"
    if _has(claim, "constant"):
        return f"No weights hold the transition matrix: the circuit of {parts(claim.subject)} is constant"
    how = ""
    if claim.value is not None:
        names = {"cosine": "cosine {} with", "1 is exact": "slope {} on", "probability": "recall {} of"}
        how = f" ({names.get(claim.unit, '{} of').format(number(claim.value))} {target})"
    if claim.status == "excluded":
        return f"No weights hold the transition matrix: {parts(claim.subject)} {verb(claim.subject, 'comes', 'come')} nearest{how}"
    if claim.status == "open":
        return f"By weights {parts(claim.subject)} would hold the transition matrix{how}{_reason(claim)}"
    return f"{parts(claim.subject)} {verb(claim.subject, 'has', 'have')} the transition matrix in the weights{how}"


def _induction_head(claim: Claim) -> str:
    who = heads(claim.subject)
    if claim.status == "does not apply":
        return "No query has a key that could match it, so nothing can be said of induction"
    if claim.object:
        finds = _condition(claim, "finds after").words
        return f"It finds matches after {_some(finds)}, not after {_some(claim.where.states)}"
    effect = number(_value(claim))
    if claim.status == "excluded":
        return (
            f"No induction head: editing a key's predecessor moves attention by {effect} of the ideal at most"
        )
    if _has(claim, "within its null"):
        return f"{who} attends like an induction head, but no more than untrained models"
    if claim.status == "open":
        strong = (
            "No strong induction head"
            if _has(claim, "no strong circuit")
            else "Too few sequences tell of an induction head"
        )
        return f"{strong}: a predecessor moves attention by {effect} of the ideal{within(claim)}"
    are = verb(claim.subject, "is an induction head", "are induction heads")
    return f"{who} {are}: a key's predecessor moves attention by {effect} of the ideal"


def _feeds(claim: Claim) -> str:
    through = _condition(claim, "through").words
    inputs = f"the {listed(list(through))} of {heads(claim.object)}"
    if claim.subject:
        return f"{heads(claim.subject)} {verb(claim.subject, 'feeds', 'feed')} {inputs}: the cut leaves {share(claim.value)} of the score"
    if claim.interval is not None:
        low, high = claim.interval
        ends = " to ".join(dict.fromkeys((share(low), share(high))))
        if claim.status == "open":
            return f"Whether an earlier head feeds {inputs} is open: cutting all leaves {ends} of the score"
        return f"No earlier head feeds {inputs}: cutting all leaves {ends} of the score"
    return (
        f"No earlier head feeds {inputs}"
        if claim.status == "excluded"
        else f"Cuts cannot tell which head feeds {inputs}"
    )


def _carries(claim: Claim) -> str:
    before, after, reference = _of(claim, "from"), _of(claim, "to"), law(claim.object[0])
    kl = f"KL from {reference} goes from {number(before, 'nats')} to {nats(after)}"
    if claim.condition("does harm"):
        return f"The path does harm: without it {kl}"
    if claim.status == "excluded":
        return f"The path carries nothing: without it {kl}"
    if claim.status == "open":
        return f"The path may carry predictions: without it {kl}"
    if (other := claim.condition("not the law's")) is not None:
        return f"The path carries predictions, but not {'' if other.holds else 'surely '}{reference}'s: without it {kl}"
    much = (
        "some of"
        if claim.condition("some of it")
        else "most of what there is of"
        if claim.condition("most of what there is")
        else ""
    )
    return f"The path carries {much + ' ' if much else ''}{reference}: without it {kl}"


def _needed(claim: Claim) -> str:
    who = parts(claim.subject)
    if claim.condition("does harm"):
        return f"{_cap(who)} does harm: without it the loss falls by {nats(-_value(claim))}{_negated(claim)}"
    if claim.is_shown:
        return f"Without {who} the loss rises by {nats(claim.value)}{within(claim)}"
    if claim.status == "open":
        return f"Whether {who} is needed is open: {nats(claim.value)}{within(claim)}"
    return f"{_cap(who)} is worth less than 0.001 nats"


def _cap(name: str) -> str:
    return name[:1].upper() + name[1:]


def _negated(claim: Claim) -> str:
    if claim.interval is None:
        return ""
    low, high = claim.interval
    return f" ({format_range(-high, -low, 3)})"


def _needed_most(claim: Claim) -> str:
    who = parts(claim.subject)
    if claim.status == "excluded":
        return "No head, MLP or direct path is needed: each is worth less than 0.001 nats"
    if _has(claim, "within its null"):
        return f"Cutting {who} costs {nats(claim.value)}, no more than in untrained models"
    if claim.status == "open":
        return f"{_cap(who)} may be needed most: {nats(claim.value)}{within(claim)}"
    if (least := claim.condition("least of them")) is not None and least.value is not None:
        return f"{_cap(who)} are needed most: without one the loss rises by {format_range(least.value, _value(claim), 3)} nats"
    are = verb(claim.subject, "is", "are")
    return f"{_cap(who)} {are} needed most: without {'it' if are == 'is' else 'them'} the loss rises by {nats(claim.value)}{within(claim)}"


def _repairs(claim: Claim) -> str:
    direct = _of(claim, "cut from the logits only")
    return f"Later parts repair {parts(claim.subject)}: cut from the logits only it costs {nats(direct)}, {number(_value(claim))} more"


def _stands_in(claim: Claim) -> str:
    both = parts((*claim.subject, *claim.object))
    return f"{_cap(both)} stand in for each other: together {nats(_of(claim, 'worth together'))}, {number(_value(claim))} more than one by one"


def _follows(claim: Claim) -> str:
    if claim.status == "does not apply":
        if claim.condition("no single parent"):
            return "The next state depends on no single token, so there is no parent to swap"
        return "All parents have one law here, so a swap tells nothing"
    does = {"shown": "follow", "open": "may follow", "excluded": "do not follow"}[claim.status]
    return f"Predictions {does} another parent: in {share(claim.value)} of cases{within(claim)}, by chance in 50%"


def _order(claim: Claim) -> str:
    if claim.status == "excluded":
        return "The order of what came before the last token is worth less than 0.001 nats"
    return f"The order of what came before the last token is worth {nats(claim.value)}{within(claim)}"


def _stores(claim: Claim) -> str:
    if claim.is_shown:
        weak = claim.condition("what there is of it")
        what = "what there is of the bigram" if weak is not None and weak.holds else "the bigram"
        together = "together " if len(claim.subject) > 1 else ""
        much = (
            f"{share(claim.value)} of it"
            if _value(claim) <= 1.05
            else "more than all of it: others take away"
        )
        return (
            f"{_cap(parts(claim.subject))} {together}{verb(claim.subject, 'holds', 'hold')} {what} ({much})"
        )
    return NO_HOME[_no_home(claim)].format(
        who=parts(claim.subject), share=share(claim.value), ends=within(claim),
        start=nats(_of(claim, "from")), end=nats(_of(claim, "to")),
    )  # fmt: skip


def _no_home(claim: Claim) -> str:
    return next((one.name for one in claim.because if one.name in NO_HOME), "not by the parent")


NO_HOME = {
    "too little to share": "Which part holds the bigram is open: all together bring it from {start} to {end}",
    "others undo it": "Nothing is left of the bigram: {who} would hold it, and the other parts undo it",
    "the paths lead away": "No part holds the bigram: all together bring it from {start} to {end}",
    "nothing to share": "No part holds the bigram: all together bring it from {start} to {end}",
    "only at another scale": "No part holds the bigram by itself: {who} would at the norm's scale that others set",
    "stored or from the context": "Whether the bigram is stored or read from the context is open: {share}{ends} is left without it",
    "some from the context": "Which part holds the bigram is open: {share}{ends} of it needs no transitions in the context",
    "from the context": "No part holds the bigram: it is read from the context ({share}{ends} is left without transitions)",
    "the parent leads away": "No part holds the bigram: setting the parent moves predictions away from its row",
    "the parent hardly leads there": "No part holds the bigram: setting the parent hardly moves predictions toward its row",
    "not by the parent": "No part holds the bigram: what the parts are worth does not come from the parent",
}  # fmt: skip


def _holds_share(claim: Claim) -> str:
    return f"{_cap(parts(claim.subject))} holds {share(claim.value)} of it{within(claim)}"


def _against(claim: Claim) -> str:
    return f"{_cap(parts(claim.subject))} {verb(claim.subject, 'works', 'work')} against the bigram: {share(claim.value)} of it"


def _cancels(claim: Claim) -> str:
    return f"{_cap(parts(claim.subject))} cancel: together they hold {share(claim.value)} of the bigram"


def _trapped(claim: Claim) -> str:
    if (near := claim.condition("near the best")) is not None:
        return f"Not stuck: it is {nats(near.value)} from the best possible"
    if claim.status == "does not apply":
        return "The symmetric trap is the walk model's, and says nothing of this one"
    K, n = int(_of(claim, "states")), int(_of(claim, "states that a label counts"))
    divides = claim.condition("states divide the length")
    shifts = claim.object == ("shifts",)
    if claim.is_shown and shifts:
        return (
            f"Trapped by symmetry: {K} divides N − 1 = {n}, so every state is read alike whatever the label"
        )
    if claim.is_shown:
        return "Trapped in the population: the token mean tells nothing of the label"
    if claim.status == "open":
        return f"Whether symmetry traps it is open{_reason(claim)}"
    if shifts:
        return f"Not trapped, though {K} divides N − 1 = {n} and the first gradient is flat"
    if divides is not None and not divides.holds:
        return f"Not trapped: {K} does not divide N − 1 = {n}, so some states are read once more"
    return "Not trapped: the token mean tells of the label, so a step tells states apart"


def _is_at(claim: Claim) -> str:
    near = claim.condition("near the best")
    solved = near is not None and bool(near.holds)
    value = (
        f": smallest Hessian eigenvalue {number(_value(claim))}{within(claim)}"
        if claim.value is not None
        else ""
    )
    if claim.status == "open":
        return f"Whether it is at a minimum or at a saddle is open{value}{_reason(claim)}"
    if claim.object == ("saddle",):
        growing = claim.condition("growing directions")
        count = int(_of(claim, "growing directions"))
        many = f"{count}{' or more' if growing is not None and growing.holds is False else ''}"
        return f"It is at a saddle with {many} growing {'direction' if count == 1 else 'directions'}{value}"
    order = ", to second order" if _has(claim, "to second order only") and not solved else ""
    return f"It is at a minimum{order}{value}"


def _moves(claim: Claim) -> str:
    if claim.condition("the law has zeros"):
        return "It is at no stationary point: the law has zeros, which no softmax reaches"
    if (steps := claim.condition("steps of L-BFGS")) is not None:
        return f"It still moves: {int(_value_of(steps))} steps of L-BFGS lower the loss by {nats(claim.value, claim.unit)}"
    return f"It still moves: the nearest stationary point is {nats(claim.value, claim.unit)} away"


def _value_of(condition: Condition) -> float:
    return 0.0 if condition.value is None else condition.value


def _leaves(claim: Claim) -> str:
    if claim.status == "does not apply":
        return "The first kept step is already away from the saddle, so when it left cannot be seen"
    if claim.status == "excluded":
        return "It is on the symmetric subspace to the last bit, where by linear theory nothing grows"
    step = int(_value(claim))
    if claim.condition("seen"):
        return f"It left the saddle by step {step}"
    later = claim.condition("by linear theory")
    if later is not None and later.holds:
        return f"By linear theory it will leave the saddle by step {step}"
    return f"Linear theory had it leave by step {step}, and it has not"


def _lies_in(claim: Claim) -> str:
    e, w = _of(claim, "e"), _of(claim, "w")
    return f"Its canonical coordinates ({number(e)}, {number(w)}) lie in the basin of the {clean(claim.object[0])}"


def _came_by(claim: Claim) -> str:
    what = _cap(event(claim.object[0]))
    first, last = claim.where.steps or (0, 0)
    if claim.object[0].startswith("rise"):
        if claim.value is None:
            return "The learning coefficient rises nowhere beyond its error"
        low, high = claim.interval or (0, 0)
        sure = "most" if claim.is_shown else "somewhere"
        return f"The learning coefficient rises {sure} between steps {int(low)} and {int(high)}"
    if claim.status == "does not apply":
        return f"{what} cannot be seen to come here"
    if claim.value is None:
        if claim.status == "open":
            return f"Whether it is halfway to {event(claim.object[0])} by step {last} is open"
        return f"It is nowhere halfway to {event(claim.object[0])} between steps {first} and {last}"
    lost = ", and was lost again" if claim.condition("lost again") else ""
    if (start := claim.condition("from the first probed step")) is not None:
        return f"{what} was there at step {int(_value_of(start))}, the first probed{lost}"
    low, high = claim.interval or (0, 0)
    sure = "" if claim.is_shown else ", not surely"
    return f"{what} came between steps {int(low)} and {int(high)}{sure}{lost}"


def _before(claim: Claim) -> str:
    return f"{_cap(listed([event(name) for name in claim.subject]))} came before {listed([event(name) for name in claim.object])}"


def _lost(claim: Claim) -> str:
    what = _cap(event(claim.object[0]))
    if claim.is_shown:
        return f"{what} is lost at the last step"
    return (
        f"{what} is there at the last step"
        if claim.status == "excluded"
        else f"Whether {event(claim.object[0])} is lost is open"
    )


def _passed(claim: Claim) -> str:
    start, stop = claim.where.steps
    when = f"at step {start}" if start == stop else f"from step {start} to {stop}"
    return f"{_cap(law(claim.object[0]))} is closest {when}"


def _explains(claim: Claim) -> str:
    if claim.condition("constant predictions"):
        return "Its predictions are constant: a program that says their mean is all of it"
    if claim.subject[0].startswith("tables"):
        if claim.status == "open":
            return f"Tables read from the weights explain {share(max(0.0, _value(claim)), 1)}, as in untrained models"
        return f"Tables read from its weights explain {share(max(0.0, _value(claim)), 1)} of the model"
    terms = [term(one) for one in claim.because if one.name == "term"] or ["its mean prediction"]
    named = listed(terms[:2] + [f"{len(terms) - 2} more"] * (len(terms) > 2))
    return f"{_cap(named)} {'explain' if len(terms) > 1 else 'explains'} {share(max(0.0, _value(claim)), 1)} of the model ({int(_of(claim, 'numbers'))} numbers)"


def _carries_belief(claim: Claim) -> str:
    does = {"shown": "carries", "open": "may carry", "excluded": "does not carry"}[claim.status]
    n = int(_of(claim, "hidden states"))
    return f"{_cap(stream(claim.subject[0]))} {does} the belief over {n} {clean(claim.object[0])}: R² {number(_value(claim))}"


def _follows_belief(claim: Claim) -> str:
    if claim.status == "does not apply":
        return f"All {clean(claim.object[0])} have one law, so there is nothing to follow"
    does = {"shown": "follow", "open": "may follow", "excluded": "do not follow"}[claim.status]
    random = claim.null if isinstance(claim.null, float) else 0.0
    return f"Predictions {does} a forced state: KL {nats(claim.value)}, in random directions {number(random, 'nats')}"


def _recovers(claim: Claim) -> str:
    has, all_ = int(_value(claim)), int(_of(claim, "edges of the graph"))
    of = int(_of(claim, "edges of the head"))
    if claim.is_shown:
        return f"{heads(claim.subject)} attends along the graph: {has} of its {of} edges are true, of {all_} there are"
    start = (
        "Whether a head attends along the graph is open"
        if claim.status == "open"
        else "No head attends along the graph"
    )
    return f"{start}: {heads(claim.subject)} has {has} true of {counted(of, 'edge')}"


def _coefficient(claim: Claim) -> str:
    half = claim.null if isinstance(claim.null, float) else 0.0
    calibrated = claim.condition("estimate of a bigram table")
    bad = calibrated is not None and not calibrated.holds
    note = "; the estimator is not calibrated" if bad else ""
    return f"The learning coefficient is {number(_value(claim))}{within(claim)}, without degeneracy {number(half)}{note}"


def _bounded(claim: Claim) -> str:
    program, sequences = claim.condition("certified program"), claim.condition("sequences")
    name = claim.object[0] if program is None else program_in_words(claim.object[0], int(program.value or 0))
    if not claim.is_shown:
        why = claim.condition("no bound")
        return f"No bound is known: {clean(why.words[0]) if why is not None else 'none was found'}"
    every = "On every sequence" if sequences is None else f"On each of {clean(sequences.words[0])} sequences"
    return f"{every} KL from {name} to the model is at most {at_most(_value(claim))} nats"


def _measures(claim: Claim) -> str:
    null = ""
    if isinstance(claim.null, float):
        null = f"; by chance {number(claim.null)}"
    elif isinstance(claim.null, tuple):
        null = f"; untrained {format_range(claim.null[0], claim.null[2], 3)}"
    unit = f" {claim.unit}" if claim.unit else ""
    return f"{_cap(clean(claim.object[0]))} of {parts(claim.subject)} is {number(_value(claim))}{unit}{within(claim)}{null}"


PHRASES: dict[str, Phrase] = {
    "imitates": _imitates,
    "is_closest_to": _closest,
    "tempers": _tempers,
    "reaches": _reaches,
    "is_on_the_way_to": _on_the_way,
    "is_right": _is_right,
    "fails_at": _fails_at,
    "attends_to": _attends_to,
    "attends_evenly": _evenly,
    "attends_by": _attends_by,
    "matches": _matches,
    "is_induction_head": _induction_head,
    "feeds": _feeds,
    "carries": _carries,
    "is_needed": _needed,
    "is_needed_most": _needed_most,
    "repairs": _repairs,
    "stands_in_for": _stands_in,
    "follows": _follows,
    "uses_order": _order,
    "stores": _stores,
    "holds_share": _holds_share,
    "works_against": _against,
    "cancels": _cancels,
    "is_trapped_by": _trapped,
    "is_at": _is_at,
    "moves": _moves,
    "leaves_by": _leaves,
    "lies_in": _lies_in,
    "came_by": _came_by,
    "came_before": _before,
    "was_lost": _lost,
    "passed": _passed,
    "explains": _explains,
    "carries_belief": _carries_belief,
    "follows_belief": _follows_belief,
    "recovers": _recovers,
    "has_learning_coefficient": _coefficient,
    "is_bounded": _bounded,
    "measures": _measures,
}
