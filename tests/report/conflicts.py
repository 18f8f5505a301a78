"""What no two statements on a page may say: rules over what is told, which the arbiter does not read.

Each rule takes what a page tells (its claims, badge, title and tiles) and yields conflicts in words.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from math import isclose

from mechmarkov.claims.claim import MODEL, Claim, Where
from mechmarkov.claims.tile import LEARNED, LIVES, STUCK
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.first_screen.headline import Headline, chosen_tiles, headline
from mechmarkov.report.words.sentences import sentence

Rule = Callable[[Findings, Headline], Iterator[str]]
TOLERANCE = 1e-6
NO_SIGN = 1e-4  # of the largest eigenvalue


def conflicts(result: Findings) -> list[str]:
    """Returns what a reader of the page would find at odds with something else on it."""
    screen = headline(result)
    return [conflict for rule in RULES for conflict in rule(result, screen)]


def one_number_each(result: Findings, screen: Headline) -> Iterator[str]:
    """One relation of the same things has one value and one interval."""
    del screen
    for one, other in combinations(result.claims, 2):
        same = (one.relation, one.subject, one.object, one.where) == (
            other.relation,
            other.subject,
            other.object,
            other.where,
        )
        if same and one.probe != other.probe and not _is_one_number(one, other):
            yield f"{sentence(one)} / {sentence(other)}"


def _is_one_number(one: Claim, other: Claim) -> bool:
    """Two probes may add up the same float32 numbers in another order: six digits are one number."""
    numbers = [[claim.value, *(claim.interval or ())] for claim in (one, other)]
    if len(numbers[0]) != len(numbers[1]) or (one.value is None) != (other.value is None):
        return False
    return one.value is None or all(isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(*numbers, strict=True))


def no_sentence_twice(result: Findings, screen: Headline) -> Iterator[str]:
    """A verdict says each thing once."""
    del screen
    for name, outcome in result.outcomes.items():
        first, _, second = outcome.verdict.partition(". ")
        if second and first.split(":")[0] == second.split(":")[0] and ":" in first:
            yield f"{name}: {outcome.verdict}"


def solved_is_solved(result: Findings, screen: Headline) -> Iterator[str]:
    """What is solved is not trapped, at no saddle, not another law, and is as right as any can be."""
    if screen.badge != "solved":
        return
    claims = result.claims
    for relation in ("is_trapped_by",):
        if (claim := claims.first(relation, status="shown")) is not None:
            yield f"{screen.title} / {sentence(claim)}"
    reaches = claims.first("reaches")
    if reaches is not None and reaches.is_shown:
        for claim in claims.where("is_at", status="shown", object="saddle"):
            yield f"{screen.title} / {sentence(claim)}"
        for claim in claims.where("imitates", object=reaches.object[0], status="excluded"):
            if not claim.where.states and not claim.where.positions and claims.first("fails_at") is None:
                yield f"{screen.title} / {sentence(claim)}"


def learned_tile_is_the_title(result: Findings, screen: Headline) -> Iterator[str]:
    """The law of the first tile is not another one than the title's."""
    del screen
    tiles = {tile.question: tile for tile in chosen_tiles(result)}
    learned, reaches = tiles.get(LEARNED), result.claims.first("reaches")
    if learned is None or reaches is None:
        return
    answer = learned.answer[0]
    if answer.relation == "imitates" and answer.is_shown and reaches.is_shown:
        closest = result.claims.first("is_closest_to")
        if answer.object[0] != reaches.object[0] and reaches.object[0] not in closest.object:
            yield f"{sentence(answer)} / {sentence(reaches)}"


def a_home_is_of_use(result: Findings, screen: Headline) -> Iterator[str]:
    """What the tile names as the home does no harm."""
    del screen
    tiles = {tile.question: tile for tile in chosen_tiles(result)}
    lives = tiles.get(LIVES)
    for claim in () if lives is None else lives.answer:
        if not claim.is_shown or claim.relation not in ("stores", "is_needed_most"):
            continue
        if claim.where != Where() or claim.condition("held at temperature"):
            continue  # it is of use there, and may do harm at the rest; or it is too sure for its loss
        if claim.relation == "stores" and claim.object != ("bigram",):
            continue  # the model's law, which need not be one that is of use
        for needed in result.claims.where("is_needed", probe="ablation"):
            if needed.subject == claim.subject and needed.condition("does harm"):
                yield f"{sentence(claim)} / {sentence(needed)}"


def nothing_is_worth_more_than_most(result: Findings, screen: Headline) -> Iterator[str]:
    """No part is surely worth more than what is needed most."""
    del screen
    most = result.claims.first("is_needed_most", status="shown")
    for needed in () if most is None else result.claims.where("is_needed", status="shown"):
        if needed.value > most.value + TOLERANCE and not needed.condition("only undoes"):
            yield f"{sentence(most)} / {sentence(needed)}"


def no_circuit_in_one_place_and_a_circuit_in_another(result: Findings, screen: Headline) -> Iterator[str]:
    """No program has an induction head where intervention has none."""
    del screen
    head = result.claims.first("is_induction_head")
    if head is None or head.status not in ("excluded", "does not apply"):
        return
    for claim in result.claims.where("explains", status="shown"):
        terms = [one.words[0] for one in claim.because if one.name == "term"]
        if "MatchHead" in terms:
            yield f"{sentence(head)} / {sentence(claim)}"


def intervals_hold_what_is_said(result: Findings, screen: Headline) -> Iterator[str]:
    """Ends are in order, and a minimum's interval is not wholly below zero."""
    del screen
    for claim in result.claims:
        if claim.interval is not None and claim.interval[0] > claim.interval[1]:
            yield f"{sentence(claim)}: {claim.interval}"
    for claim in result.claims.where("is_at", object="minimum", status="shown"):
        largest = claim.condition("largest eigenvalue")
        scale = NO_SIGN * abs(largest.value if largest and largest.value else 1.0)
        if claim.interval is not None and claim.interval[1] < -scale:
            yield f"{sentence(claim)}"


def stuck_tile_is_the_badge(result: Findings, screen: Headline) -> Iterator[str]:
    """The badge says trapped where the tile does, and nowhere else."""
    tiles = {tile.question: tile for tile in chosen_tiles(result)}
    stuck = tiles.get(STUCK)
    if stuck is None:
        return
    says: Claim = stuck.answer[0]
    trapped = says.relation == "is_trapped_by" and says.is_shown
    if (screen.badge == "trapped") != trapped:
        yield f"{screen.title} / {sentence(says)}"
    if trapped and (moves := result.claims.first("moves", subject=MODEL, status="shown")) is not None:
        yield f"{sentence(says)} / {sentence(moves)}"


def a_picture_is_of_its_answer(result: Findings, screen: Headline) -> Iterator[str]:
    """Bars of eigenvalues stand under a kind of point only, and have its value."""
    del screen
    for tile in chosen_tiles(result):
        says = tile.answer[0]
        if tile.picture == "eigenvalues" and tile.bars and tile.bars.get("smallest") != says.value:
            yield f"{sentence(says)} / {tile.bars}"
        if tile.picture == "eigenvalues" and tile.bars and says.relation != "is_at":
            yield f"{sentence(says)} / {tile.bars}"


def a_number_is_its_bar(result: Findings, screen: Headline) -> Iterator[str]:
    """KL from the law that is told is the length of that law's bar."""
    del screen
    for tile in chosen_tiles(result):
        number = tile.number
        if tile.picture != "kl" or number is None or number.relation not in ("imitates", "is_closest_to"):
            continue
        bar = tile.bars.get(number.object[0])
        if (
            bar is not None
            and number.where == Where()
            and not isclose(bar, number.value or 0.0, rel_tol=TOLERANCE)
        ):
            yield f"{sentence(number)} / {tile.bars}"


def what_is_named_is_told(result: Findings, screen: Headline) -> Iterator[str]:
    """Every part that the first screen names is the subject of a claim that is not excluded."""
    for name in screen.named:
        told = [claim for claim in result.claims if name in (*claim.subject, *claim.object)]
        if not any(claim.is_shown for claim in told):
            yield f"{name} is named, and no claim shows it"


RULES: tuple[Rule, ...] = (
    one_number_each,
    no_sentence_twice,
    solved_is_solved,
    learned_tile_is_the_title,
    a_home_is_of_use,
    nothing_is_worth_more_than_most,
    no_circuit_in_one_place_and_a_circuit_in_another,
    intervals_hold_what_is_said,
    stuck_tile_is_the_badge,
    a_picture_is_of_its_answer,
    a_number_is_its_bar,
    what_is_named_is_told,
)
