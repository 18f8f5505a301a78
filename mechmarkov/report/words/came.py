"""What came at a step: in which order, what was there from the start, what came back, and when."""

from collections.abc import Sequence

from mechmarkov.claims.claim import Claim

NO_TOKEN = ("uniform", "unigram", "in_context_unigram")  # laws with which training begins


def in_order(claims: Sequence[Claim]) -> list[Claim]:
    """Returns the claims of what came at a step, the earliest first."""
    return sorted((one for one in claims if one.value is not None), key=lambda one: one.value or 0.0)


def was_there(claim: Claim) -> bool:
    """Returns whether it was there at the first probed step, so that it was not seen to come."""
    return claim.condition("from the first probed step") is not None


def came_back(laws: Sequence[Claim]) -> bool:
    """Returns whether a law that reads tokens was there from the start, and is there at the end."""
    first, last = laws[0], laws[-1]
    return was_there(first) and first.object == last.object and not {*first.object} & {*NO_TOKEN}


def when(claim: Claim, place: int) -> str:
    """Returns the step at which something came, in words; the first of several that came says that it is one."""
    away = claim.condition("lost again")
    lost = "" if away is None else " (lost again)" if away.holds is not False else " (not always)"
    step = "from the start" if was_there(claim) else f"{'by step ' if place == 0 else ''}{claim.value:.0f}"
    return f"{step}{lost}"
