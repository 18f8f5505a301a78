"""Sentences of storage: which paths hold a law, work against it or cancel."""

from mechmarkov.claims.claim import Claim, Where
from mechmarkov.report.words.names import MAX_NAMED, fitting, law, nats, parts, share, verb, within
from mechmarkov.report.words.phrases.laws import after_states, at_positions, where
from mechmarkov.report.words.phrases.premises import Phrase, cap, value_in

NONE_OF_IT = 0.02  # up to which share parts that cancel are said to hold nothing
ALL_OF_IT = 1.05  # from which share on others are said to take away


def _stores(claim: Claim) -> str:
    if claim.object == ("unigram",):
        return _stores_unigram(claim)
    if claim.is_shown and claim.where != Where():
        holds = verb(claim.subject, "holds", "hold")
        return f"{cap(parts(claim.subject))} {holds} the bigram {where(claim)}, where the model has it ({share(claim.value)} of it)"
    if claim.is_shown:
        is_some, is_more = claim.holds("what there is of it"), value_in(claim) > ALL_OF_IT
        name = law(claim.object[0])
        what = f"what there is of {name}" if is_some else name
        if len(claim.subject) > MAX_NAMED or claim.condition("not stable"):
            return f"{cap(what)} is spread over {parts(claim.subject)}, which hold {share(claim.value)} of it"
        together = "together " if len(claim.subject) > 1 else ""
        holds = f"{cap(parts(claim.subject))} {together}{verb(claim.subject, 'holds', 'hold')}"
        by, much = claim.condition("corrected by"), f"{share(claim.value)} of it"
        correct = "" if by is None else verb(by.words, "corrects", "correct")
        if not is_more:
            if by is None:
                return f"{holds} {what} ({much})"
            others, ways = parts(by.words), (f"together with {{}}, which {correct} it", "with {}")
            return fitting(*(f"{holds} {what} ({much} {way.format(others)})" for way in ways))
        others = "others take away" if by is None else f"{parts(by.words)} {correct} it"
        if is_some:
            how_many = f"{len(claim.subject)} parts together hold" if together else holds
            more = f"more of {name} than the model has: {others}"
            return fitting(f"{holds} {more}", f"{how_many} {more}")
        return f"{holds} {name} (more than all of it: {others})"
    start, end = (nats(claim.number(name)) for name in ("from", "to"))
    none = f", {start} with none" if start != end else " and with none"
    ways = (f"the model is {end} from it with all parts{none}", f"KL is {end} with all parts{none}")
    after, at = (claim.condition(f"undone {which}") for which in ("after", "at"))
    place = "" if after is None else f" {after_states(after.words)}"
    place = place if at is None else f" {at_positions([*map(int, at.words)])}"
    told = NO_HOME[_no_home(claim)]
    given = {"who": parts(claim.subject), "share": share(claim.value), "place": place}
    return fitting(
        *(told.format(**given, ends=ends, moved=moved) for ends in (within(claim), "") for moved in ways)
    )


def _stores_unigram(claim: Claim) -> str:
    who, (start, end) = parts(claim.subject), (nats(claim.number(name)) for name in ("from", "to"))
    if claim.status == "does not apply":
        return "No part needs to hold the unigram: it is uniform"
    if claim.is_shown:
        what = f"{'what there is of ' if claim.holds('what there is of it') else ''}the unigram"
        together = "together " if len(claim.subject) > 1 else ""
        return f"On average {who} {together}{verb(claim.subject, 'writes', 'write')} {what} ({share(claim.value)} of it)"
    if claim.condition("with such tokens only"):
        return f"No part holds the unigram: {who} {verb(claim.subject, 'writes', 'write')} it only if tokens come that often"
    return f"No part holds the unigram: what all write on average is {end} from it, the uniform law {start}"


def _no_home(claim: Claim) -> str:
    return next((one.name for one in claim.because if one.name in NO_HOME), "not by the parent")


NO_HOME = {
    "the mean is it": "No part needs to hold the bigram: the mean prediction is the bigram",
    "too little to share": "Which part holds the bigram is open: {moved}",
    "others undo it": "No part holds the bigram: {who} would by itself, and the others undo that{place}",
    "the paths lead away": "No part holds the bigram: {moved}",
    "nothing to share": "No part holds the bigram: {moved}",
    "only at another scale": "No part holds the bigram by itself: {who} would at the norm's scale that others set",
    "stored or from the context": "Whether the bigram is stored or read from the context is open: {share}{ends} is left without it",
    "some from the context": "Which part holds the bigram is open: {share}{ends} of it needs no transitions in the context",
    "from the context": "No part holds the bigram: it is read from the context ({share}{ends} is left without transitions)",
    "the parent leads away": "No part holds the bigram: setting the last state moves predictions away from its row",
    "the parent hardly leads there": "No part holds the bigram: setting the last state hardly moves predictions toward its row",
    "not by the parent": "No part holds the bigram: what the parts are worth does not come from the parent",
}  # fmt: skip


def _works_against(claim: Claim) -> str:
    who, name = cap(parts(claim.subject)), law(claim.object[0])
    what = "what there is of it" if claim.holds("what there is of it") else "it"
    if (worth := claim.condition("corrects")) is not None:
        return f"{who} corrects the others: by itself it leads away, without it {nats(worth.value)} would be left"
    amount = "more than all" if value_in(claim) > 1 else share(claim.value)
    return f"{who} {verb(claim.subject, 'works', 'work')} against {name}: {amount} of {what}"


def _cancels(claim: Claim) -> str:
    who = cap(parts(claim.subject))
    what = "what there is of the bigram" if claim.holds("what there is of it") else "the bigram"
    if claim.unit == "nats":
        count = "both" if len(claim.subject) == 2 else "all"
        told = f"{who} only undo each other"
        if (only := claim.condition("undo")) is not None:
            rest = [name for name in claim.subject if name not in only.words]
            told = f"{cap(parts(only.words))} only undoes {parts(rest)}"
        return f"{told}: {count} together are worth {nats(claim.value)}"
    if abs(value_in(claim)) < NONE_OF_IT:
        return f"{who} cancel: together they hold none of the bigram"
    return f"{who} cancel in part: together they hold {share(claim.value)} of {what}"


HOMES: dict[str, Phrase] = {
    "stores": _stores,
    "holds_share": lambda claim: (
        f"{cap(parts(claim.subject))} holds {share(claim.value)} of it{within(claim)}"
    ),
    "works_against": _works_against,
    "cancels": _cancels,
}
