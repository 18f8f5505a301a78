"""Tiles in words: the answer, a sentence or two, what the number counts, and the bars of the small picture."""

from collections.abc import Sequence
from dataclasses import dataclass

from mechmarkov.claims.claim import MODEL, Claim
from mechmarkov.claims.tile import Tile
from mechmarkov.probing.score import Score
from mechmarkov.report.words.bars import Bar, bars_from_zero, on_steps
from mechmarkov.report.words.came import came_in_words
from mechmarkov.report.words.names import (
    MAX_NAMED,
    TINY,
    bare_law,
    bare_part,
    bare_parts,
    event,
    heads,
    law,
    parts,
    upper,
)
from mechmarkov.report.words.sentences import sentence
from mechmarkov.report.words.short_forms import has_room, short
from mechmarkov.utils.text import listed

# Relations whose number the tile's sentence tells.
IN_SENTENCES = ("reaches", "stores", "is_needed_most", "feeds", "is_induction_head")
# Relations that are answered by the names of parts.
OF_PARTS = ("is_needed", "is_needed_most", "is_induction_head", "recovers", "is_relied_on")
MAX_TILE_WORDS = 40
# What an exact null of a tile's number is; that of others is chance.
NULLS = {"is_at": "predicted by theory", "attends_to": "even attention", "is_trapped_by": "none"}
PICTURES = {
    "kl": "KL from exact predictors, nats",
    "effect": "rise of the loss with its output at its mean, nats",
    "share": "share of the bigram that each writes to the logits",
    "law share": "share of the law that each writes to the logits",
    "excess": "nats above the best possible",
    "right": "how often the likeliest state is next",
    "steps": "first probed step at which it is the closest",
}


@dataclass(frozen=True)
class WordedTile:
    """One of the questions: its answer in a few words and in sentences, a number, a picture.

    Attributes:
        question: What is asked.
        answer: In at most twelve words.
        sentence: In at most two sentences of at most 20 words.
        number: What the score counts, in words.
        score: The number with its null; None where no probe tells.
        picture: What the bars are, in words.
        bars: The picture's rows.
        where: That it is of the whole run, where the tile does not follow the slider.
    """

    question: str
    answer: str
    sentence: str
    number: str = ""
    score: Score | None = None
    picture: str = ""
    bars: tuple[Bar, ...] = ()
    where: str = ""


def worded(tile: Tile) -> WordedTile:
    """Returns a tile in words."""
    claims = tile.more or tile.answer
    sentences = " ".join(dict.fromkeys(sentence(claim) for claim in claims[:2]))
    picture = PICTURES.get(tile.picture, tile.picture)
    if tile.picture == "steps":
        heads_too = any(claim.relation == "came_by" for claim in tile.answer)
        picture += f"{', or a head halfway to an ideal one' * heads_too}; a bar begins at the one before"
    if tile.picture == "eigenvalues":
        picture = _eigenvalues(tile.answer[0])
    rows = on_steps(tile.answer) if tile.picture == "steps" else bars_from_zero(_named(tile))
    where = "of the whole run, at any step of the slider" if tile.of_run and not rows else ""
    is_told = tile.number is not None and tile.number.relation in IN_SENTENCES
    number = None if is_told else tile.number
    return WordedTile(
        tile.question, _answer(tile), sentences, *_number(number), picture if rows else "", rows, where
    )


def _answer(tile: Tile) -> str:
    """The answer in a few words: the short forms of its claims."""
    if tile.picture == "steps":
        return came_in_words(tile.answer)
    if len(tile.answer) > 1 and {claim.relation for claim in tile.answer} <= {*OF_PARTS, "feeds"}:
        return upper(_named_once(tile.answer))
    return upper(listed(list(dict.fromkeys(short(claim) for claim in tile.answer))))


def _named_once(claims: Sequence[Claim]) -> str:
    """Returns the parts that claims name, each once; a path as such."""
    feeds = [claim for claim in claims if claim.relation == "feeds"]
    inside = {name for claim in feeds for name in (*claim.subject, *claim.object)}
    names = list(dict.fromkeys(name for claim in claims for name in claim.subject if name not in inside))
    rest = parts(names) if len(names) <= MAX_NAMED or feeds else f"spread over {parts(names)}"
    induction = [name for claim in claims if claim.relation == "is_induction_head" for name in claim.subject]
    if induction and not feeds and MAX_NAMED < len(names) > len(induction):
        rest = f"{heads(induction)} and {len(names) - len(induction)} more parts"
    told = listed([*map(short, feeds), *[rest] * bool(names)])
    return told if has_room(told) else listed([*map(short, feeds), f"{len(names)} parts"])


def _number(claim: Claim | None) -> tuple[str, Score | None]:
    """Returns what a claim's value counts, and the value with its null."""
    if claim is None or claim.value is None:
        return "", None
    words = {
        "imitates": f"nats (KL) from {_named_law(claim)}",
        "is_closest_to": f"nats (KL) from {_named_law(claim)}",
        "fails_at": "nats (KL) there, at most",
        "tempers": "temperature, 1 is exact",
        "reaches": "nats above the best possible",
        "is_needed_most": f"nats lost without {parts(claim.subject)}",
        "feeds": "of the score is left without that path",
        "is_induction_head": "of an ideal induction head's effect",
        "stores": "of the bigram",
        "matches": {"cosine": "cosine with the target", "1 is exact": "slope, 1 is exact"}.get(
            claim.unit, claim.unit
        ),
        "attends_to": "of its attention",
        "is_trapped_by": "of the first gradient depends on the label",
        "is_at": "smallest Hessian eigenvalue",
        "moves": f"{claim.unit} {'lower' if claim.number('steps of L-BFGS') else 'from the stationary point'}",
        "came_by": f"steps until halfway to {event(claim.object[0], claim)}" if claim.object else "steps",
        "carries_belief": "R² of the belief",
    }
    null = claim.null if claim.relation != "feeds" else None
    is_none = claim.unit.startswith("nats") and abs(claim.value) < TINY
    kind = NULLS.get(claim.relation, "by chance")
    return words.get(claim.relation, claim.unit), Score(
        0.0 if is_none else claim.value, claim.unit, null, claim.interval, kind
    )


def _named_law(claim: Claim) -> str:
    return law(claim.object[0]) if claim.object else "it"


def _eigenvalues(point: Claim) -> str:
    """Returns of which directions eigenvalues are: weights that treat all states the same may be left out."""
    count = int(point.number("directions"))
    apart = count and point.condition("outside the symmetric subspace")
    which = (
        f" in {count} directions that tell states apart" if apart else "; below zero the loss falls that way"
    )
    return f"Hessian eigenvalues ({point.unit}){which}"


def _named(tile: Tile) -> dict[str, float]:
    """The rows of a picture by the names that people read, the largest first where they are parts."""
    values, picture = tile.bars, tile.picture
    if picture == "kl":
        return {bare_law(name): value for name, value in sorted(values.items(), key=lambda item: item[1])}
    if picture in ("effect", "share", "law share"):
        rows = {bare_part(name): value for name, value in values.items()}
        if tile.together is not None and tile.together.value is not None:
            rows |= {bare_parts(tile.together.subject): tile.together.value}
        return dict(sorted(rows.items(), key=lambda item: -abs(item[1])))
    if picture == "excess":
        return {"this model" if name == MODEL else bare_law(name): value for name, value in values.items()}
    return dict(values)
