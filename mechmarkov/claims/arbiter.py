"""One consistent set of claims from those of all probes, before anything is told.

Probes measure apart, and two of them may contradict each other. A contradiction is resolved by rule, or both
claims become open. The rules, in their order:

1. An intervention outweighs a recording, and both outweigh weights; an expectation under the exact law
   outweighs all three.
2. A claim with an interval outweighs one that is a point.
3. A claim of the whole model outweighs one of a part.

The claim that loses becomes open and names the other (`Claim.against`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from mechmarkov.claims.claim import MODEL, Claim

STRENGTH = {"weights": 0, "recording": 1, "intervention": 2, "law": 3}

# Relations in which a subject can stand to one object at a time.
ONE_OBJECT = ("is_closest_to", "is_at")
# Pairs of relations of the same subject that cannot both be shown.
EXCLUDES = (
    ("reaches", "is_trapped_by"),
    ("is_trapped_by", "leaves_by"),
    ("is_trapped_by", "moves"),
    ("is_at", "moves"),
    ("is_trapped_by", "tempers"),
)

Contradiction = Callable[[Claim, Claim], bool]


def arbitrate(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Returns the claims in their order, none of them contradicting another.

    Example:
        >>> home = Claim(("L0H0",), "stores", ("bigram",), evidence="intervention", probe="storage")
        >>> table = Claim(("direct",), "matches", ("log P",), evidence="weights", probe="alignment")
        >>> [claim.status for claim in arbitrate([home, table])]
        ['shown', 'open']
    """
    decided = list(claims)
    for i, j in combinations(range(len(decided)), 2):
        if not contradict(decided[i], decided[j]):
            continue
        first, second = _strength(decided[i]), _strength(decided[j])
        if first <= second:
            decided[i] = _opened(decided[i], decided[j])
        if second <= first:
            decided[j] = _opened(decided[j], claims[i])
    return tuple(decided)


def contradictions(claims: Sequence[Claim]) -> Iterator[tuple[Claim, Claim]]:
    """Yields the pairs of claims that contradict each other."""
    for one, other in combinations(claims, 2):
        if contradict(one, other):
            yield one, other


def contradict(one: Claim, other: Claim) -> bool:
    """Returns whether two claims cannot both be told as they stand."""
    return any(rule(one, other) or rule(other, one) for rule in RULES.values())


def _is_of_one_step(claim: Claim) -> bool:
    """Returns whether what weights hold is the bigram's table, not that of a law of several steps."""
    law = claim.condition("law")
    return law is None or ((law.value or 1.0) <= 1 and law.words != ("lag",))


def _both(one: Claim, other: Claim, first: str, second: str) -> bool:
    """Returns whether both claims are shown, the one of the first relation and the other of the second."""
    return one.is_shown and other.is_shown and (one.relation, other.relation) == (first, second)


# What cannot be told together, and how two claims are seen to be that.
RULES: dict[str, Contradiction] = {
    "one subject, and two objects of a relation that has one": lambda one, other: (
        any(_both(one, other, relation, relation) for relation in ONE_OBJECT)
        and one.subject == other.subject
        and not set(one.object) & set(other.object)
    ),
    "the same, shown by one and excluded by the other, of the same places": lambda one, other: (
        one.is_shown and other.status == "excluded" and _said(one) == _said(other)
    ),
    "two relations of one subject that do not go together": lambda one, other: (
        any(_both(one, other, *pair) for pair in EXCLUDES) and one.subject == other.subject
    ),
    "one part holds the bigram by intervention, and by weights another one": lambda one, other: (
        _both(one, other, "stores", "matches")
        and one.object == ("bigram",)
        and _is_of_one_step(other)
        and not set(one.subject) & set(other.subject)
    ),
    "no part holds the bigram by intervention, and one does by weights": lambda one, other: (
        (one.relation, one.status) == ("stores", "excluded")
        and (other.relation, other.status) == ("matches", "shown")
        and _is_of_one_step(other)
    ),
    "no head tells tokens apart, and one gives a token most of its attention": lambda one, other: (
        _both(one, other, "attends_evenly", "attends_to") and other.object != ("query token",)
    ),
    "a fit has an induction head, and by edits of the context there is none": lambda one, other: (
        (one.relation, one.status) == ("explains", "shown")
        and any(premise.name == "term" and premise.words[:1] == ("MatchHead",) for premise in one.because)
        and other.relation == "is_induction_head"
        and other.status in ("excluded", "does not apply")
        and not other.object
    ),
    "the best law is reached, and clearly not imitated": lambda one, other: (
        (one.relation, one.status) == ("reaches", "shown")
        and (other.relation, other.status, other.object) == ("imitates", "excluded", one.object)
        and not one.holds("loss on scores")
    ),
}


def _said(claim: Claim) -> tuple[object, ...]:
    return claim.relation, claim.subject, claim.object, claim.where


def _strength(claim: Claim) -> tuple[int, bool, bool]:
    return STRENGTH[claim.evidence], claim.interval is not None, claim.subject == (MODEL,)


def _opened(claim: Claim, by: Claim) -> Claim:
    return replace(claim, status="open", against=replace(by, against=None))
