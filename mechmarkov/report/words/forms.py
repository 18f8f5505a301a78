"""Heads, tables and beliefs that a run may have formed, the claims that show them, and shares of runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Form(NamedTuple):
    """A claim that shows it: its relation, a name among its objects ("" for any), and its probe.

    Where the premise `but` holds, it is not what is meant.
    """

    relation: str
    object: str
    probe: str
    but: str = ""


FORMS = {
    "a head that reads the parent": Form("attends_to", "parent", "attention"),
    "a head that reads the previous token": Form("attends_to", "previous token", "attention"),
    "the target's table in the weights": Form("matches", "", "alignment"),
    "an induction head": Form("is_induction_head", "", "induction", "carries nothing"),
    "a head that feeds an induction head": Form("feeds", "", "induction"),
    "edges of the graph in a head": Form("recovers", "", "graph"),
    "the belief in the residual stream": Form("carries_belief", "", "belief"),
}


def formed(claims: Sequence[Any], probes: Sequence[str]) -> dict[str, bool | None]:
    """Returns what a run has of `FORMS`: None where that is open, or was not asked.

    Args:
        claims: Each with `relation`, `object`, `status`, `probe`, `holds` and `is_everywhere`: what is so at
            some places only does not count.
        probes: The probes that were asked and apply.

    Example:
        >>> from mechmarkov.claims.claim import Claim
        >>> head = Claim(("L0H0",), "attends_to", ("parent",), probe="attention")
        >>> found = formed([head], ["attention"])
        >>> found["a head that reads the parent"], found["a head that reads the previous token"]
        (True, False)
        >>> found["an induction head"] is None
        True
    """
    found: dict[str, bool | None] = {}
    for words, form in FORMS.items():
        statuses = {
            claim.status
            for claim in claims
            if (claim.relation, claim.probe) == (form.relation, form.probe)
            and (not form.object or form.object in claim.object)
            and claim.is_everywhere
            and not (form.but and claim.holds(form.but))
        }
        if "shown" in statuses:
            found[words] = True
        else:
            found[words] = (
                None if form.probe not in probes or statuses & {"open", "does not apply"} else False
            )
    return found


def of_share(what: str, hits: int, of: int, undecided: int, low: float, high: float) -> str:
    """Returns in how many runs something is.

    Example:
        >>> of_share("an induction head", 8, 64, 2, 0.0647, 0.2277)
        "an induction head: 8 of 64 runs (0.065 to 0.228, Wilson's 95 % interval), 2 more undecided"
    """
    rest = f", {undecided} more undecided" if undecided else ""
    return f"{what}: {hits} of {of} runs ({low:.3f} to {high:.3f}, Wilson's 95 % interval){rest}"
