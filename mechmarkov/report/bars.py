"""A score as a small picture: where its value and its null stand between the ends of a scale."""

import math
from dataclasses import dataclass

from mechmarkov.probing.score import Score, format_null
from mechmarkov.utils.text import format_number, format_range

# Units whose scale has ends of its own; any other score is drawn from 0 to the largest number in its row.
_BOUNDED_UNITS = {
    "probability": 0.0,
    "share": 0.0,
    "fraction": 0.0,
    "accuracy": 0.0,
    "cosine": -1.0,
    "correlation": -1.0,
}


@dataclass(frozen=True)
class Bar:
    """Where a score's marks lie on its scale, in percent of the scale's width, and the same in words."""

    value: float
    zero: float
    null: float | None
    null_range: tuple[float, float] | None
    interval: tuple[float, float] | None
    low: str
    high: str
    description: str


def bar(score: Score) -> Bar | None:
    """Returns the picture of a score, or None where there is no number or nothing to see it against."""
    value, null = score.value, score.null
    if value is None or isinstance(value, (bool, str)):
        return None
    middle = null[1] if isinstance(null, tuple) else null
    band = (null[0], null[2]) if isinstance(null, tuple) else None
    if middle is None and score.interval is None and score.unit not in _BOUNDED_UNITS:
        return None
    value = float(value)
    numbers = [value, *([] if middle is None else [middle]), *(band or ()), *(score.interval or ())]
    if not all(math.isfinite(number) for number in numbers):
        return None
    low, high = _scale(score.unit, numbers)
    if low == high:
        return None

    def place(number: float) -> float:
        return round(100 * (number - low) / (high - low), 2)

    return Bar(
        value=place(value),
        zero=place(min(max(0.0, low), high)),
        null=None if middle is None else place(middle),
        null_range=None if band is None else (place(band[0]), place(band[1])),
        interval=None if score.interval is None else (place(score.interval[0]), place(score.interval[1])),
        low=format_number(low),
        high=format_number(high),
        description=_describe(score, value, low, high),
    )


def _scale(unit: str, numbers: list[float]) -> tuple[float, float]:
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    if unit in _BOUNDED_UNITS:
        low = _BOUNDED_UNITS[unit] if low < 0 else low
        return min(low, *numbers), max(1.0, high)
    return low, high


def _describe(score: Score, value: float, low: float, high: float) -> str:
    parts = [f"value {format_number(value)}"]
    if score.interval is not None:
        parts.append(f"interval {format_range(*score.interval)}")
    if score.null is not None:
        parts.append(f"null {format_null(score)}")
    return f"{', '.join(parts)}, on a scale of {format_range(low, high)}"
