"""The rows of a tile's small picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mechmarkov.claims.claim import Claim
from mechmarkov.report.score_picture import DIGITS
from mechmarkov.report.symlog import symlog
from mechmarkov.report.words.came import in_order, was_there, what_came
from mechmarkov.report.words.names import TINY, token
from mechmarkov.utils.text import format_number

MAX_BARS = 5
MAX_STEPS = 6  # rows of what came at a step


@dataclass(frozen=True)
class Bar:
    """A row of a small picture: where its bar begins and ends, in percent of the width."""

    label: str
    start: float
    end: float
    text: str


def bars_from_zero(values: Mapping[str, float]) -> tuple[Bar, ...]:
    """Returns bars on one scale with a zero, to each of the first five values."""
    known = {name: value for name, value in values.items() if np.isfinite(value)}
    if not known:
        return ()
    shown = dict(list(known.items())[:MAX_BARS])
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


def _row(claim: Claim) -> str:
    """The label of a bar: a few letters."""
    parent = claim.condition("the parent")
    return what_came(claim) if parent is None else f"reads {token(parent.words)}"
