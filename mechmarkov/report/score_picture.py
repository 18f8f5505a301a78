"""A score as a small picture: where its value and its null stand between the ends of a scale."""

from dataclasses import dataclass, replace
from typing import Any

from mechmarkov.probing.score import Score, format_null
from mechmarkov.utils.text import format_number, format_range

DIGITS = 3  # of a number on the page
MIN_SHOWN_SHARE = 1e-5  # of a score's largest number
MIN_SHOWN = 1e-9  # of a score that ends at 1: models round to 1e-7
# Units whose scale ends at 1, and where it begins; any other score is drawn from 0 to the largest number.
_LOWEST = dict.fromkeys(("probability", "share", "fraction", "accuracy"), 0.0)
_LOWEST |= dict.fromkeys(("cosine", "correlation"), -1.0)


@dataclass(frozen=True)
class ScorePicture:
    """The places of a score's marks on its scale, in percent of the scale's width, and the same in words."""

    value: float
    zero: float
    null: float | None
    null_range: tuple[float, float] | None
    interval: tuple[float, float] | None
    low: str
    high: str
    description: str


def rounded(score: Score) -> Score:
    """A score to show: ends of its null and its interval below 1e-5 of its largest number are 0.

    Of a probability and whatever else ends at 1, so is any number below 1e-9.

    >>> rounded(Score(0.5, "nats", (-2e-8, 0.0, 0.25))).null
    (0.0, 0.0, 0.25)
    >>> rounded(Score(8.5e-14, "share")).value, rounded(Score(8.5e-14, "nats")).value
    (0.0, 8.5e-14)
    """
    null, interval = score.null, score.interval
    ends = [*(null if isinstance(null, tuple) else [null or 0.0]), *(interval or ())]
    value = score.value if isinstance(score.value, (int, float)) else 0.0
    floor = MIN_SHOWN if score.unit in _LOWEST else 0.0
    least = max(floor, MIN_SHOWN_SHARE * max(abs(number) for number in (value, *ends)))

    def shown(numbers: Any) -> Any:
        return tuple(0.0 if abs(number) < least else number for number in numbers)

    return replace(
        score,
        value=0.0 if isinstance(score.value, float) and abs(value) < floor else score.value,
        null=shown(null) if isinstance(null, tuple) else null,
        interval=None if interval is None else shown(interval),
    )


def score_picture(score: Score) -> ScorePicture | None:
    """The picture of a score, or None where there is no number or nothing to see it against."""
    value, null, interval = score.value, score.null, score.interval
    if value is None or isinstance(value, (bool, str)):
        return None
    middle = null[1] if isinstance(null, tuple) else null
    null_range = (null[0], null[2]) if isinstance(null, tuple) else None
    if middle is None and interval is None and score.unit not in _LOWEST:
        return None
    numbers = [value, *([] if middle is None else [middle]), *(null_range or ()), *(interval or ())]
    low, high = float(min(0.0, *numbers)), float(max(0.0, *numbers))
    if score.unit in _LOWEST:
        low, high = min(low, _LOWEST[score.unit]) if low < 0 else low, max(1.0, high)
    if low == high:
        return None

    def place(number: float | int) -> float:
        return round(100 * (number - low) / (high - low), 2)

    words = [f"value {format_number(value, DIGITS)}"]
    words += [] if interval is None else [f"interval {format_range(*interval, DIGITS)}"]
    words += [] if null is None else [f"null {format_null(score, DIGITS)}"]
    return ScorePicture(
        value=place(value),
        zero=place(0.0),
        null=None if middle is None else place(middle),
        null_range=None if null_range is None else (place(null_range[0]), place(null_range[1])),
        interval=None if interval is None else (place(interval[0]), place(interval[1])),
        low=format_number(low, DIGITS),
        high=format_number(high, DIGITS),
        description=f"{', '.join(words)}, on a scale of {format_range(low, high, DIGITS)}",
    )
