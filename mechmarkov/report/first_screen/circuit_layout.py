"""Where the components, the paths and the numbers of a circuit's picture lie, so that no text covers another.

Everything is in pixels of a phone's screen, from the bottom left up; a wider screen stretches only x, which
brings nothing nearer to anything.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechmarkov.models.components import head_index, mlp_index

PHONE_WIDTH = 330  # pixels
NUMBER_SIZE = 11  # pixels of the numbers on paths
_ROW_HEIGHTS = (72, 102)  # pixels from one layer to the next, at least and at most
_HEIGHT = 280  # pixels of the picture where that is enough
_MANY_ROWS = 4  # beyond, each is as high as its tallest box and a little more, so that answers stay in sight
_BETWEEN_ROWS = 20  # pixels, then
_LETTER_WIDTH = 0.6  # a letter's width as a share of the font's size
_LINE_HEIGHT = 1.3  # a line's height likewise
_GAP = 16  # pixels between two boxes
_CLEARANCE = 18  # pixels between a row of boxes and a path past it
_POINTS = 41


@dataclass(frozen=True)
class Box:
    """A text's place: its middle and its size."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: "Box") -> bool:
        """Returns whether two texts overlap."""
        return bool(
            abs(self.x - other.x) < (self.width + other.width) / 2
            and abs(self.y - other.y) < (self.height + other.height) / 2
        )


def text_box(x: float, y: float, text: str, font: int = 12) -> Box:
    """The room that a text takes, `<br>` between its lines; the font's size in pixels.

    A component's text has a border round it, a number has none.
    """
    rows = [re.sub("<[^>]*>", "", row) for row in text.split("<br>")]
    border = 3 if font == NUMBER_SIZE else 8
    width = _LETTER_WIDTH * font * max(map(len, rows)) + border + 2
    return Box(x, y, width, _LINE_HEIGHT * font * len(rows) + border)


def arrange(texts: Mapping[str, str]) -> tuple[dict[str, Box], float, float]:
    """The boxes of all components, and the picture's width and height: one row a layer, heads side by side.

    A layer's MLP has a row of its own above its heads; what is embedded is at the bottom, logits at the top.
    """
    rows: dict[tuple[float, int], list[str]] = {}
    for name in sorted(texts, key=lambda name: (head_index(name) or (0, 0), len(name))):
        rows.setdefault(_row(name), []).append(name)
    boxes: dict[str, Box] = {}
    middles, height = _heights([[texts[name] for name in rows[key]] for key in sorted(rows)])
    widest = float(PHONE_WIDTH)
    for index, (layer, order) in enumerate(sorted(rows)):
        # Components of two layers are not drawn on one line: a path past one would hide behind it.
        shift = (-1) ** index * 15.0 if 0 <= layer < np.inf and len(rows) > 3 else 0.0
        row = {name: text_box(0.0, 0.0, texts[name]) for name in rows[layer, order]}
        filled = sum(box.width for box in row.values())
        least = filled + _GAP * (len(row) + 1)
        room = max(least, 0.8 * PHONE_WIDTH if layer < 0 else 0.85 * PHONE_WIDTH)
        widest = max(widest, room + 2 * abs(shift))
        left = shift - room / 2
        for name, box in row.items():
            left += (room - filled) / (len(row) + 1)
            boxes[name] = Box(left + box.width / 2, middles[index], box.width, box.height)
            left += box.width
    return boxes, widest, height


def _heights(rows: Sequence[Sequence[str]]) -> tuple[list[float], float]:
    """Returns the middle of each row of texts, from the bottom up, and the height of all."""
    each = [float(np.clip(_HEIGHT / len(rows), *_ROW_HEIGHTS))] * len(rows)
    if len(rows) > _MANY_ROWS:
        each = [max(text_box(0.0, 0.0, text).height for text in row) + _BETWEEN_ROWS for row in rows]
    ends = np.cumsum(each)
    return (ends - np.array(each) / 2).tolist(), float(ends[-1])


def _row(name: str) -> tuple[float, int]:
    """A component's layer, and whether it comes after that layer's heads."""
    head, mlp = head_index(name), mlp_index(name)
    if head is not None:
        return float(head[0]), 0
    if mlp is not None:
        return float(mlp), 1
    return (np.inf, 0) if name == "logits" else (-1.0, 0)


def bend(
    start: Box, end: Box, side: str, boxes: Iterable[Box] = ()
) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    """A path's points: paths between two components bow apart, one past a row goes round its boxes."""
    bow = {"": 0.0, "V": 0.0, "K": -36.0, "Q": 36.0}[side]
    passed = [box for box in boxes if start.y + 1 < box.y < end.y - 1]
    between = (start.x + end.x) / 2
    if passed:
        bow = 2 * (_way_past(passed, start.x, end.x) - between) + bow / 3
    first, last = np.array([start.x, start.y]), np.array([end.x, end.y])
    middle = np.array([between + bow, (start.y + end.y) / 2])
    t = np.linspace(0.0, 1.0, _POINTS)[:, None]
    points = (1 - t) ** 2 * first + 2 * t * (1 - t) * middle + t**2 * last
    return points[:, 0], points[:, 1]


def _way_past(boxes: Sequence[Box], start: float, end: float) -> float:
    """Returns where a path makes the least detour past boxes: outside them all, or in a wide enough gap."""
    edges = sorted((box.x - box.width / 2, box.x + box.width / 2) for box in boxes)
    ways, right = [edges[0][0] - _CLEARANCE], edges[0][1]
    for left, far in edges[1:]:
        if left - right >= _CLEARANCE:
            ways.append((left + right) / 2)
        right = max(right, far)
    return min([*ways, right + _CLEARANCE], key=lambda way: abs(way - start) + abs(way - end))


def free_place(
    x: Float[np.ndarray, " point"],
    y: Float[np.ndarray, " point"],
    text: str,
    taken: Sequence[Box],
    lines: Sequence[tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]] = (),
) -> tuple[int, Box] | None:
    """The point of a path whose number covers no other text, and the number's box.

    Next to the path, nearest to its middle, where that covers none of `lines`. Else on it, far from the
    arrow's head. None where it has no room.
    """
    from_middle = sorted(range(len(x)), key=lambda i: abs(i - len(x) // 2))
    bowed_left = x[len(x) // 2] < (x[0] + x[-1]) / 2
    outside = (-1 if bowed_left else 1) * text_box(0.0, 0.0, text, NUMBER_SIZE).width / 2
    for side in (outside, -outside, 0.0):
        for i in from_middle if side else range(len(x)):
            place = text_box(float(x[i]) + side, float(y[i]), text, NUMBER_SIZE)
            covers = side and any(_covers(place, *line) for line in lines)
            if not covers and not any(place.meets(box) for box in taken):
                return i, place
    return None


def _covers(box: Box, x: Float[np.ndarray, " point"], y: Float[np.ndarray, " point"]) -> bool:
    """Returns whether a text lies on a path, but for the edge of its box."""
    near = (np.abs(x - box.x) < box.width / 2 - 1) & (np.abs(y - box.y) < box.height / 2 - 1)
    return bool(near.any())
