"""Sentences of programs, beliefs, graphs, bounds, and of a number that stands by itself."""

from mechmarkov.certify.sentence import program_in_words
from mechmarkov.claims.claim import TABLES, Claim
from mechmarkov.report.words.conditions import stream, term
from mechmarkov.report.words.names import fitting, heads, nats, number, parts, share, within
from mechmarkov.report.words.phrases.premises import Phrase, cap, reason_in, value_in
from mechmarkov.utils.text import at_most, clean, counted, format_range, listed

MAX_TERM_WORDS = 12
MOST_OF_A_PART = 0.5  # R² from which on a belief is told as read, not some of it
MOST_ATTENTION = 0.9  # of a head, from which on its share is not told
COUNTS = ("Counts", "WeightedRow")  # terms in the plural


def _explains(claim: Claim) -> str:
    if claim.condition("constant predictions"):
        return "Its predictions are constant: a program that says their mean is all of it"
    if claim.subject == (TABLES,):
        if claim.status == "open":
            return f"Tables read from the weights explain {share(max(0.0, value_in(claim)), 1)}, as in untrained models"
        return f"Tables read from its weights explain {share(max(0.0, value_in(claim)), 1)} of the model"
    fitted = [one for one in claim.because if one.name == "term"]
    if claim.status == "open":  # by what contradicts it: a program with an induction head
        fitted.sort(key=lambda one: one.words[0] != "MatchHead")
    terms = [term(one) for one in fitted] or ["its mean prediction"]
    named = cap(_first(terms))
    several = len(terms) > 1 or any(one.words[0] in COUNTS for one in fitted)
    much = f"{share(max(0.0, value_in(claim)), 1)} of the model"
    if claim.status == "open":
        return f"{named} would explain {much}{reason_in(claim)}"
    told = f"{named} {'explain' if several else 'explains'} {much}"
    return fitting(f"{told} ({int(claim.number('numbers'))} numbers)", told)


def _first(terms: list[str]) -> str:
    """The first two terms, or the first if two are long, and how many more there are."""
    shown = 2 if len(" ".join(terms[:2]).split()) <= MAX_TERM_WORDS else 1
    return listed(terms[:shown] + [counted(len(terms) - shown, "other term")] * (len(terms) > shown))


def _carries_belief(claim: Claim) -> str:
    does = {"shown": "carries", "open": "may carry", "excluded": "does not carry"}[claim.status]
    n = int(claim.number("hidden states"))
    return f"{cap(stream(claim.subject[0]))} {does} the belief over {n} {clean(claim.object[0])}: R² {number(value_in(claim))}"


def _reads_part(claim: Claim) -> str:
    part, r2 = clean(claim.object[0]), number(value_in(claim))
    what = f"the belief over {part if part[-1:].isdigit() else f'the {part}'}"
    if claim.status == "excluded" and value_in(claim) <= 0:
        return f"{cap(what)} is not read from {stream(claim.subject[0])}: R² {r2}"
    if claim.status == "excluded":
        return (
            f"{cap(what)} is read from {stream(claim.subject[0])} no better than in untrained models: R² {r2}"
        )
    if value_in(claim) < MOST_OF_A_PART:
        what = f"some of {what}"
    if claim.status == "open":
        return f"Whether {what} is read from {stream(claim.subject[0])} is open: R² {r2}{within(claim)}"
    return f"{cap(what)} is read from {stream(claim.subject[0])} on: R² {r2}"


def _follows_belief(claim: Claim) -> str:
    if claim.status == "does not apply":
        return f"All {clean(claim.object[0])} have one law, so there is nothing to follow"
    does = {"shown": "follow", "open": "may follow", "excluded": "do not follow"}[claim.status]
    random = claim.null if isinstance(claim.null, float) else 0.0
    return f"Predictions {does} a forced state: KL {nats(claim.value)}, in random directions {number(random, 'nats')}"


def _recovers(claim: Claim) -> str:
    has, all_ = int(value_in(claim)), int(claim.number("edges of the graph"))
    of, together = (int(claim.number(f"edges of {which}")) for which in ("the head", "all such heads"))
    on_parents, even = (share(claim.number(name)) for name in ("attention on parents", "uniform gives"))
    who = heads(claim.subject)
    if claim.is_shown:
        part = f", with {on_parents} of its attention" * (
            claim.number("attention on parents") < MOST_ATTENTION
        )
        others = f"{of - has} {'other' if of - has == 1 else 'others'}" if of > has else "no other"
        if has == of == all_:
            last = int(claim.number("edges to the predicted token"))
            rest = f" ({last} more {'leads' if last == 1 else 'lead'} to the predicted one)" if last else ""
            along = f"{who} attends along the graph{part}: all {all_} edges between its tokens"
            return fitting(f"{along}{rest}, {others}", f"{along}, {others}")
        rest = (
            f"; such heads together along {'all' if together == all_ else together}" if together > has else ""
        )
        along = f"{who} attends along {has} of the graph's {all_} edges"
        return fitting(f"{along}{part}, and {others}{rest}", f"{along}, and {others}{rest}")
    open_ = "Whether a head attends along the graph is open"
    if claim.status == "open" and 2 * has <= of:
        return f"{open_}: {who} gives parents {on_parents} of its attention, even attention {even}"
    start = open_ if claim.status == "open" else "No head attends along the graph"
    return f"{start}: {who} has {has} true of {counted(of, 'edge')}"


def _coefficient(claim: Claim) -> str:
    half = claim.null if isinstance(claim.null, float) else 0.0
    without, chains = f"without degeneracy {number(half)}", f"{number(value_in(claim))}{within(claim)}"
    if (exact := claim.condition("exactly")) is not None:
        return f"The learning coefficient is exactly {number(exact.value or 0.0)}, {without}; chains give {chains}"
    if claim.is_shown:
        return f"The learning coefficient is {chains}, {without}"
    if claim.holds("below the loss here"):
        return "The model is at no minimum, so that it has no learning coefficient: chains saw a lower loss"
    estimate = "estimate of a bigram table"
    bad = claim.condition(estimate) and not claim.holds(estimate)
    why = "the estimator is not calibrated" if bad else "chains have not mixed"
    return f"The learning coefficient is open: {why}, and give {number(value_in(claim))}"


def _bounded(claim: Claim) -> str:
    program, sequences = claim.condition("certified program"), claim.condition("sequences")
    name = claim.object[0]
    if program is not None:
        name = program_in_words(name, int(program.value or 0), program.words[1:])
    if not claim.is_shown:
        why = claim.condition("no bound")
        return f"No bound is known: {clean(why.words[0]) if why is not None else 'none was found'}"
    every = "On every sequence" if sequences is None else f"On each of {clean(sequences.words[0])} sequences"
    return f"{every}, KL from {name} to the model is at most {at_most(value_in(claim))} nats"


def _measures(claim: Claim) -> str:
    null = ""
    if isinstance(claim.null, float):
        null = f"; by chance {number(claim.null)}"
    elif isinstance(claim.null, tuple):
        null = f"; untrained {format_range(claim.null[0], claim.null[2], 3)}"
    unit = f" {claim.unit}" if claim.unit else ""
    return f"{cap(clean(claim.object[0]))} of {parts(claim.subject)} is {number(value_in(claim))}{unit}{within(claim)}{null}"


OTHERS: dict[str, Phrase] = {
    "explains": _explains,
    "carries_belief": _carries_belief,
    "reads_part": _reads_part,
    "follows_belief": _follows_belief,
    "recovers": _recovers,
    "has_learning_coefficient": _coefficient,
    "is_bounded": _bounded,
    "measures": _measures,
}
