"""What came at a step: in which order, what was there from the start, what came back, and when."""

from collections.abc import Sequence

from mechmarkov.claims.claim import Claim
from mechmarkov.report.words.names import bare_event, bare_law, simplest, upper
from mechmarkov.report.words.short_forms import coinciding, has_room

NO_TOKEN = ("uniform", "unigram", "in_context_unigram")  # laws with which training begins
MAX_CAME = 3  # laws that an answer lists


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


def came_in_words(claims: Sequence[Claim]) -> str:
    """Returns the laws that were closest, each by its first step; otherwise the heads that came."""
    passed, heads = (
        [one for one in in_order(claims) if one.relation == name] for name in ("passed", "came_by")
    )
    laws = [one for one in passed if one.is_shown]
    undecided = [f"undecided from step {one.value:.0f}" for one in passed if not one.is_shown]
    seen = [[one for one in group if not was_there(one)] for group in (laws, heads)]
    told = seen[0] or seen[1]
    if not told and laws:
        return ", ".join([f"From the start closest to {coinciding(laws[0].object)}", *undecided])
    if not told and undecided:
        return "Open which law it is closest to"
    if not (told := told or heads):
        return "Open" if any(claim.status == "open" for claim in claims) else "It never began"
    if told is seen[0] and began_with_tokens(laws):
        told = [laws[0], *told]
    undecided = undecided if seen[0] else []
    words = _each_came(told)
    for first in range(MAX_CAME - 1, 0, -1):
        if len(told) > first + 1 and not has_room(" ".join([*words, *undecided])):
            words = _each_came([*told[:first], told[-1]])
            words.insert(-1, f"{len(told) - first - 1} more")
    return upper(", ".join([*words, *undecided]))


def _each_came(claims: Sequence[Claim]) -> list[str]:
    """Returns what came, each with its step."""
    first = next((i for i, claim in enumerate(claims) if not was_there(claim)), 0)
    return [f"{_nearly(claim)}{what_came(claim)} {when(claim, i - first)}" for i, claim in enumerate(claims)]


def _nearly(claim: Claim) -> str:
    """Returns "closest to" of a law that nothing else says the model had."""
    return "closest to " if claim.condition("closest only") is not None else ""


def what_came(claim: Claim) -> str:
    """Returns what came, without an article."""
    if claim.relation == "passed":
        return bare_law(simplest(claim.object))
    return bare_event(claim.object[0], claim)
