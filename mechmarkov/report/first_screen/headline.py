"""The first screen's words at each step: badge, title and four tiles, made of scores alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mechmarkov.probing.outcome import Findings, Outcome
from mechmarkov.probing.score import Score, standing
from mechmarkov.report.figures import symlog
from mechmarkov.report.first_screen.verdict import SOLVED_PROGRESS, Badge, Evidence, badge, title
from mechmarkov.utils.text import format_range

# Probes with scores at each step; the others tell of the last step, `dynamics` of the whole run.
AT_EVERY_STEP = ("behaviour", "attention", "alignment", "induction", "ablation", "storage", "symmetry")
MAX_TILE_WORDS = 25  # of a sentence
MAX_ANSWER_WORDS = 12
_MIN_INFORMATION = 1e-9  # of a first step; below, it is rounding
_MAX_BARS = 4
IMITATION_NATS = 0.02  # a model that is nearer to a predictor is said to have it
# What has happened when a measure of progress passes one half (the probe `dynamics`).
EVENTS = {
    "t_selection": "parent attended",
    "t_unigram": "halfway to the unigram",
    "t_bigram": "halfway to the bigram",
}


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
        where: "at step 5000" or "over the whole run", where the tile does not follow the slider.
    """

    question: str
    answer: str
    sentence: str
    number: str = ""
    score: Score | None = None
    picture: str = ""
    bars: tuple[Bar, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class Headline:
    """What the first screen says at one step."""

    step: int
    badge: Badge | None
    title: str
    tiles: list[Tile]


def at_step(result: Findings, i: int) -> Findings:
    """The findings of one step, by its index; of probes that tell of other steps, only `dynamics`."""
    if i == len(result.steps) - 1:
        return replace(result, steps=result.steps[-1:])
    outcomes = {
        name: _outcome_at(outcome, i) if name in AT_EVERY_STEP else outcome
        for name, outcome in result.outcomes.items()
        if name == "dynamics"
        or (name in AT_EVERY_STEP and outcome.data.sizes.get("step") == len(result.steps))
    }
    return replace(result, steps=[result.steps[i]], outcomes=outcomes)


def _outcome_at(outcome: Outcome, i: int) -> Outcome:
    data = outcome.data.isel(step=[i])
    return replace(outcome, data=data, scores=outcome.probe.scores(data, outcome.null))


def headline(result: Findings, untouched: bool = False) -> Headline:
    """Badge, title and tiles of the findings at one step; no tile for what no probe tells.

    >>> import mechmarkov as mm
    >>> headline(mm.Result({"title": "A run"}, [0], {})).title
    'A run'
    """
    evidence = evidence_of(result, untouched)
    word = badge(evidence) if evidence else None
    said = str(result.run.get("title", "A run"))
    if word is not None and evidence is not None:
        said = title(word, evidence, _best(result), _how(result))
    tiles = [_learned(result), _lives(result), _came(result), _stuck(result, word, untouched)]
    return Headline(result.steps[-1] if result.steps else 0, word, said, [tile for tile in tiles if tile])


def evidence_of(result: Findings, untouched: bool = False) -> Evidence | None:
    """The scores that decide the badge; None where `behaviour` has no losses."""
    outcome = result.outcomes.get("behaviour")
    if outcome is None or "predictor_loss" not in outcome.data:
        return None
    data = outcome.data
    accuracy, possible = (_number(result, "behaviour", name) for name in ("accuracy", "optimal_accuracy"))
    on_scores = _value(result, "alignment", "target") in ("P", "sqrt P")
    return Evidence(
        loss=float(data["loss"][-1]),
        unigram_loss=float(data["predictor_loss"].sel(predictor=data.attrs["unigram"])),
        best_loss=best_loss(outcome),
        untouched=untouched,
        trapped=_value(result, "symmetry", "trapped") is True,
        kernel_cosine=_number(result, "alignment", "kernel_cosine") if on_scores else None,
        accuracy_share=accuracy / possible if accuracy is not None and possible else None,
        nearest_is_best=_value(result, "behaviour", "nearest_predictor") == data.attrs.get("best"),
    )


def best_loss(behaviour: Outcome) -> float:
    """The lowest loss (nats) that any exact predictor reaches on the sequences."""
    data = behaviour.data
    return float(data["best_loss"] if "best_loss" in data else data["predictor_loss"].min())


def in_words(predictor: str) -> str:
    """A predictor's name in a sentence."""
    return predictor.replace("in_context", "in-context").replace("_", " ")


def _best(result: Findings) -> str:
    attrs = result.outcomes["behaviour"].data.attrs
    return in_words(str(attrs.get("best", attrs["bigram"])))


def _value(result: Findings, probe: str, score: str) -> object:
    found = _score(result, probe, score)
    return None if found is None else found.value


def _number(result: Findings, probe: str, score: str) -> float | None:
    value = _value(result, probe, score)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _score(result: Findings, probe: str, score: str) -> Score | None:
    outcome = result.outcomes.get(probe)
    return None if outcome is None else outcome.scores.get(score)


def named_heads(result: Findings) -> list[str]:
    """The components that the verdict names, in the order in which they are computed."""
    circuit = [_value(result, "induction", f"{name}_head") for name in ("previous_token", "induction")]
    if circuit[1] is not None:
        return [str(name) for name in circuit if name is not None]
    home = _value(result, "storage", "bigram_home")
    names = [home if home != "none" else None, _value(result, "attention", "parent_head")]
    effect = _score(result, "ablation", "largest_effect")
    if not any(names) and effect is not None and standing(effect) != "within":
        names = [_value(result, "ablation", "largest_effect_component")]
    return list(dict.fromkeys(str(name) for name in names if name is not None))


def _how(result: Findings) -> str:
    names = named_heads(result)
    if _value(result, "induction", "induction_head") is not None:
        return (
            f"{names[0]} feeds induction head {names[-1]}" if len(names) > 1 else f"induction head {names[0]}"
        )
    if not names:
        return ""
    reads = _value(result, "attention", "parent_head") == names[0]
    return f"{names[0]} reads the parent" if reads else f"it is in {names[0]}"


def _learned(result: Findings) -> Tile | None:
    nearest = _value(result, "behaviour", "nearest_predictor")
    if not isinstance(nearest, str):
        return None
    right, possible = (_number(result, "behaviour", name) for name in ("accuracy", "optimal_accuracy"))
    away = _score(result, "behaviour", f"kl_{nearest.removeprefix('in_context_')}")
    name = in_words(nearest)
    law = f"{name} law" if name in ("uniform", "unigram") else name
    sentence = f"The {law} is the nearest exact predictor"
    if right is not None and possible is not None:
        sentence = f"It is right {right:.1%} of the time, where {possible:.1%} is possible"
    data = result.outcomes["behaviour"].data
    kl = (
        {
            in_words(str(k)): float(v)
            for k, v in zip(data["predictor"].values, data["kl"][-1].values, strict=True)
        }
        if ("kl" in data)
        else {}
    )
    assert away is not None  # a probe that names the nearest has its distance
    return Tile(
        "What has it learned?",
        f"The {law}" if float(away.value or 0) < IMITATION_NATS else f"Nearest: the {law}",
        f"{sentence}.",
        "nats (KL) from it",
        away,
        "KL from each exact predictor, nats",
        bars_from_zero(kl),
    )


def bars_from_zero(values: Mapping[str, float]) -> tuple[Bar, ...]:
    """Bars on one scale, from zero to each value."""
    found = {name: value for name, value in values.items() if np.isfinite(value)}
    if not found:
        return ()
    kept = dict(list(found.items())[:_MAX_BARS])
    low, high = min(0.0, *kept.values()), max(0.0, *kept.values())
    width = (high - low) or 1.0
    return tuple(
        Bar(
            name,
            round(100 * (min(value, 0.0) - low) / width, 2),
            round(100 * (max(value, 0.0) - low) / width, 2),
            f"{value:.3g}",
        )
        for name, value in kept.items()
    )


def _lives(result: Findings) -> Tile | None:
    question = "Where does it live?"
    names = named_heads(result)
    effect, needed = (_score(result, "ablation", s) for s in ("largest_effect", "largest_effect_component"))
    worth = effects(result)
    picture = {"picture": "loss when its output is at its mean, nats", "bars": bars_from_zero(worth)}
    number = f"nats lost without {needed.value}" if needed and needed.value else "nats: the largest effect"
    shared: dict[str, Any] = {"number": number, "score": effect, **picture} if effect else picture
    if _value(result, "induction", "induction_head") is not None:
        head = names[-1]
        feeds = f"{names[0]} reads the previous token; " if len(names) > 1 else ""
        sentence = f"{feeds}{head} looks for earlier copies of the current token and reads what followed."
        return Tile(question, " → ".join(names), sentence, **shared)
    home = _value(result, "storage", "bigram_home")
    if home is None and effect is None:
        return None
    if home == "none" or (home is None and not names):
        sentence = "No head, MLP or direct path brings the model nearer to the bigram."
        return Tile(question, "Nowhere", sentence, **shared)
    share, parent = _number(result, "storage", f"share_{home}"), _number(result, "attention", "parent_score")
    said = [f"It holds {share:.0%} of the bigram"] if share is not None else []
    if _value(result, "attention", "parent_head") == names[0] and parent is not None:
        said.append(f"{'p' if said else 'P'}uts {parent:.1%} of its attention on the parent")
    sentence = " and ".join(said) or "The loss rises most when it is cut"
    return Tile(question, " and ".join(names), f"{sentence}.", **shared)


def effects(result: Findings) -> dict[str, float]:
    """What each component is worth (nats), the largest first; empty without `ablation`."""
    outcome = result.outcomes.get("ablation")
    if outcome is None or "effect" not in outcome.data:
        return {}
    now = outcome.data["effect"][-1].sel(measure="loss", kind="mean")
    values = {
        str(name): float(value) for name, value in zip(now["component"].values, now.values, strict=True)
    }
    return dict(sorted(values.items(), key=lambda item: -abs(np.nan_to_num(item[1]))))


def _came(result: Findings) -> Tile | None:
    question = "How did it get there?"
    outcome = result.outcomes.get("dynamics")
    if outcome is None:
        if "dynamics" not in result.skipped or len(result.steps) != 1:
            return None
        return Tile(
            question, "One step cannot tell", "Probe all kept steps to see when it came: --steps all."
        )
    events = sorted(happened(outcome), key=lambda event: event.step)
    start, last = (int(outcome.data["step"][i]) for i in (0, -1)) if "step" in outcome.data else (0, 0)
    if not events:
        sentence = f"Between steps {start} and {last} neither selection nor unigram nor bigram appeared."
        return Tile(question, "It did not", sentence, where="over the whole run")
    sentence = "; ".join(
        f"{event.words} by steps {format_range(event.after, event.step)}" for event in events
    )
    answer = ", ".join(f"{event.name.removeprefix('t_')} by step {event.step:g}" for event in events)
    end = float(symlog(max(last, 1)))

    def place(step: float) -> float:
        return round(100 * float(symlog(step)) / end, 2)

    bars = tuple(Bar(e.words, place(e.after), place(e.step), f"{e.step:g}") for e in events)
    final = events[-1]
    return Tile(
        question,
        f"{answer[0].upper()}{answer[1:]}",
        f"{sentence[0].upper()}{sentence[1:]}.",
        f"step: {final.words}",
        Score(final.step, "", interval=(final.after, final.step)),
        f"over the whole run: steps {start} to {last}, symlog",
        bars,
    )


@dataclass(frozen=True)
class Event:
    """Something that `dynamics` saw happen between two kept steps."""

    name: str
    step: float
    after: float

    @property
    def words(self) -> str:
        """What it is, on the first screen."""
        return EVENTS[self.name]


def happened(dynamics: Outcome) -> list[Event]:
    """The events that a run passed."""
    found = []
    for name in EVENTS:
        score = dynamics.scores.get(name)
        if score is not None and isinstance(score.value, (int, float)):
            step = float(score.value)
            found.append(Event(name, step, score.interval[0] if score.interval else step))
    return found


def _stuck(result: Findings, word: Badge | None, untouched: bool) -> Tile | None:
    question = "Is it stuck?"
    trapped, kind = _value(result, "symmetry", "trapped"), _value(result, "landscape", "kind")
    excess = _score(result, "behaviour", "excess_loss")
    if trapped is None and kind is None and word is None:
        return None
    away = "" if excess is None or excess.value is None else f"{excess.value:.2g} nats above the optimum"
    answer = {
        "solved": f"No: {away}" if away else "No",
        "untrained": "Not started" if untouched else "",
        "trapped": "Yes, by symmetry",
    }.get(str(word), "")
    if not answer:
        still = {
            "not stationary": "No: it still moves",
            "minimum": "Yes, at a minimum",
            "saddle": "At a saddle",
        }
        answer = still.get(str(kind), f"Not yet there: {away}" if away else "Undecided")
        answer = "Yes, by symmetry" if trapped is True else answer
    sentence = _why(result, trapped, kind)
    evidence = evidence_of(result)
    if word == "solved" and evidence is not None and evidence.progress < SOLVED_PROGRESS:
        sentence = "Its circuit is exact, and its training loss has another optimum than cross-entropy."
    return Tile(question, answer, sentence, **_curvature(result, excess, word))


def _why(result: Findings, trapped: object, kind: object) -> str:
    flat = _number(result, "symmetry", "first_step_information")
    point = {
        "minimum": "it ends at a minimum, within the tolerance band",
        "saddle": "it sits at a saddle, below the tolerance band",
        "not stationary": "the gradient still moves it",
    }.get(str(kind), "")
    if trapped is True:
        sentence = "The first gradient is the same for every state, so attention stays flat"
    elif flat is not None and flat > _MIN_INFORMATION:
        sentence = "No symmetry holds it: the first gradient tells states apart"
    elif trapped is False:
        sentence = "No symmetry holds it"
    else:
        sentence = "Symmetry does not apply to this source" if not point else ""
    said = "; ".join(each for each in (sentence, point) if each)
    return f"{said[:1].upper()}{said[1:]}."


def _curvature(result: Findings, excess: Score | None, word: Badge | None) -> dict[str, Any]:
    """The number and the picture: Hessian eigenvalues where they are known, else the losses."""
    smallest, largest = (_number(result, "landscape", f"hessian_{end}") for end in ("min", "max"))
    if smallest is not None and largest is not None and word not in ("solved", "partly"):
        return {
            "number": "smallest Hessian eigenvalue, nats / weight²",
            "score": _score(result, "landscape", "hessian_min"),
            "picture": "Hessian eigenvalues outside the symmetric subspace",
            "bars": bars_from_zero({"smallest": smallest, "largest": largest}),
        }
    evidence = evidence_of(result)
    losses = (
        {}
        if evidence is None
        else {
            "this model": evidence.loss - evidence.best_loss,
            "unigram": evidence.unigram_loss - evidence.best_loss,
        }
    )
    return {
        "number": "nats above the best possible",
        "score": excess,
        "picture": "nats above the best possible",
        "bars": bars_from_zero(losses),
    }


def notes(result: Findings, name: str) -> list[str]:
    """What is known of a component at the last of the findings' steps, for its box and its panel."""
    found = []
    share = _number(result, "storage", f"share_{name}")
    if share is not None and share >= 0.02:
        found.append(f"{share:.0%} of the bigram")
    if _value(result, "induction", "induction_head") == name:
        found.append("induction head")
    elif _value(result, "induction", "previous_token_head") == name:
        found.append(f"previous token: {_number(result, 'induction', 'previous_token_score') or 0:.0%}")
    elif _value(result, "attention", "parent_head") == name in named_heads(result):
        found.append(f"reads the parent: {_number(result, 'attention', 'parent_score') or 0:.0%}")
    return found
