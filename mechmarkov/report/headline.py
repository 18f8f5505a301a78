"""The four questions, each answered in one sentence made of the headline scores."""

from dataclasses import dataclass

from mechmarkov.probing.results import Result
from mechmarkov.report.text import format_number


@dataclass(frozen=True)
class Answer:
    """One of the four questions, its answer, and the probes that it stands on."""

    question: str
    sentence: str
    probes: tuple[str, ...]


def headline(result: Result) -> list[Answer]:
    """What it learned, where that lives, how it came and why it is stuck; empty where no probe tells.

    >>> import mechmarkov as mm
    >>> [answer.question for answer in headline(mm.Result({}, [0], {}))]
    []
    """
    answers = [_learned(result), _lives(result), _came(result), _stuck(result)]
    return [answer for answer in answers if answer is not None]


def _number(result: Result, probe: str, score: str) -> float | None:
    value = _value(result, probe, score)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _value(result: Result, probe: str, score: str) -> object:
    outcome = result.outcomes.get(probe)
    found = None if outcome is None else outcome.scores.get(score)
    return None if found is None else found.value


def _learned(result: Result) -> Answer | None:
    if "behaviour" not in result.outcomes:
        return None
    nearest, loss = (
        _value(result, "behaviour", "nearest_predictor"),
        _number(result, "behaviour", "excess_loss"),
    )
    right, possible = (_number(result, "behaviour", name) for name in ("accuracy", "optimal_accuracy"))
    if nearest is None or loss is None or right is None:
        sentence = result.outcomes["behaviour"].verdict
    else:
        sentence = (
            f"Of the exact predictors it is nearest to the {nearest}; its loss is {format_number(loss)} nats "
            f"above the best possible, and it is right {right:.1%} of the time"
        )
        sentence += "." if possible is None else f", where {possible:.1%} is possible."
    return Answer("What has it learned?", sentence, ("behaviour",))


def _lives(result: Result) -> Answer | None:
    question = "Where does it live?"
    head = _value(result, "induction", "induction_head")
    if head is not None:
        return Answer(question, result.outcomes["induction"].verdict, ("induction",))
    home = _value(result, "storage", "bigram_home")
    needed, effect = (
        _value(result, "ablation", "largest_effect_component"),
        _number(result, "ablation", "largest_effect"),
    )
    without = ""
    if needed is not None and effect is not None:
        without = f"without {needed} the loss rises by {format_number(effect)} nats"
    if home is None:
        return None if not without else Answer(question, f"{without[0].upper()}{without[1:]}.", ("ablation",))
    gain = _number(result, "storage", "gain")
    if home == "none":
        worth = "" if gain is None else f": its paths together bring it {format_number(gain)} nats nearer"
        sentence = f"No path holds the bigram{worth}"
    else:
        share = _number(result, "storage", f"share_{home}")
        held = "" if share is None else f" ({share:.0%})"
        sentence = f"The bigram is in {home}{held}"
        parent, score = (
            _value(result, "attention", "parent_head"),
            _number(result, "attention", "parent_score"),
        )
        if parent is not None and parent == home and score is not None:
            sentence += f", which puts {score:.1%} of its attention on the parent"
    return Answer(
        question, f"{sentence}{'; ' if without else ''}{without}.", ("storage", "attention", "ablation")
    )


def _came(result: Result) -> Answer | None:
    question = "How did it get there?"
    if "dynamics" in result.outcomes:
        return Answer(question, result.outcomes["dynamics"].verdict, ("dynamics",))
    if "dynamics" in result.skipped and len(result.steps) == 1:
        return Answer(question, "One step was probed; with all its steps (--steps all) the run tells.", ())
    return None


def _stuck(result: Result) -> Answer | None:
    trapped, kind = _value(result, "symmetry", "trapped"), _value(result, "landscape", "kind")
    low = _number(result, "landscape", "hessian_min")
    rate = _number(result, "landscape", "escape_rate")
    points = {
        "minimum": "at a minimum",
        "saddle": "at a saddle",
        "not stationary": "not at a stationary point: it still moves",
    }
    point = points.get(str(kind), "")
    if point and low is not None and kind != "not stationary":
        point += f" (smallest Hessian eigenvalue {format_number(low)})"
        if kind == "saddle" and rate:
            point += (
                f", which plain gradient descent leaves at rate {format_number(rate)} per unit of step size"
            )
    if trapped is None:
        return None if not point else Answer("Why is it stuck?", f"It is {point}.", ("landscape",))
    if trapped is True:
        flat = _number(result, "symmetry", "first_step_information")
        tells = "" if flat is None else f" (information {format_number(flat)})"
        sentence = (
            f"By symmetry: the first gradient tells no state from another{tells} and attention stays flat"
        )
    else:
        sentence = "The symmetric trap does not hold it"
    return Answer(
        "Why is it stuck?", f"{sentence}{'; it is ' if point else ''}{point}.", ("symmetry", "landscape")
    )
