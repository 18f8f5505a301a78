"""The four questions, each answered in one sentence made of the headline scores."""

from dataclasses import dataclass

from mechmarkov.probing.outcome import Findings
from mechmarkov.utils.text import format_number

_FLAT = 1e-9  # of a first step's information: below, it is rounding


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
    nearest, loss = (
        _value(result, "behaviour", "nearest_predictor"),
        _number(result, "behaviour", "excess_loss"),
    )
    right, possible = (_number(result, "behaviour", name) for name in ("accuracy", "optimal_accuracy"))
    if nearest is None or loss is None or right is None:
        sentence = result.outcomes["behaviour"].verdict
    else:
        nearest = str(nearest)
        away = _number(result, "behaviour", f"kl_{nearest.removeprefix('in_context_')}")
        said = nearest.replace("in_context", "in-context").replace("_", " ")
        name = f"the {'uniform law' if nearest == 'uniform' else said}"
        sentence = f"Of the exact predictors it is nearest to {name}"
        sentence += "" if away is None else f", {format_number(away)} nats away"
        sentence += f"; its loss is {format_number(loss)} nats above the best possible"
        sentence += f", and it is right {right:.1%} of the time"
        sentence += "." if possible is None else f", where {possible:.1%} is possible."
    return Answer("What has it learned?", sentence, ("behaviour",))


def _lives(result: Findings) -> Answer | None:
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


# What has happened when a measure of progress passes one half (the probe `dynamics`).
_EVENTS = {
    "t_selection": "half of the attention was on the parent",
    "t_unigram": "half of the way from the uniform law to the unigram was done",
    "t_bigram": "half of the way from the unigram to the bigram was done",
}


def _came(result: Findings) -> Answer | None:
    question = "How did it get there?"
    if "dynamics" not in result.outcomes:
        if "dynamics" in result.skipped and len(result.steps) == 1:
            one = "One step was probed; with all its steps (--steps all) the run tells."
            return Answer(question, one, ())
        return None
    scores = result.outcomes["dynamics"].scores
    events = []
    for name, what in _EVENTS.items():
        score = scores.get(name)
        if score is not None and isinstance(score.value, (int, float)):
            low, high = score.interval or (score.value, score.value)
            when = f"by step {high:g}" if low == high else f"between steps {low:g} and {high:g}"
            events.append((score.value, f"{what} {when}"))
    if not events:
        return Answer(question, result.outcomes["dynamics"].verdict, ("dynamics",))
    said = ", then ".join(words for _, words in sorted(events, key=lambda event: event[0]))
    return Answer(question, f"{said[0].upper()}{said[1:]}.", ("dynamics",))


def _stuck(result: Findings) -> Answer | None:
    question = "Why is it stuck?"
    trapped, point = _value(result, "symmetry", "trapped"), _point(result)
    if trapped is None:
        return None if not point else Answer(question, f"It is {point}.", ("landscape",))
    flat = _number(result, "symmetry", "first_step_information")
    tells = "" if flat is None else f" (information {format_number(flat)})"
    if trapped is True:
        sentence = f"By symmetry: the first gradient tells no state from another{tells}, attention stays flat"
        sentence += " and every later gradient keeps it so"
    elif flat is not None and flat > _FLAT:
        sentence = f"Not by symmetry: the first gradient tells states apart{tells}"
    else:
        sentence = "Not by symmetry: the symmetric trap does not hold it"
    return Answer(question, f"{sentence}{'; it is ' if point else ''}{point}.", ("symmetry", "landscape"))


def _point(result: Findings) -> str:
    """What kind of point it is at, in words; empty where the landscape was not asked."""
    kind = _value(result, "landscape", "kind")
    low = _number(result, "landscape", "hessian_min")
    rate = _number(result, "landscape", "escape_rate")
    if kind == "not stationary":
        return "not at a stationary point: it still moves"
    if kind not in ("minimum", "saddle"):
        return ""
    curved = "" if low is None else f" (smallest Hessian eigenvalue {format_number(low)})"
    if kind == "minimum":
        return f"at a minimum{curved}"
    if not rate:
        return f"at a saddle{curved}"
    return (
        f"at a saddle{curved}, which plain gradient descent, once it is off the symmetry, leaves at rate "
        f"{format_number(rate)} per unit of step size times steps"
    )
