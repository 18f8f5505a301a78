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


def began_with_tokens(laws: Sequence[Claim]) -> bool:
    """Returns whether the law that was there from the start reads tokens: the others tell nothing new."""
    return was_there(laws[0]) and not {*laws[0].object} & {*NO_TOKEN}


def when(claim: Claim, place: int) -> str:
    """Returns the step at which something came, in words; the first of several that came says that it is one."""
    away = claim.condition("lost again")
    lost = "" if away is None else " (lost again)" if away.holds is not False else " (not always)"
    step = "from the start" if was_there(claim) else f"{'by step ' if place == 0 else ''}{claim.value:.0f}"
    return f"{step}{lost}"
