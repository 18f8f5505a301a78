"""Where the parts, the paths and the numbers of a circuit's picture lie, so that no text lies on another.

Everything is in pixels of a narrow screen, from the bottom left up; a wider screen stretches x alone, which
brings nothing nearer to anything.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechmarkov.models.components import head_index, mlp_index

NARROW = 330  # pixels; a figure on a phone
_ROW = 124  # from one layer to the next
_LETTER = 0.6  # a letter's width as a share of the font's size
_LINE = 1.3  # a line's height likewise
_FONT = 12
_APART = 10  # between two boxes
_POINTS = 25
_TOP = 1_000_000  # above every layer


@dataclass(frozen=True)
class Box:
    """A text's place: its middle and its size."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: "Box") -> bool:
        """Whether two texts overlap."""
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2
            and abs(self.y - other.y) < (self.height + other.height) / 2
        )


def text_box(x: float, y: float, text: str, font: int = _FONT) -> Box:
    """The room that a text takes, `<br>` between its lines."""
    rows = [re.sub("<[^>]*>", "", row) for row in text.split("<br>")]
    return Box(x, y, _LETTER * font * max(map(len, rows)) + 10, _LINE * font * len(rows) + 8)


def arrange(texts: Mapping[str, str]) -> tuple[dict[str, Box], float, float]:
    """The boxes of all parts, and the picture's width and height: one row a layer, heads side by side.

    A layer's MLP has a row of its own behind the heads; what is embedded is at the bottom, logits at the top.
    """
    rows: dict[tuple[int, int], list[str]] = {}
    for name in texts:
        rows.setdefault(_row(name), []).append(name)
    boxes: dict[str, Box] = {}
    widest = float(NARROW)
    for index, row in enumerate(sorted(rows)):
        # Parts of two layers are not drawn on one line: a path past a part would hide behind it.
        shift = (-1) ** index * 35.0 if 0 <= row[0] < _TOP and len(rows) > 3 else 0.0
        names = sorted(rows[row], key=lambda name: [int(n) for n in re.findall(r"\d+", name)] or [len(name)])
        here = [text_box(0.0, 0.0, texts[name]) for name in names]
        least = sum(box.width for box in here) + _APART * (len(here) + 1)
        widest = max(widest, least + 2 * abs(shift))
        room = max(least, 0.8 * NARROW if row[0] < 0 else 0.0)
        gap = (room - sum(box.width for box in here)) / (len(here) + 1)
        left = shift - room / 2
        for name, box in zip(names, here, strict=True):
            left += gap
            boxes[name] = Box(left + box.width / 2, _ROW * (index + 0.5), box.width, box.height)
            left += box.width
    return boxes, widest, float(_ROW * len(rows))


def _row(name: str) -> tuple[int, int]:
    """A part's layer, and whether it comes behind that layer's heads."""
    if head := head_index(name):
        return head[0], 0
    if (layer := mlp_index(name)) is not None:
        return layer, 1
    return (_TOP, 0) if name == "logits" else (-1, 0)


def bend(start: Box, end: Box, side: str) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    """A path's points: those of one pair of parts bow apart, and one past a row of parts goes round it."""
    past = (end.y - start.y) / _ROW - 1
    outward = -1.0 if start.x <= end.x else 1.0
    bow = {"": 0.0, "V": 0.0, "K": -0.9, "Q": 0.9}[side] * 40 + (outward * 150 if past > 0.5 else 0.0)
    middle = np.array([(start.x + end.x) / 2 + bow, (start.y + end.y) / 2])
    t = np.linspace(0.0, 1.0, _POINTS)[:, None]
    first, last = np.array([start.x, start.y]), np.array([end.x, end.y])
    points = (1 - t) ** 2 * first + 2 * t * (1 - t) * middle + t**2 * last
    return points[:, 0], points[:, 1]


def free_place(
    x: Float[np.ndarray, " point"], y: Float[np.ndarray, " point"], text: str, taken: Sequence[Box]
) -> tuple[float, float] | None:
    """The place on a path, the nearest to its middle, where a text meets no other; None where none is."""
    middle = len(x) // 2
    for i in sorted(range(len(x)), key=lambda i: abs(i - middle)):
        if not any(text_box(float(x[i]), float(y[i]), text, 11).meets(box) for box in taken):
            return float(x[i]), float(y[i])
    return None
