"""The four questions, each answered in one sentence made of the headline scores."""

from dataclasses import dataclass

from mechmarkov.probing.outcome import Findings
from mechmarkov.utils.text import format_number

_SOLVED_NATS = 0.01  # this near to the best possible, nothing is left to be stuck at
_MIN_INFORMATION = 1e-9  # of a first step; below, it is rounding


@dataclass(frozen=True)
class Answer:
    """One of the four questions, its answer, and the probes that it stands on."""

    question: str
    sentence: str
    probes: tuple[str, ...]


def headline(result: Findings) -> list[Answer]:
    """What it learned, where that lives, how it came and why it is stuck; empty where no probe tells.

    >>> import mechmarkov as mm
    >>> [answer.question for answer in headline(mm.Result({}, [0], {}))]
    []
    """
    answers = [_learned(result), _lives(result), _came(result), _stuck(result)]
    return [answer for answer in answers if answer is not None]


def _number(result: Findings, probe: str, score: str) -> float | None:
    value = _value(result, probe, score)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _value(result: Findings, probe: str, score: str) -> object:
    outcome = result.outcomes.get(probe)
    found = None if outcome is None else outcome.scores.get(score)
    return None if found is None else found.value


def _learned(result: Findings) -> Answer | None:
    if "behaviour" not in result.outcomes:
        return None
    nearest = _value(result, "behaviour", "nearest_predictor")
    numbers = ("excess_loss", "accuracy", "optimal_accuracy")
    loss, right, possible = (_number(result, "behaviour", name) for name in numbers)
    sentence = result.outcomes["behaviour"].verdict
    if isinstance(nearest, str) and loss is not None and right is not None:
        away = _number(result, "behaviour", f"kl_{nearest.removeprefix('in_context_')}")
        said = nearest.replace("in_context", "in-context").replace("_", " ")
        sentence = f"Of the exact predictors it is nearest to the {said}{' law' * (nearest == 'uniform')}"
        sentence += "" if away is None else f", {format_number(away)} nats away"
        sentence += f"; its loss is {format_number(loss)} nats above the best possible"
        sentence += f", and it is right {right:.1%} of the time"
        sentence += "." if possible is None else f", where {possible:.1%} is possible."
    return Answer("What has it learned?", sentence, ("behaviour",))


def _lives(result: Findings) -> Answer | None:
    question = "Where does it live?"
    if _value(result, "induction", "induction_head") is not None:
        return Answer(question, result.outcomes["induction"].verdict, ("induction",))
    home = _value(result, "storage", "bigram_home")
    needed = _value(result, "ablation", "largest_effect_component")
    effect = _number(result, "ablation", "largest_effect")
    without = ""
    if needed is not None and effect is not None:
        without = f"without {needed} the loss rises by {format_number(effect)} nats"
    if home is None:
        return Answer(question, f"{without[0].upper()}{without[1:]}.", ("ablation",)) if without else None
    if home == "none":
        gain = _number(result, "storage", "gain")
        worth = "" if gain is None else f": its paths together bring it {format_number(gain)} nats nearer"
        sentence = f"No path holds the bigram{worth}"
    else:
        share = _number(result, "storage", f"share_{home}")
        sentence = f"The bigram is in {home}{'' if share is None else f' ({share:.0%})'}"
        score = _number(result, "attention", "parent_score")
        if _value(result, "attention", "parent_head") == home and score is not None:
            sentence += f", which puts {score:.1%} of its attention on the parent"
    sentence += f"; {without}." if without else "."
    return Answer(question, sentence, ("storage", "attention", "ablation"))


# What has happened when a measure of progress passes one half (the probe `dynamics`).
_EVENTS = {
    "t_selection": "half of the attention was on the parent",
    "t_unigram": "half of the way from the uniform law to the unigram was done",
    "t_bigram": "half of the way from the unigram to the bigram was done",
}


def _came(result: Findings) -> Answer | None:
    question = "How did it get there?"
    if "dynamics" not in result.outcomes:
        one = "One step was probed; with all its steps (--steps all) the run tells."
        untold = "dynamics" in result.skipped and len(result.steps) == 1
        return Answer(question, one, ()) if untold else None
    outcome = result.outcomes["dynamics"]
    events = []
    for name, what in _EVENTS.items():
        score = outcome.scores.get(name)
        if score is not None and isinstance(score.value, (int, float)):
            low, high = score.interval or (score.value, score.value)
            when = f"by step {high:g}" if low == high else f"between steps {low:g} and {high:g}"
            events.append((score.value, f"{what} {when}"))
    said = ", then ".join(words for _, words in sorted(events, key=lambda event: event[0]))
    return Answer(question, f"{said[0].upper()}{said[1:]}." if said else outcome.verdict, ("dynamics",))


def _stuck(result: Findings) -> Answer | None:
    question = "Why is it stuck?"
    trapped, point = _value(result, "symmetry", "trapped"), _point(result)
    missed = _number(result, "behaviour", "kl_best")
    if missed is not None and missed <= _SOLVED_NATS:
        solved = f"No: its predictions are {format_number(missed)} nats from the best possible"
        return Answer("Is it stuck?", f"{solved}; it is {point}." if point else f"{solved}.", ("behaviour",))
    if trapped is None:
        return Answer(question, f"It is {point}.", ("landscape",)) if point else None
    flat = _number(result, "symmetry", "first_step_information")
    tells = "" if flat is None else f" (information {format_number(flat)})"
    if trapped is True:
        sentence = f"By symmetry: the first gradient tells no state from another{tells}, attention stays flat"
        sentence += " and every later gradient keeps it so"
    elif flat is not None and flat > _MIN_INFORMATION:
        sentence = f"Not by symmetry: the first gradient tells states apart{tells}"
    else:
        sentence = "Not by symmetry: the symmetric trap does not hold it"
    sentence += f"; it is {point}." if point else "."
    return Answer(question, sentence, ("symmetry", "landscape"))


def _point(result: Findings) -> str:
    """What kind of point it is at, in words; empty where the landscape was not probed."""
    kind = _value(result, "landscape", "kind")
    if kind == "not stationary":
        return "not at a stationary point: it still moves"
    if kind == "undecided":
        return "at a point whose kind its curvature leaves undecided"
    if kind not in ("minimum", "saddle"):
        return ""
    low = _number(result, "landscape", "hessian_min")
    smallest = "" if low is None else format_number(low) if low else "zero within tolerance"
    point = f"at a {kind}" + (f" (smallest Hessian eigenvalue {smallest})" if smallest else "")
    rate = _number(result, "landscape", "escape_rate")
    if kind == "minimum" or not rate:
        return point
    return (
        f"{point}, which plain gradient descent, once it is off the symmetry, leaves at rate "
        f"{format_number(rate)} per unit of step size times steps"
    )
