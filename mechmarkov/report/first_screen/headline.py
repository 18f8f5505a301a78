"""The first screen at each step: badge, title and tiles, made of the claims at that step only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mechmarkov.claims.claim import Claims, said_by
from mechmarkov.claims.tile import LIVES, QUESTIONS, STUCK, Tile
from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.first_screen.readings import accuracies
from mechmarkov.report.first_screen.verdict import Badge, badge, is_as_right, is_exact, is_exactly_as_right
from mechmarkov.report.words import title as words
from mechmarkov.report.words.outcomes import consistent
from mechmarkov.report.words.tiles import WordedTile, worded
from mechmarkov.report.words.whole_model import of_a_circuit, of_a_part, of_harm, of_one_step, one_step

# Probes whose claims are the whole run's, or the last step's; the others are asked again at each step.
OF_THE_RUN = ("dynamics",)
OF_THE_LAST_STEP = ("landscape", "program", "belief", "degeneracy")
PROBED = "probed steps"  # in the metadata of one step's findings: of how many it is one
EXACT_NATS = 1e-4  # from the best possible; what is nearer is not asked whether it is stuck
CIRCUIT_PROBES = ("alignment", "attention")  # that judge whether a circuit is exact


@dataclass(frozen=True)
class Headline:
    """The contents of the first screen at one step.

    Attributes:
        step: The training step.
        badge: One word; None where it is undecided or nothing was measured that decides it.
        title: The verdict, or the run's title where there is none.
        tiles: The answers to the four questions, and to those of other probes.
        note: What the badge was decided without.
        is_judged: Whether the title is a verdict.
        named: The components that the answers name, in the order in which they are computed.
    """

    step: int
    badge: Badge | None
    title: str
    tiles: list[WordedTile]
    note: str = ""
    is_judged: bool = True
    named: tuple[str, ...] = ()


def at_step(result: Findings, i: int) -> Findings:
    """The findings of one step, by its index; of probes that tell of other steps, only those of the run."""
    metadata = result.metadata | {PROBED: len(result.steps)}
    if i == len(result.steps) - 1:
        return replace(result, steps=result.steps[-1:], metadata=metadata)
    outcomes = {}
    for name, outcome in result.outcomes.items():
        if name in OF_THE_RUN:
            outcomes[name] = outcome
        elif name not in OF_THE_LAST_STEP and outcome.data.sizes.get("step") == len(result.steps):
            data = outcome.data.isel(step=[i])
            scores = outcome.probe.scores(data, outcome.null)
            claims = Claims(said_by(name, outcome.probe.claims(data, scores)))
            outcomes[name] = replace(outcome, data=data, scores=scores, claims=claims)
    return replace(result, steps=[result.steps[i]], outcomes=consistent(outcomes), metadata=metadata)


def headline(result: Findings) -> Headline:
    """Badge, title and tiles of the findings at one step; no tile for what no probe tells.

    >>> import mechmarkov as mm
    >>> headline(mm.Result({"title": "A run"}, [0], {})).title
    'A run'
    """
    claims = result.claims
    word, tiles = badge(claims), chosen_tiles(result)
    judged = claims.first("reaches", probe="behaviour") is not None
    lives = next((tile for tile in tiles if tile.question == LIVES), None)
    title = words.title(word, claims, lives) if judged else str(result.metadata.get("title", "A run"))
    step = result.steps[-1] if result.steps else 0
    note = words.not_judged(missing_probes(result), dict(result.failed)) if _would_count(result, word) else ""
    shown = [of_harm(tile, worded(tile), claims) for tile in tiles]
    reaches = claims.first("reaches", probe="behaviour")
    is_one_step = "dynamics" in result.skipped and result.metadata.get(PROBED, len(result.steps)) == 1
    if reaches is not None:
        pairs = list(zip(tiles, shown, strict=True))
        if word == "solved" and not reaches.is_shown:
            right = f"{'' if is_exactly_as_right(claims) else 'nearly '}right as often as possible"
            known = accuracies(result)
            table = claims.first("matches", status="shown", probe="alignment")
            shown = [of_a_circuit(tile, one, reaches, right, known, table) for tile, one in pairs]
        else:
            closest = claims.first("is_closest_to", probe="behaviour", status="shown")
            learned = (reaches if closest is None else closest).object[0]
            shown = [of_a_part(tile, one, learned, claims) for tile, one in pairs]
        if is_one_step:
            shown = [of_one_step(tile, one, claims) for tile, one in zip(tiles, shown, strict=True)]
    if is_one_step:
        shown.insert(min(2, len(shown)), one_step(int(result.metadata.get("kept steps", 0))))
    return Headline(step, word, title, shown, note, judged, named_parts(tiles))


def chosen_tiles(result: Findings) -> list[Tile]:
    """One tile a question, that of the lowest rank; the four questions first."""
    claims, word = result.claims, badge(result.claims)
    offered = [tile for outcome in result.outcomes.values() for tile in outcome.probe.headline(claims)]
    by_question: dict[str, Tile] = {}
    for tile in sorted(offered, key=lambda tile: _rank(tile, word)):
        by_question.setdefault(tile.question, tile)
    order = dict.fromkeys([*QUESTIONS, *by_question])
    return [by_question[question] for question in order if question in by_question]


def _rank(tile: Tile, word: Badge | None) -> float:
    """Whoever has reached the best, or made no step, is not asked what else could hold it."""
    said = tile.answer[0]
    settled = word in ("solved", "untrained")
    # Where the unigram is as near to the best law there is no badge, and what is exact is so all the same.
    settled |= word is None and said.is_shown and said.value is not None and said.value < EXACT_NATS
    return -1 if settled and tile.question == STUCK and said.relation == "reaches" else tile.rank


def named_parts(tiles: Sequence[Tile]) -> tuple[str, ...]:
    """The heads, MLPs and the direct path that the answer to "Where does it live?" names."""
    told = [claim for tile in tiles if tile.question == LIVES for claim in (*tile.answer, *tile.more)]
    names = dict.fromkeys(
        name for claim in told if claim.is_shown for name in (*claim.subject, *claim.object)
    )
    return tuple(
        name for name in names if name == "direct" or head_index(name) or mlp_index(name) is not None
    )


def missing_probes(result: Findings) -> list[str]:
    """The probes that judge a circuit and were not asked, or failed; if one does not apply, there is none."""
    return [name for name in CIRCUIT_PROBES if name not in {*result.outcomes, *result.skipped}]


def _would_count(result: Findings, word: Badge | None) -> bool:
    """Returns whether an exact circuit, which was not judged, would change the badge."""
    reaches = result.claims.first("reaches", probe="behaviour")
    if (
        reaches is None
        or word == "solved"
        or not (reaches.holds("loss on scores") and is_as_right(result.claims))
    ):
        return False
    return not is_exact(result.claims) and bool(missing_probes(result))
