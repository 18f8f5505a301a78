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
    return any(rule(one, other) or rule(other, one) for rule in RULES)


def _one_object(one: Claim, other: Claim) -> bool:
    """One subject, and two objects of a relation that has one."""
    return (
        one.is_shown
        and other.is_shown
        and one.relation == other.relation
        and one.relation in ONE_OBJECT
        and one.subject == other.subject
        and not set(one.object) & set(other.object)
    )


def _yes_and_no(one: Claim, other: Claim) -> bool:
    """The same is shown by one and excluded by the other, of the same places."""
    return (
        one.is_shown
        and other.status == "excluded"
        and (one.relation, one.subject, one.object, one.where)
        == (other.relation, other.subject, other.object, other.where)
    )


def _excluded(one: Claim, other: Claim) -> bool:
    """Two relations of one subject that do not go together."""
    return (
        one.is_shown
        and other.is_shown
        and (one.relation, other.relation) in EXCLUDES
        and one.subject == other.subject
    )


def _another_home(one: Claim, other: Claim) -> bool:
    """One part holds the bigram by intervention, and by weights another one."""
    return (
        one.is_shown
        and other.is_shown
        and (one.relation, other.relation) == ("stores", "matches")
        and _is_of_one_step(other)
        and not set(one.subject) & set(other.subject)
    )


def _no_home(one: Claim, other: Claim) -> bool:
    """No part holds the bigram by intervention, and one does by weights."""
    return (
        one.relation == "stores"
        and one.status == "excluded"
        and other.is_shown
        and other.relation == "matches"
        and _is_of_one_step(other)
    )


def _is_of_one_step(claim: Claim) -> bool:
    """Returns whether what weights hold is the bigram's table, not that of a law of several steps."""
    law = claim.condition("law")
    return law is None or (law.value or 1.0) <= 1


def _flat_and_looking(one: Claim, other: Claim) -> bool:
    """No head tells tokens apart, and one gives a token most of its attention."""
    return (
        one.is_shown
        and other.is_shown
        and (one.relation, other.relation) == ("attends_evenly", "attends_to")
        and other.object != ("query token",)
    )


def _fitted_circuit(one: Claim, other: Claim) -> bool:
    """A fit has an induction head among its terms, and by edits of the context there is none."""
    return (
        one.is_shown
        and one.relation == "explains"
        and any(premise.name == "term" and premise.words[:1] == ("MatchHead",) for premise in one.because)
        and other.relation == "is_induction_head"
        and other.status in ("excluded", "does not apply")
        and not other.object
    )


def _near_and_not(one: Claim, other: Claim) -> bool:
    """The best law is reached, and clearly not imitated."""
    return (
        one.is_shown
        and one.relation == "reaches"
        and other.relation == "imitates"
        and other.status == "excluded"
        and one.object == other.object
        and not is_on_scores(one)
    )


def is_on_scores(claim: Claim) -> bool:
    """Returns whether a claim's model has a loss on scores, with another optimum than cross-entropy."""
    condition = claim.condition("loss on scores")
    return condition is not None and bool(condition.holds)


RULES: tuple[Contradiction, ...] = (
    _one_object,
    _yes_and_no,
    _excluded,
    _another_home,
    _no_home,
    _flat_and_looking,
    _fitted_circuit,
    _near_and_not,
)


def _strength(claim: Claim) -> tuple[int, bool, bool]:
    return STRENGTH[claim.evidence], claim.interval is not None, claim.subject == (MODEL,)


def _opened(claim: Claim, by: Claim) -> Claim:
    return replace(claim, status="open", against=replace(by, against=None))
