"""The learning curve as a still picture, for a page that runs no scripts: an SVG of lines and words."""

from html import escape

import numpy as np

from mechmarkov.probing.names import in_words
from mechmarkov.probing.outcome import Findings
from mechmarkov.report.first_screen.readings import course, losses_of
from mechmarkov.utils.text import format_number

_WIDTH, _HEIGHT = 760, 300  # pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 560, 36, 260  # of the plot
_LINE_OF_TEXT = 14  # pixels


def still_curve(result: Findings) -> str | None:
    """Loss in nats or share of right predictions (`course`) at each probed step; None without losses.

    Lines are exact predictors. With one step it is a point. Steps are spaced by the logarithm of step + 1.
    """
    behaviour = losses_of(result)
    if behaviour is None:
        return None
    data = behaviour.data
    steps, drawn_course = data["step"].values, course(behaviour)
    values = drawn_course.values
    levels = {
        name if name == "best" else in_words(name): value for name, value in drawn_course.levels.items()
    }
    low, high = min(*levels.values(), *values), max(*levels.values(), *values)
    y_title = "loss (nats)" if drawn_course.of_loss else "right predictions (share)"

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low or 1)

    time = np.log1p(steps.astype(float))
    x = _LEFT + (_RIGHT - _LEFT) * (time - time[0]) / (time[-1] - time[0] or 1)
    places = [(f"{a:.1f}", f"{y(b):.1f}") for a, b in zip(x, values, strict=True)]
    points = " ".join(",".join(place) for place in places)
    drawn = [f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="3"/>']
    drawn += [f'<circle cx="{cx}" cy="{cy}" r="3.5" fill="#0072b2"/>' for cx, cy in places]
    free = float("inf")  # names of near levels are moved up, so that none covers another
    for name, level in sorted(levels.items(), key=lambda item: item[1]):
        free = min(y(level) + 4, free - _LINE_OF_TEXT)
        line = f'x1="{_LEFT}" x2="{_RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}"'
        drawn.append(f'<line {line} stroke="#888" stroke-dasharray="2 3"/>')
        drawn.append(_text(_RIGHT + 8, free, f"{name} {format_number(level)}"))
    drawn += [_text(x[0], _BOTTOM + 20, f"step {steps[0]}", "middle")]
    drawn += [_text(x[-1], _BOTTOM + 20, f"step {steps[-1]}", "middle")] * (len(steps) > 1)
    drawn += [_text(8, _TOP - 18, y_title), _text(8, y(values[0]) + 4, format_number(values[0]))]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
