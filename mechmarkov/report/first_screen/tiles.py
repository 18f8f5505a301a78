"""The first screen's four tiles: what was learned, where it lives, how it came, why it is stuck."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechmarkov.probing.dataset import imitates, last_model
from mechmarkov.probing.outcome import Findings
from mechmarkov.probing.preconditions import in_words
from mechmarkov.probing.score import Score
from mechmarkov.report.first_screen.readings import (
    EVENTS,
    MIN_EFFECT_NATS,
    bigram_of,
    effect_intervals,
    effects,
    happened,
    homes_of,
    induction_circuit,
    is_open,
    name_of,
    named_heads,
    needed_most,
    number_of,
    score_of,
    value_of,
)
from mechmarkov.report.first_screen.verdict import SOLVED_PROGRESS, Badge, Evidence
from mechmarkov.report.score_picture import DIGITS, MIN_SHOWN_SHARE
from mechmarkov.report.symlog import symlog
from mechmarkov.utils.text import format_number, format_range, format_share, listed

NOT_CUT = ("embed", "pos_embed", "bias")  # what a model reads, and what is the same for all sequences
MAX_TILE_WORDS = 25  # of a sentence
MAX_ANSWER_WORDS = 12
MAX_NAMED = 3  # parts that a title or an answer lists
_SOLVED_NATS = 0.01  # this near to the best possible, nothing is left to be stuck at
_MIN_INFORMATION = 1e-9  # of a first step; below, it is rounding
_MAX_BARS = 4  # of parts
_MAX_LAWS = 5
MAX_SHARE = 1.05  # of the bigram; above, other parts work against those that hold it


@dataclass(frozen=True)
class Bar:
    """A row of a small picture: where its bar begins and ends, in percent of the width."""

    label: str
    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Tile:
    """One of the four questions: its answer in a few words and in a sentence, a number, a picture.

    Attributes:
        question: What is asked.
        answer: In at most twelve words.
        sentence: In at most 25 words.
        number: What the score counts, in words.
        score: The number with its null; None where no probe tells.
        picture: What the bars are, in words.
        bars: The picture's rows.
        where: "over the whole run", where the tile does not follow the slider.
    """

    question: str
    answer: str
    sentence: str
    number: str = ""
    score: Score | None = None
    picture: str = ""
    bars: tuple[Bar, ...] = ()
    where: str = ""


def feed(heads: list[str], most: int = MAX_NAMED) -> str:
    """Heads and what they do: "L0H0 and L0H1 feed"."""
    return f"{named(heads, most)} feed{'s' * (len(heads) == 1)}"


def named(heads: list[str], most: int = MAX_NAMED) -> str:
    """Heads by name; of more than so many, how many they are."""
    return listed(heads) if len(heads) <= most else f"{len(heads)} heads"


def learned(result: Findings) -> Tile | None:
    """The nearest exact predictor and the distance from it; None without `behaviour`."""
    nearest = value_of(result, "behaviour", "nearest_predictor")
    if not isinstance(nearest, str):
        return None
    right, possible = (number_of(result, "behaviour", name) for name in ("accuracy", "optimal_accuracy"))
    away = score_of(result, "behaviour", f"kl_{nearest.removeprefix('in_context_')}")
    name = in_words(nearest)
    law = f"{name} law" if name in ("uniform", "unigram") else name
    sentence = f"The {law} is the nearest exact predictor"
    if right is not None and possible is not None:
        is_right, could_be = format_share(right, 1), format_share(possible, 1)
        sentence = f"It is right {is_right} of the time, where {could_be} is possible"
    data, kl, near = result.outcomes["behaviour"].data, dict[str, float](), None
    if "kl" in data:
        last = last_model(data)
        shown = {"uniform", nearest, *map(data.attrs.get, ("unigram", "bigram", "best"))}
        series = last["kl"].to_series()
        kl = {in_words(str(n)): float(nats) for n, nats in series.items() if n in shown}
        near = imitates(last["kl"], last["kl_error"])
    if away is None:  # only the unigram, the bigram and the best have a score of their own
        away = Score(kl.get(name), "nats", reason="the distance was not measured")
    return Tile(
        "What has it learned?",
        f"The {law}" if near else f"Nearest: the {law}",
        f"{sentence}.",
        "nats (KL) from it",
        away,
        "KL from exact predictors, nats",
        bars_from_zero(kl, _MAX_LAWS),
    )


def bars_from_zero(values: Mapping[str, float], most: int = _MAX_BARS) -> tuple[Bar, ...]:
    """Bars on one scale, from zero to each of the first so many values."""
    found = {name: value for name, value in values.items() if np.isfinite(value)}
    if not found:
        return ()
    kept = dict(list(found.items())[:most])
    low, high = min(0.0, *kept.values()), max(0.0, *kept.values())
    width = (high - low) or 1.0
    return tuple(
        Bar(
            name,
            round(100 * (min(value, 0.0) - low) / width, 2),
            round(100 * (max(value, 0.0) - low) / width, 2),
            format_number(0.0 if abs(value) < MIN_SHOWN_SHARE * width else value, DIGITS),
        )
        for name, value in kept.items()
    )


def lives(result: Findings) -> Tile | None:
    """The parts that hold it or are needed most, or why none is named; None without any probe of parts."""
    question = "Where does it live?"
    names = named_heads(result)
    effect, needed = (score_of(result, "ablation", s) for s in ("largest_effect", "largest_effect_component"))
    worth = effects(result)
    picture = {"picture": "rise of the loss with its output at its mean, nats", "bars": bars_from_zero(worth)}
    number = f"nats lost without {needed.value}" if needed and needed.value else "nats: the largest effect"
    shared: dict[str, Any] = {"number": number, "score": effect, **picture} if effect else picture
    if (circuit := induction_circuit(result)) is not None:
        feeding, heads = circuit.feeders, circuit.heads
        several = len(heads) > 1
        feeds = f"{feed(feeding)} {'them' if several else 'it'}; " if feeding else ""
        if feeding == [value_of(result, "induction", "previous_token_head")]:
            feeds = f"{feeding[0]} reads the previous token; "
        look, read = ("look", "read") if several else ("looks", "reads")
        they = named(heads)
        sentence = f"{feeds}{they} {look} for earlier copies of the current token and {read} what followed."
        answer = f"{listed(feeding)} → {they}" if 0 < len(feeding) <= MAX_NAMED else they
        return Tile(question, answer, sentence, **shared)
    homes, home = homes_of(result), value_of(result, "storage", "bigram_home")
    if home is None and effect is None:
        return None
    if home == "none":
        why = score_of(result, "storage", "rank_90")
        said = (why and why.reason) or "no head, MLP or direct path holds the bigram by itself"
        answer = "No part is named"
        if (number_of(result, "storage", "gain") or 0.0) < MIN_EFFECT_NATS:
            answer = "Too little to place" if "too little" in said else "Nothing to place"
        return Tile(question, answer, f"{said[0].upper()}{said[1:]}.", **shared)
    if not names:
        return Tile(question, *_no_part(result), **shared)
    parts = listed(sorted(names) if names == needed_most(result) else names)
    if len(names) > MAX_NAMED:
        parts = f"{len(names)} parts"
    return Tile(question, parts, _what_they_do(result, names, homes), **shared)


def _what_they_do(result: Findings, names: list[str], homes: list[str]) -> str:
    """What the named parts hold or look at, or that the loss rises without them, in a sentence."""
    said, most = [], needed_most(result)
    shares = [number_of(result, "storage", f"share_{path}") for path in homes]
    known = [share for share in shares if share is not None]
    if homes and len(known) == len(homes):
        holds = "Together they hold" if len(homes) > 1 else f"{names[0] if len(names) > 1 else 'It'} holds"
        it, total = f"{format_share(sum(known))} of {bigram_of(result)}", sum(known)
        if total > MAX_SHARE:
            it = f"more than the bigram: other parts take {format_share(total - 1)} of it away"
        said.append(f"{holds} {it}")
    parent = number_of(result, "attention", "parent_score")
    if value_of(result, "attention", "parent_head") == names[0] and parent is not None and len(names) == 1:
        said.append(f"{'p' if said else 'P'}uts {format_share(parent, 1)} of its attention on the parent")
    if not said and len(homes) > 1:
        said.append("They cancel in part: what is left of them holds the bigram")
    elif not said and most:
        part = "one of them" if len(most) > 1 else "it" if len(names) == 1 else most[0]
        said.append(f"The loss rises most when {part} is cut")
    return f"{' and '.join(said) or f'It holds {bigram_of(result)}'}."


def _no_part(result: Findings) -> tuple[str, str]:
    """Why no part is named, in a few words and in a sentence."""
    worth = {part: nats for part, nats in effects(result).items() if part not in NOT_CUT}
    if value_of(result, "ablation", "largest_effect_component") is not None:
        return (
            "No more than in untrained models",
            "Cutting any one part costs no more than in untrained models.",
        )
    if any(abs(nats) >= MIN_EFFECT_NATS for nats in worth.values()):
        said = "Cutting any one head, MLP or the direct path does not surely raise the loss."
        return "No part is surely needed", said
    if any(max(map(abs, ends)) >= MIN_EFFECT_NATS for ends in effect_intervals(result, list(worth))):
        said = "With so few sequences the effect of a cut may be 0.01 nats or more."
        return "Too few sequences to tell", said
    return "In no single part", "Cutting any one head, MLP or the direct path hardly changes the loss."


def came(result: Findings) -> Tile | None:
    """Between which steps the events of the run lie; None where `dynamics` was not asked."""
    question = "How did it get there?"
    outcome = result.outcomes.get("dynamics")
    if outcome is None:
        if "dynamics" not in result.skipped or len(result.steps) != 1:
            return None
        sentence = "Probe all kept steps to see when it came: --steps all."
        return Tile(question, "One step cannot tell", sentence)
    found = happened(outcome)
    events = [event for event in found if event.after < event.by]
    start, last = (int(outcome.data["step"][i]) for i in (0, -1)) if "step" in outcome.data else (0, 0)
    if not events:
        asked = [name for name in EVENTS if name in outcome.scores]
        unseen = [name for name in asked if f"no_{name.removeprefix('t_')}" not in outcome.data.attrs]
        missed = [name for name in unseen if name not in {event.name for event in found}]
        surely = [name_of(name) for name in missed if not is_open(outcome, name)]
        open_ = [name_of(name) for name in missed if is_open(outcome, name)]
        goals = [event for event in found if event.name in ("t_bigram", "t_best")]
        answer = "Not seen"
        if goals or (found and not missed):
            answer = "It began there" if any(event.kept for event in goals or found) else "Lost again"
        said = []
        if found:
            there = listed([f"{event.words}{event.lost}" for event in found])
            said = [f"At step {start}, the first probed: {there}."]
        if surely:
            probed = outcome.data.sizes.get("step", len(result.steps))  # whatever the slider shows
            steps = "any" if found else f"any of the {probed} probed steps"
            said.append(f"No {' and no '.join(surely)} at {steps}.")
        if open_:
            said.append(f"Open: {listed(open_)}.")
        sentence = " ".join(said) or "Neither selection nor unigram nor bigram can be seen to come here."
        return Tile(question, answer, sentence, where="over the whole run")
    sentence = "; ".join(f"{e.words} by steps {format_range(e.after, e.by)}{e.lost}" for e in events)
    answer = ", ".join(f"{e.short} by step {e.by:g}{e.lost}" for e in events)
    end = float(symlog(max(last, 1)))

    def place(step: float) -> float:
        return round(100 * float(symlog(step)) / end, 2)

    bars = tuple(Bar(e.words, place(e.after), place(e.by), f"{e.step:g}") for e in events)
    final = events[-1]
    return Tile(
        question,
        f"{answer[0].upper()}{answer[1:]}",
        f"{sentence[0].upper()}{sentence[1:]}.",
        f"steps until {final.words}",
        Score(final.step, "", interval=(final.after, final.by)),
        f"over the whole run: steps {start} to {last}, symlog",
        bars,
    )


def stuck(result: Findings, word: Badge | None, evidence: Evidence | None) -> Tile | None:
    """What kind of point the model is at, and why; None where no probe tells."""
    question = "Is it stuck?"
    trapped, kind = value_of(result, "symmetry", "trapped"), value_of(result, "landscape", "kind")
    missed = score_of(result, "behaviour", "kl_best")
    if trapped is None and kind is None and word is None:
        return None
    away, is_near = "", False
    if missed is not None and isinstance(missed.value, float):
        nats = "under 10⁻⁶" if missed.value < 1e-6 else format_number(missed.value, 2)
        away = f"{nats} nats from the best possible"
        is_near = missed.value <= _SOLVED_NATS and (evidence is None or evidence.progress >= SOLVED_PROGRESS)
    answer = {
        "solved": f"No: {away}" if away else "No",
        "untrained": "Not started",
        "trapped": "Yes, by symmetry",
    }.get(str(word), f"No: {away}" if is_near else "")
    if not answer:
        still = {"not stationary": "No: it still moves", "minimum": "At a minimum, to second order"}
        still |= {"saddle": "At a saddle"}
        answer = still.get(str(kind), f"Not yet there: {away}" if away else "Undecided")
        answer = "Yes, by symmetry" if trapped is True else answer
    sentence = _why(result, trapped, kind)
    if word == "solved" and evidence is not None and evidence.surely[0] < SOLVED_PROGRESS:
        sentence = (
            f"Its table has a cosine of {evidence.kernel_cosine:.4f} with the target, and its training loss "
            "has another optimum than cross-entropy."
        )
    smallest, largest = (number_of(result, "landscape", f"hessian_{end}") for end in ("min", "max"))
    if smallest is not None and largest is not None and word not in ("solved", "partly"):
        score = score_of(result, "landscape", "hessian_min")
        number = f"smallest Hessian eigenvalue, {score.unit}" if score else ""
        bars = bars_from_zero({"smallest": smallest, "largest": largest})
        picture = "Hessian eigenvalues outside the symmetric subspace"
        return Tile(question, answer, sentence, number, score, picture, bars)
    above = {} if evidence is None else {"this model": evidence.excess, "unigram": evidence.gap}
    where = "nats above the best possible"
    return Tile(question, answer, sentence, where, missed, where, bars_from_zero(above))


def _why(result: Findings, trapped: object, kind: object) -> str:
    flat = number_of(result, "symmetry", "first_step_information")
    point = {
        "minimum": "it ends at a minimum, within the tolerance band",
        "saddle": "it sits at a saddle, below the tolerance band",
        "not stationary": "the gradient still moves it",
        "undecided": "its curvature leaves the kind of point undecided",
    }.get(str(kind), "")
    if trapped is True:
        sentence = "The first gradient is the same for every state, so attention stays flat"
    elif trapped is False:
        tells = flat is not None and flat > _MIN_INFORMATION
        sentence = "No symmetry holds it" + ": the first gradient tells states apart" * tells
    else:
        reason = result.skipped.get("symmetry", "")
        sentence = f"Symmetry was not tested: {reason}" if reason and not point else ""
    said = "; ".join(each for each in (sentence, point) if each)
    return f"{said[:1].upper()}{said[1:]}." if said else ""
