"""Verdicts: the first two sentences about a probe's claims, and the rest for its card."""

from collections.abc import Iterator, Sequence

from mechmarkov.claims.claim import Claim
from mechmarkov.report.words import conditions
from mechmarkov.report.words.names import upper
from mechmarkov.report.words.phrases import PHRASES

SENTENCES = 2  # of a verdict
# Claims that a picture or a table of the card tells better than a sentence each.
IN_PICTURES = ("is_needed", "holds_share", "imitates", "passed")


def phrase(claim: Claim) -> str:
    """Returns the sentence of a claim without its full stop."""
    return upper(PHRASES[claim.relation](claim))


def sentence(claim: Claim) -> str:
    """Returns the sentence of a claim, with a capital letter and a full stop.

    Example:
        >>> sentence(Claim(("L0H0",), "attends_to", ("parent", "current token"), 0.997, unit="probability"))
        'L0H0 gives the current token 99.7% of its attention.'
    """
    return f"{phrase(claim)}."


def sentences(claims: Sequence[Claim]) -> list[str]:
    """Returns a sentence for each claim, and behind them those of their premises; none twice."""
    told = [claim for claim in claims if not _is_pictured(claim)] or list(claims[:1])
    main = [sentence(claim) for claim in told]
    beside = [f"{upper(text)}." for claim in told for text in _premises(claim)]
    return list(dict.fromkeys([*main, *beside]))


def verdict(claims: Sequence[Claim]) -> str:
    """Returns the first two sentences about a probe's claims; "" where it makes none."""
    return " ".join(sentences(claims)[:SENTENCES])


def rest(claims: Sequence[Claim]) -> list[str]:
    """Returns what the verdict leaves for the card."""
    return sentences(claims)[SENTENCES:]


def _is_pictured(claim: Claim) -> bool:
    if claim.condition("of one head"):  # the circuit's box says it
        return True
    if claim.condition("the unigram is uniform"):  # the score says it
        return True
    if claim.condition("with a better law"):  # of which another sentence says it
        return True
    return claim.relation in IN_PICTURES or (
        claim.relation == "attends_evenly" and claim.status == "excluded"
    )


def _premises(claim: Claim) -> Iterator[str]:
    if claim.against is not None:
        yield f"Against it stands: {phrase(claim.against)}"
    for condition in claim.because:
        if text := conditions.sentence(condition):
            yield text
