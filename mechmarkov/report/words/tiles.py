"""Tiles in words: the answer, a sentence or two, what the number counts, and the bars of the small picture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mechmarkov.claims.claim import MODEL, Claim, Where
from mechmarkov.claims.tile import Tile
from mechmarkov.probing.score import Score
from mechmarkov.report.score_picture import DIGITS
from mechmarkov.report.symlog import symlog
from mechmarkov.report.words.came import began_with_tokens, in_order, was_there, when
from mechmarkov.report.words.conditions import stream
from mechmarkov.report.words.names import (
    MAX_NAMED,
    TINY,
    bare_event,
    bare_law,
    bare_part,
    bare_parts,
    event,
    heads,
    law,
    nats,
    parts,
    simplest,
    token,
    upper,
)
from mechmarkov.report.words.phrases.laws import but_not, sureness, where
from mechmarkov.report.words.sentences import phrase, sentence
from mechmarkov.utils.text import clean, format_number, listed

# Relations whose number the tile's sentence tells.
IN_SENTENCES = ("reaches", "stores", "is_needed_most", "feeds", "is_induction_head")
# Relations that are answered by the names of parts.
OF_PARTS = ("is_needed", "is_needed_most", "is_induction_head", "recovers", "is_relied_on")
MAX_BARS = 5
MAX_STEPS = 6  # rows of what came at a step
MAX_ANSWER_WORDS, MAX_TILE_WORDS = 12, 40
FILTER = "forward_filter"
MAX_CAME = 3  # laws that an answer lists
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
class Bar:
    """A row of a small picture: where its bar begins and ends, in percent of the width."""

    label: str
    start: float
    end: float
    text: str


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


def has_room(answer: str) -> bool:
    """Returns whether an answer is short enough for a tile."""
    return len(answer.split()) <= MAX_ANSWER_WORDS


def short(claim: Claim) -> str:
    """Returns a claim as an answer of a few words.

    Example:
        >>> short(Claim(("L0H0",), "stores", ("bigram",), 0.99, unit="share"))
        'L0H0'
    """
    told = _SHORT.get(claim.relation)
    return phrase(claim) if told is None else told(claim)


def _coinciding(names: Sequence[str]) -> str:
    """Returns a law, and one that it coincides with here; of a law that is uniform here, that it is."""
    others = [name for name in names if name != "uniform"]
    if names[0] == FILTER:
        return f"{law(FILTER)}: the exact belief over hidden states"
    if len(others) < len(names) and others:
        return f"{law(others[0])}, here uniform"
    return ", here ".join(law(name) for name in names[:2])


def _closest(claim: Claim) -> str:
    names = [law(name) for name in claim.object]
    return f"closest to {names[0] if claim.is_shown else listed(names[:MAX_NAMED])}"


def _reaches(claim: Claim) -> str:
    away = f"{nats(claim.value)} from the best possible"
    if claim.holds("no step was made"):
        return "not started"
    if claim.is_shown:
        return f"no: {away}"
    if claim.holds("loss on scores"):
        return "open: it was trained on another loss than cross-entropy"
    if (fell := claim.condition("the loss fell")) is not None:
        return f"open: the loss fell since step {fell.words[0]}"
    return f"not at the best possible: {nats(claim.value)} away"


def _trapped(claim: Claim) -> str:
    if claim.is_shown:
        return "yes, by symmetry"
    return "perhaps, by symmetry" if claim.status == "open" else "no symmetry holds it"


def _point(claim: Claim) -> str:
    if claim.status == "open":
        return f"at a minimum{', a saddle or neither' if 'neither' in claim.object else ' or a saddle'}: open"
    second, solved = map(claim.holds, ("to second order only", "near the best"))
    if claim.object == ("minimum",) and second and not solved and claim.condition("drift") is None:
        return "at a minimum, or flat, to second order"
    near = claim.condition("near the best")
    is_stuck = claim.object == ("minimum",) and near is not None and near.holds is False
    if claim.condition("drift") is not None:
        return f"outside the symmetric subspace at a {claim.object[0]}"
    return f"yes, at a local {claim.object[0]}" if is_stuck else f"at a {claim.object[0]}"


def _stores(claim: Claim) -> str:
    if claim.is_shown:
        if len(claim.subject) > MAX_NAMED:
            return f"spread over {len(claim.subject)} parts"
        told = f"{'spread over ' if claim.condition('not stable') else ''}{parts(claim.subject)}"
        if claim.where != Where():
            told = (
                f"{told}, {where(claim)}"
                if has_room(f"{told}, {where(claim)}")
                else f"{told}, at some places"
            )
        return told if has_room(told) else f"spread over {len(claim.subject)} parts"
    if claim.condition("the mean is it"):
        return "no part needs to: the mean is the bigram"
    if claim.condition("too little to share"):
        return "too little to place"
    return "open which part holds it" if claim.status == "open" else f"no part holds {law(claim.object[0])}"


def _most(claim: Claim) -> str:
    if claim.is_shown:
        told = parts(claim.subject)
        return told if has_room(told) else f"{len(claim.subject)} parts"
    if claim.condition("within its null"):
        return "no more than in untrained models"
    if (clear := claim.condition("clearly needed")) is not None:
        return f"{parts(clear.words)}, perhaps others more"
    if claim.status == "open":
        return "no part is clearly needed"
    if (harm := claim.condition("does harm")) is not None and harm.words:
        return f"in none: {parts(harm.words)} does harm"
    return "in no single part"


_SHORT: dict[str, Callable[[Claim], str]] = {
    "imitates": lambda claim: _coinciding(claim.object),
    "is_closest_to": _closest,
    "fails_at": lambda claim: but_not(law(claim.object[0]), claim, MAX_ANSWER_WORDS),
    "opposes": lambda claim: f"the opposite of {law(claim.object[0])}",
    "tempers": lambda claim: f"{law(claim.object[0])}, {sureness(claim)}",
    "reaches": _reaches,
    "is_trapped_by": _trapped,
    "is_at": _point,
    "moves": lambda _: "no: not at a stationary point",
    "stores": _stores,
    "is_needed_most": _most,
    "feeds": lambda claim: f"{heads(claim.subject)} → {heads(claim.object)}",
    "is_induction_head": lambda claim: heads(claim.subject),
    "matches": lambda claim: (
        f"{parts(claim.subject)}, by weights{', at some states' * (claim.where != Where())}"
    ),
    "attends_to": lambda claim: (
        f"{heads(claim.subject)}, {where(claim) if claim.where != Where() else 'by attention'}"
    ),
    "recovers": lambda claim: heads(claim.subject),
    "carries_belief": lambda claim: f"{stream(claim.subject[0])}: the belief over {clean(claim.object[0])}",
    "is_relied_on": lambda claim: parts(claim.subject),
}


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
        return ", ".join([f"From the start closest to {_coinciding(laws[0].object)}", *undecided])
    if not told and undecided:
        return "Open which law it is closest to"
    if not (told := told or heads):
        return "Open" if any(claim.status == "open" for claim in claims) else "It never began"
    if told is seen[0] and len(told) < MAX_CAME and began_with_tokens(laws):
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


def _row(claim: Claim) -> str:
    """The label of a bar: a few letters."""
    parent = claim.condition("the parent")
    return what_came(claim) if parent is None else f"reads {token(parent.words)}"


def what_came(claim: Claim) -> str:
    """Returns what came, without an article."""
    if claim.relation == "passed":
        return bare_law(simplest(claim.object))
    return bare_event(claim.object[0], claim)


def _named_law(claim: Claim) -> str:
    return law(claim.object[0]) if claim.object else "it"


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


def bars_from_zero(values: Mapping[str, float], most: int = MAX_BARS) -> tuple[Bar, ...]:
    """Returns bars on one scale with a zero, to each of the first `count` values."""
    known = {name: value for name, value in values.items() if np.isfinite(value)}
    if not known:
        return ()
    shown = dict(list(known.items())[:most])
    low, high = min(0.0, *shown.values()), max(0.0, *shown.values())
    width = (high - low) or 1.0
    return tuple(
        Bar(
            name,
            round(100 * (min(value, 0.0) - low) / width, 2),
            round(100 * (max(value, 0.0) - low) / width, 2),
            "<10⁻⁶" if 0 < abs(value) < TINY else format_number(value, DIGITS),
        )
        for name, value in shown.items()
    )


def on_steps(claims: Sequence[Claim]) -> tuple[Bar, ...]:
    """A bar for what came at a step, from the last step before it to the first at which it is there."""
    last = max((claim.where.steps[1] for claim in claims if claim.where.steps), default=1)
    end = float(symlog(max(last, 1)))

    def place(step: float) -> float:
        return round(100 * float(symlog(step)) / end, 2)

    return tuple(
        Bar(_row(claim), place(claim.interval[0]), place(claim.interval[1]), f"{claim.value:g}")
        for claim in in_order(claims)[-MAX_STEPS:]
        if claim.interval is not None and claim.is_shown and not was_there(claim)
    )
