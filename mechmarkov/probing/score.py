"""A score: one number about a run, and what chance would give."""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechmarkov.utils.text import clean, counted, format_number, format_range, is_utf8, shown

MAX_FLOAT = sys.float_info.max
NUMBER = (int, float, np.integer, np.floating)

# Values that scores can take, for `Probe.ranges`.
DIVERGENCE = "from 0, where the two laws are equal"
EXCESS = "0 at the best possible; below it only by the error of sampling"
OVER_CHANCE = "0 at chance, at most 1; below 0 where attention avoids these keys"


@dataclass(frozen=True)
class Score:
    """One number (or word) about a run, and what it would be by chance.

    Attributes:
        value: The measured value; None where it does not exist, and then `reason` says why.
        unit: "nats", "probability", "cosine", "tokens", … ("" for names).
        null: The exact chance value, or (low, middle, high): the 2.5, 50 and 97.5 % points over null models.
        interval: A 95 % interval of the value over the evaluation sequences.
        null_kind: What the null is, in words; without a null, what is known of chance.
        reason: Why there is no value; dropped where there is one.
        law: What is uncertain of the law that the value compares with, where that is an estimate.
        of: The one head or path that the value is of, where the score's name does not say it: "L0H1".
    """

    value: float | int | bool | str | None
    unit: str
    null: float | tuple[float, float, float] | None = None
    interval: tuple[float, float] | None = None
    null_kind: str | None = None
    reason: str | None = None
    law: str | None = None
    of: str | None = None

    def __post_init__(self) -> None:
        """Plain numbers only; one that is not finite is never a score: it becomes None with its reason."""
        if isinstance(self.value, np.generic):
            object.__setattr__(self, "value", self.value.item())
        if not isinstance(self.value, (float, int, type(None))) and not is_utf8(self.value):
            raise TypeError(f"value is {shown(self.value)}, expected a number, a text or None")
        for name in ("unit", "null_kind", "reason", "law", "of"):
            text = getattr(self, name)
            if not is_utf8(text) and (name == "unit" or text is not None):
                raise TypeError(f"{name} is {shown(text)}, expected a text")
        if not isinstance(self.value, (str, type(None))) and not abs(self.value) <= MAX_FLOAT:
            value = "beyond the range of floats" if isinstance(self.value, int) else self.value
            object.__setattr__(self, "reason", self.reason or f"the value is {value}")
            object.__setattr__(self, "value", None)
        if self.value is not None:
            object.__setattr__(self, "reason", None)
        elif not self.reason:
            raise ValueError("a score without a value needs a reason")
        object.__setattr__(self, "interval", _bounds("interval", self.interval, 2))
        exact = isinstance(self.null, NUMBER)
        null = _bounds("null", (self.null,), 1) if exact else _bounds("null", self.null, 3)
        object.__setattr__(self, "null", null[0] if exact and null else null)

    def __str__(self) -> str:
        """One line for people.

        >>> print(Score(0.5, "probability", null=0.1667, interval=(0.49, 0.51)))
        0.5 probability (0.49 to 0.51), null 0.1667
        >>> print(Score(None, "nats", reason="one step only"))
        no value: one step only
        """
        if self.value is None:
            return f"no value: {self.reason}"
        text = f"{format_value(self)} {self.unit}".rstrip() + (f" of {self.of}" if self.of else "")
        if self.interval is not None:
            text += f" ({' to '.join(map(format_number, self.interval))})"
        text += "" if self.null is None else f", null {format_null(self)}"
        return text if self.law is None else f"{text}, law {self.law}"

    def __repr__(self) -> str:
        """The line for people, for scores in a list.

        >>> [Score(0.5, "probability", null=0.1667)]
        [Score(0.5 probability, null 0.1667)]
        """
        return f"{type(self).__name__}({self})"

    def to_data(self) -> dict[str, Any]:
        """The score as plain JSON data (the contract of `summary.json`).

        Example:
            >>> Score(0.5, "nats", null=0.1).to_data()
            {'value': 0.5, 'unit': 'nats', 'null': 0.1}
        """
        data: dict[str, Any] = {"value": self.value, "unit": self.unit}
        for name in ("null", "interval", "null_kind", "reason", "law", "of"):
            value = getattr(self, name)
            if value is not None:
                data[name] = list(value) if isinstance(value, tuple) else value
        return data


def _bounds(name: str, bounds: Any, count: int) -> Any:
    """Bounds as a tuple of floats; None where there are none, or one is not finite."""
    if bounds is None:
        return None
    if not isinstance(bounds, tuple) or [isinstance(bound, NUMBER) for bound in bounds] != count * [True]:
        raise TypeError(f"{name} is {shown(bounds)}, expected {counted(count, 'number')}")
    plain = [bound.item() if isinstance(bound, np.generic) else bound for bound in bounds]
    return tuple(map(float, plain)) if all(abs(bound) <= MAX_FLOAT for bound in plain) else None


def format_value(score: Score, digits: int = 4) -> str:
    """Returns a score's value as text: a number, yes or no, a word, or a dash where there is none.

    Example:
        >>> format_value(Score(0.123456, "nats")), format_value(Score(True, ""))
        ('0.1235', 'yes')
    """
    value = score.value
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return clean(value) if isinstance(value, str) else format_number(value, digits)


def format_null(score: Score, digits: int = 4) -> str:
    """Returns a score's null as text: the exact value, or the middle of the null models and their range.

    Example:
        >>> format_null(Score(0.5, "nats", null=(0.1, 0.2, 0.3))), format_null(Score(0.5, "nats"))
        ('0.2 (0.1 to 0.3)', '–')
    """
    if score.null is None:
        return "–"
    if isinstance(score.null, tuple):
        low, middle, high = score.null
        return f"{format_number(middle, digits)} ({format_range(low, high, digits)})"
    return format_number(score.null, digits)


def standing(score: Score) -> str:
    """Returns how a value stands against its null: "above", "within", "below", or "" where nothing is known.

    The value's interval must lie wholly on one side of the null, or of the range over null models; a value
    without an interval is compared itself with that range. Nothing is said of an exact null without an
    interval.

    Example:
        >>> standing(Score(0.5, "nats", null=0.0, interval=(0.4, 0.6))), standing(Score(0.5, "nats"))
        ('above', '')
    """
    value, null = score.value, score.null
    if null is None or value is None or isinstance(value, (bool, str)):
        return ""
    if score.interval is None and not isinstance(null, tuple):
        return ""
    least, most = score.interval or (value, value)
    low, high = (null[0], null[2]) if isinstance(null, tuple) else (null, null)
    return "above" if least > high else "below" if most < low else "within"
