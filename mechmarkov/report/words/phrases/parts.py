"""Sentences of parts: where heads look, what they match, which are needed, and for what."""

from mechmarkov.claims.claim import ALIKE, COPIES, Claim
from mechmarkov.report.words.names import (
    fitting,
    heads,
    law,
    nats,
    number,
    parts,
    share,
    some,
    token,
    verb,
    within,
)
from mechmarkov.report.words.phrases.laws import after_states, where
from mechmarkov.report.words.phrases.premises import Phrase, cap, negated, premise, reason_in, value_in
from mechmarkov.utils.text import format_range, listed

MOST_COSINE = 0.95  # with the target, from which on a table is told as all of it
MOST_SLOPE = 0.5  # likewise; with its sign turned round it is the target's opposite
COUNTS = {2: "two", 3: "three"}
WEAK = 0.25  # of the ideal, below which an induction head is told as a weak one
MORE_THAN_ALL = 1.005  # of the ideal, from which on a share is told to be as much
LEAST_LEFT = (-0.05, 0.005)  # of a score, which are told as none


def _attends_to(claim: Claim) -> str:
    who, mass = heads(claim.subject), share(claim.value, 1)
    if claim.object == ("matches",):
        why = {True: "not", None: "not clearly"}[premise(claim, "not for their predecessors").holds or None]
        return f"{who} looks at tokens after copies ({number(value_in(claim))} beyond chance), but {why} for their sake"
    if claim.object == (ALIKE,):
        return f"{who} gives {mass} of its attention to tokens whose parent's state equals the predicted token's parent's"
    what = COPIES if claim.object == (COPIES,) else token(claim.object)
    if (at := claim.condition("at position")) is not None:
        return f"{who} gives position {int(at.value or 0)} {mass} of the attention of later ones"
    if claim.condition("of one head"):
        return f"{who} spreads its attention: {mass} on {what}"
    if claim.status == "excluded":
        if claim.object[0] == "parent":
            return f"No head settles on {what}, which the next state depends on: {who} gives it {mass}"
        return f"No head settles on one token: {who} gives {what} {mass}"
    if claim.holds("within its null"):
        return f"{who} gives {what} {mass} of its attention, no more than untrained models"
    if claim.where.positions:
        return f"{who} gives {what} {mass} of its attention {where(claim)} only"
    return f"{who} gives {what} {mass} of its attention{reason_in(claim)}"


def _evenly(claim: Claim) -> str:
    if claim.status == "does not apply":
        return "There is one token to attend to, so attention says nothing"
    n, uniform = int(claim.number("tokens")), claim.null if isinstance(claim.null, float) else 0.0
    if not claim.is_shown:
        return f"Attention tells tokens apart: shares differ by up to {number(value_in(claim))}"
    only = "" if claim.holds("at every prediction") else " in the last prediction"
    exact = "exactly even" if claim.value == 0 else "even"
    return f"Attention is {exact}{only}: each of the {n} tokens gets {share(uniform, 2)}"


def _attends_by(claim: Claim) -> str:
    who = heads(claim.subject)
    if claim.object[0] == "tokens":
        return f"{who} looks by token: tokens explain {share(claim.value)} of its logits' variance"
    classes, modulo = listed(list(claim.object[1:])), int(claim.number("modulo"))
    return (
        f"{who} attends to lags that are {classes} modulo {modulo}: {share(claim.value, 1)} of its attention"
    )


def _matches(claim: Claim) -> str:
    lag = int(claim.number("law"))
    target = claim.object[0]
    lagged = claim.condition("lag of the source") is not None
    of_lag = premise(claim, "law").words == ("lag",)
    if lagged:
        target = f"{target} of the {lag}-step law"
    elif lag > 1 or of_lag:
        target = f"its {target}"
    what = f"the {lag}-step law" if lag > 1 and not lagged else "the transition matrix"
    what = f"the law of lag {lag}" if of_lag else what
    if claim.condition("all rows are equal"):
        return f"All rows of {what} are equal, so that no path has to hold it"
    if claim.holds("constant"):
        if lagged:
            what = f"the law of lag {int(claim.number('lag of the source'))}"
        return f"No path's own weights hold {what}: the circuit of {parts(claim.subject)} is constant"
    return fitting(*(_matches_by(claim, what, how) for how in _how_well(claim, target)))


def _how_well(claim: Claim, target: str) -> list[str]:
    """Returns how well a table matches its target, in brackets, in several ways; the fullest first."""
    if claim.value is None:
        return [""]
    names = {"cosine": "cosine {} with", "1 is exact": "slope {} on", "probability": "recall {} of"}
    told = f"{names.get(claim.unit, '{} of').format(number(claim.value))} {target}"
    slope = None if claim.condition("only its direction") else claim.condition("slope")
    ways = [f" ({told})", ""]
    if claim.unit == "cosine" and slope is not None and not _is_of_scale(slope.value):
        ways.insert(0, f" ({told}, slope {number(slope.value or 0.0)})")
    return ways


def _matches_by(claim: Claim, what: str, how: str) -> str:
    """Returns the sentence of which part has a law in its weights, with how well it matches."""
    lagged = claim.condition("lag of the source") is not None
    who, has = parts(claim.subject), verb(claim.subject, "has", "have")
    nearest = f"{who} {verb(claim.subject, 'comes', 'come')} nearest{how}"
    if (direction := claim.condition("only its direction")) is not None:
        points, is_ = verb(claim.subject, "points", "point"), verb(claim.subject, "is", "are")
        where_it_is = "at its scale" if direction.holds else "with the model's mean output"
        near = "hardly nearer" if (direction.value or 0.0) > 0 else "farther"
        return f"{cap(who)} {points} along {what}{how}, but {where_it_is} {is_} {near} than the unigram"
    attends = claim.condition("attends")
    if claim.status == "excluded" and attends is not None and not attends.holds:
        reads = verb(claim.subject, "reads", "read")
        return f"No path has the law of the token it reads: {who}, the nearest, {reads} tokens at several distances"
    if claim.status == "excluded" and claim.condition("a token that tells nothing"):
        return f"No path has a law in its weights: {who}, the nearest, {verb(claim.subject, 'reads', 'read')} a token that tells nothing of the next"
    if claim.status == "excluded" and lagged:
        return f"No path has the law of the token it reads: {nearest}"
    least = {"cosine": -MOST_COSINE, "1 is exact": -MOST_SLOPE}.get(claim.unit)
    if claim.status == "excluded" and least is not None and value_in(claim) <= least:
        return f"No path's own weights hold {what}: {who} {has} its opposite{how}"
    if claim.status == "excluded":
        return f"No path's own weights hold {what}: {nearest}"
    if claim.status == "open":
        return f"By weights {who} would hold {what}{how}{reason_in(claim)}"
    if (other := claim.condition("other rows")) is not None:
        right = claim.where.states
        if len(other.words) > len(right):
            return f"{who} {has} {what} {after_states(right)} only, in the weights{how}"
        return f"{who} {has} {what}, but not {after_states(other.words)}, in the weights{how}"
    is_all = claim.unit != "cosine" or value_in(claim) >= MOST_COSINE
    much = "" if is_all and not claim.condition("no row is right") else "most of "
    rows, slope = claim.condition("no row is right"), claim.condition("slope")
    if (rows is not None and not (rows.holds or is_all)) or (
        slope is not None and (slope.value or 0.0) < MOST_SLOPE
    ):
        much = "some of "
    return f"{who} {has} {much}{what} in the weights{how}"


def _is_of_scale(slope: float | None) -> bool:
    """Returns whether a table is about as sure as its target."""
    return slope is not None and MOST_SLOPE <= slope <= 1 / MOST_SLOPE


def _induction_head(claim: Claim) -> str:
    who = heads(claim.subject)
    if claim.status == "does not apply":
        if claim.condition("no key to edit"):
            return "Too few sequences have a key whose predecessor can be edited, so nothing can be said of induction"
        return "No query has a key that could match it, so nothing can be said of induction"
    if claim.object:
        finds = premise(claim, "finds after").words
        return f"{who} finds matches after {some(finds)}, not after {some(claim.where.states)}"
    effect = number(value_in(claim))
    if claim.status == "excluded":
        return (
            f"No induction head: editing a key's predecessor moves attention by {effect} of the ideal at most"
        )
    if claim.holds("within its null"):
        return f"{who} attends like an induction head, but no more than untrained models"
    if claim.status == "open":
        strong = (
            "No strong induction head"
            if claim.holds("no strong circuit")
            else "Too few sequences tell of an induction head"
        )
        return f"{strong}: a predecessor moves attention by {effect} of the ideal{within(claim)}"
    if claim.condition("its own convolution"):  # of a state space, whose weights on tokens are no attention
        return f"{who} is an induction head by itself: its convolution sees each token's predecessor, which moves how much that token counts"
    weak = "weak " if claim.interval is not None and claim.interval[1] < WEAK else ""
    are = verb(claim.subject, f"is {'a weak' if weak else 'an'} induction head", f"are {weak}induction heads")
    if claim.holds("carries nothing"):
        are = verb(claim.subject, "attends like an induction head", "attend like induction heads")
    if (matched := int(claim.number("tokens matched"))) > 1:
        are += f" that {verb(claim.subject, 'matches', 'match')} {COUNTS.get(matched, matched)} tokens"
    its = verb(claim.subject, "its", "their")
    moved = f"{who} {are}: changing a token's predecessor moves {its} attention"
    if claim.condition("more than an ideal head"):
        more = f"{moved} more than an ideal head's"
        return fitting(f"{more}, which is even on all copies", more)
    if value_in(claim) > MORE_THAN_ALL:
        return f"{moved}, on average, as much as an ideal head's"
    much = f"by {share(min(value_in(claim), 1.0))} of an ideal head's"
    return fitting(f"{moved} {much}", f"{who} {are}: a token's predecessor moves {its} attention {much}")


def _feeds(claim: Claim) -> str:
    through = premise(claim, "through").words
    inputs = f"the {listed(list(through))} of {heads(claim.object)}"
    if claim.subject:
        return f"{heads(claim.subject)} {verb(claim.subject, 'feeds', 'feed')} {inputs}: without that path {_left(claim)}"
    if claim.interval is not None:
        low, high = claim.interval
        ends = " to ".join(dict.fromkeys((share(low), share(high))))
        if claim.status == "open":
            return f"Whether an earlier head feeds {inputs} directly is open: cutting all leaves {ends} of the score"
        return f"No earlier head feeds {inputs} directly: cutting all leaves {ends} of the score"
    return (
        f"No earlier head feeds {inputs} directly"
        if claim.status == "excluded"
        else f"Cuts cannot tell which head feeds {inputs}"
    )


def _left(claim: Claim) -> str:
    """Returns what a cut leaves of a score; one that turns round a little is none."""
    value = value_in(claim)
    if value <= LEAST_LEFT[0]:
        return f"it turns away from matches, by {share(-value)} of its induction"
    return f"{'none' if value < LEAST_LEFT[1] else share(value)} of its induction is left"


def _carries(claim: Claim) -> str:
    before, after, reference = claim.number("from"), claim.number("to"), law(claim.object[0])
    kl = f"KL from {reference} goes from {number(before, 'nats')} to {nats(after)}"
    in_short = f"KL goes from {number(before, 'nats')} to {nats(after)}"
    if claim.condition("does harm"):
        return f"The path does harm: without it {kl}"
    if claim.condition("takes from the law"):
        against = f"The path writes against {reference}, of which the rest is too sure: without it"
        return fitting(f"{against} {kl}", f"{against} {in_short}")
    if claim.condition("too sure"):
        kl = f"KL from it goes from {number(before, 'nats')} to {nats(after)}"
        return f"The path is too sure of {reference}: without it {kl}"
    if claim.status == "excluded":
        return f"The path carries nothing: without it {kl}"
    if claim.status == "open":
        return f"The path may carry predictions: without it {kl}"
    if (other := claim.condition("not the law's")) is not None:
        of_others = f"The path carries predictions, but not {'' if other.holds else 'clearly '}{reference}'s"
        return fitting(f"{of_others}: without it {kl}", f"{of_others}: without it {in_short}")
    much = (
        "some of"
        if claim.condition("some of it")
        else "most of what there is of"
        if claim.condition("most of what there is")
        else ""
    )
    carries = f"The path carries {much + ' ' if much else ''}{reference}"
    last = f"{carries}: KL is {nats(after)} without it, not {number(before, 'nats')}"
    return fitting(f"{carries}: without it {kl}", f"{carries}: without it {in_short}", last)


def _needed(claim: Claim) -> str:
    who = parts(claim.subject)
    if claim.condition("does harm"):
        return f"{cap(who)} does harm: without it the loss falls by {nats(-value_in(claim))}{negated(claim)}"
    if (other := claim.condition("only undoes")) is not None:
        return (
            f"Without {who} the loss rises by {nats(claim.value)}: then nothing undoes {parts(other.words)}"
        )
    if claim.is_shown:
        return f"Without {who} the loss rises by {nats(claim.value)}{within(claim)}"
    if claim.status == "open":
        return f"Whether {who} is needed is open: {nats(claim.value)}{within(claim)}"
    return f"{cap(who)} is worth less than 0.001 nats"


def _needed_most(claim: Claim) -> str:
    who = parts(claim.subject)
    if claim.status == "excluded":
        harm = claim.condition("does harm")
        no_part, loss = "No head, MLP or direct path is needed", "the loss"
        if claim.holds("loss on scores"):
            no_part, loss = "In cross-entropy, which it was not trained on, no part is needed", "it"
        if harm is not None and harm.words:
            return f"{no_part}: without {parts(harm.words)} {loss} falls by {nats(harm.value)}"
        some_do = "" if harm is None else " and some may do harm"
        return f"{no_part}: each is worth less than 0.001 nats{some_do}"
    if claim.holds("within its null"):
        return f"Cutting {who} costs {nats(claim.value)}, no more than in untrained models"
    if (clear := claim.condition("clearly needed")) is not None:
        is_ = verb(clear.words, "is", "are")
        return f"Which part is needed most is open: {parts(clear.words)} clearly {is_}, {who} perhaps more"
    if claim.status == "open":
        told = f"Whether any part is needed is open: without {who} the loss changes by {nats(claim.value)}"
        return fitting(f"{told}{within(claim)}", told)
    if (least := claim.condition("least of them")) is not None and least.value is not None:
        told = f"{cap(who)} are needed most"
        worth = f"{format_range(least.value, value_in(claim), 3)} nats"
        return fitting(f"{told}: without one the loss rises by {worth}", f"{told}: each is worth {worth}")
    if claim.holds("group"):
        singly = claim.condition("one by one")
        told = f"{cap(who)} together are needed most: without them the loss rises by {nats(claim.value)}"
        if singly is None or singly.value is None:
            return f"{told}{within(claim)}"
        ways = ("without them the loss rises by", "worth")
        each = f"{cap(who)} together are needed most: {{}} {nats(claim.value)}, singly {nats(singly.value)} in all"
        return fitting(*(each.format(way) for way in ways))
    are = verb(claim.subject, "is", "are")
    return f"{cap(who)} {are} needed most: without {'it' if are == 'is' else 'them'} the loss rises by {nats(claim.value)}{within(claim)}"


def _relied_on(claim: Claim) -> str:
    return f"With the output of {parts(claim.subject)} from another sequence the loss rises by {nats(claim.value)}{within(claim)}"


def _repairs(claim: Claim) -> str:
    direct = claim.number("cut from the logits only")
    return f"Later parts repair {parts(claim.subject)}: cut from the logits only it costs {nats(direct)}, {number(value_in(claim))} more"


def _stands_in(claim: Claim) -> str:
    both = parts((*claim.subject, *claim.object))
    return f"{cap(both)} stand in for each other: together {nats(claim.number('worth together'))}, {number(value_in(claim))} more than one by one"


def _follows(claim: Claim) -> str:
    if claim.status == "does not apply":
        if claim.condition("no single parent"):
            return "The next state depends on no single token, so there is no parent to swap"
        if claim.condition("a swap contradicts the rest"):
            return "Each token tells all others here, so a swapped parent contradicts the rest"
        return "All parents have one law here, so a swap tells nothing"
    if claim.condition("all stay as they are"):
        return "Predictions do not follow another parent: it changes none of them"
    does = {"shown": "follow", "open": "may follow", "excluded": "do not follow"}[claim.status]
    cases = f"in {share(claim.value)} of cases{within(claim)}, by chance in 50%"
    ways = (f"Predictions {does} another parent {put}in its place: {cases}" for put in ("put ", ""))
    return fitting(*ways)


def _order(claim: Claim) -> str:
    if claim.condition("does harm"):
        return f"The order of what came before the last token does harm: another costs {nats(-value_in(claim))} less{negated(claim)}"
    if claim.status == "excluded":
        return "The order of what came before the last token is worth less than 0.001 nats"
    if claim.status == "open":
        return f"Whether the order of what came before the last token is of use is open: {nats(claim.value)}{within(claim)}"
    return f"The order of what came before the last token is worth {nats(claim.value)}{within(claim)}"


PARTS: dict[str, Phrase] = {
    "attends_to": _attends_to,
    "attends_evenly": _evenly,
    "attends_by": _attends_by,
    "matches": _matches,
    "is_induction_head": _induction_head,
    "feeds": _feeds,
    "carries": _carries,
    "is_needed": _needed,
    "is_needed_most": _needed_most,
    "is_relied_on": _relied_on,
    "repairs": _repairs,
    "stands_in_for": _stands_in,
    "follows": _follows,
    "uses_order": _order,
}
