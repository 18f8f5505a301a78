"""Numbers and names that the sentences of claims share."""

from collections.abc import Callable

from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.utils.text import format_range

Phrase = Callable[[Claim], str]


def reason_in(claim: Claim) -> str:
    """Returns what contradicts a claim that is open though its own measurement is not."""
    if claim.against is None or claim.against.probe == claim.probe:
        return ""
    return f": {claim.against.probe or 'another probe'} says otherwise"


def value_in(claim: Claim) -> float:
    """Returns the number that decides a claim; 0 where there is none."""
    return 0.0 if claim.value is None else claim.value


def cap(name: str) -> str:
    """Returns a text with a capital letter."""
    return name[:1].upper() + name[1:]


def premise(claim: Claim, name: str) -> Condition:
    """Returns a premise; one that is open where the claim has none of that name."""
    return claim.condition(name) or Condition(name, None)


def negated(claim: Claim) -> str:
    """Returns the interval of a value's negative in brackets."""
    if claim.interval is None:
        return ""
    low, high = claim.interval
    return f" ({format_range(-high, -low, 3)})"
