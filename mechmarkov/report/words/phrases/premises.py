"""Numbers and names that the sentences of claims share."""

from collections.abc import Callable

from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.utils.text import format_range

Phrase = Callable[[Claim], str]


def number_of(claim: Claim, name: str) -> float:
    """Returns the number of a premise; 0 where there is none."""
    condition = claim.condition(name)
    return 0.0 if condition is None or condition.value is None else condition.value


def has(claim: Claim, name: str) -> bool:
    """Returns whether a premise is there and holds."""
    condition = claim.condition(name)
    return condition is not None and bool(condition.holds)


def reason_in(claim: Claim) -> str:
    """Returns what contradicts a claim that is open though its own measurement is not."""
    if claim.against is None:
        return ""
    return f", as {claim.against.probe or 'another probe'} says otherwise"


def value_in(claim: Claim) -> float:
    """Returns the number that decides a claim; 0 where there is none."""
    return 0.0 if claim.value is None else claim.value


def cap(name: str) -> str:
    """Returns a text with a capital letter."""
    return name[:1].upper() + name[1:]


def value_of(condition: Condition) -> float:
    """Returns the number of a premise; 0 where it has none."""
    return 0.0 if condition.value is None else condition.value


def premise(claim: Claim, name: str) -> Condition:
    """Returns a premise; one that is open where the claim has none of that name."""
    return claim.condition(name) or Condition(name, None)


def negated(claim: Claim) -> str:
    """Returns the interval of a value's negative in brackets."""
    if claim.interval is None:
        return ""
    low, high = claim.interval
    return f" ({format_range(-high, -low, 3)})"
