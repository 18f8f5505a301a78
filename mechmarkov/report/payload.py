"""Figures as data: the JSON that the report's renderer reads, with every label made harmless."""

import base64
import json
import math
import re
import textwrap
from typing import Any

import numpy as np

from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.utils.text import clean, label, shorten

# plotly.js reads these tags in labels; anything else that begins with "<" is text and is escaped.
_PLOTLY_TAGS = re.compile(r"<(?!/?(?:b|i|br|sub|sup|extra)\s*/?>)", re.IGNORECASE)
_LONGEST_TEXT = 400
_LONGEST_TICK = 40
_LONGEST_LINE = 36
_TICK_KEYS = frozenset({"ticktext", "categoryarray", "name"})
# A browser draws this many squared cells of CircuitsVis without a pause; longer contexts show their end.
_MAX_POSITIONS = 128
MOST_LEVEL = 2**15 - 1


def script_json(data: object) -> str:
    r"""JSON that can stand in a script block: no tag, no entity, no line separator, no NaN.

    Raises:
        ValueError: when a number is not finite.

    >>> script_json({"a": "</script>"})
    '{"a":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def figure_data(figure: Figure) -> dict[str, Any]:
    """A figure as plain data for the renderer: strings clean and short, numbers finite or null.

    Raises:
        ValueError: when an attention view's patterns are not `[head, query, key]` over its tokens and heads.
    """
    if isinstance(figure.content, AttentionView):
        view = figure.content
        data = _sequence_data(view, view.head_labels)
        others = [_sequence_data(other, view.head_labels) for other in view.others]
        return {"kind": "attention", **data, **({"others": others} if others else {})}
    plot = json.loads(figure.content.to_json())  # plotly's own encoder: arrays as base64, NaN as null
    plot.get("layout", {}).pop("title", None)  # the page writes it as a heading
    plot = _harmless(plot)
    for name, axis in plot.get("layout", {}).items():
        if name.startswith(("xaxis", "yaxis")) and "text" in axis.get("title", ()):
            axis["title"]["text"] = _wrapped(axis["title"]["text"])
    return {"kind": "plotly", "figure": plot}


def _wrapped(title: str) -> str:
    """An axis' title in lines that a phone is wide enough for: plotly.js breaks none by itself."""
    lines = textwrap.wrap(title, _LONGEST_LINE, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(lines) if "<br>" not in title else title


def _sequence_data(view: AttentionView, heads: list[str]) -> dict[str, Any]:
    n_heads, n_tokens = len(heads), len(view.tokens)
    if view.patterns.shape != (n_heads, n_tokens, n_tokens):
        raise ValueError(
            f"attention patterns have shape {list(view.patterns.shape)}, expected [head, query, key] = "
            f"{[n_heads, n_tokens, n_tokens]} for {n_heads} head labels and {n_tokens} tokens"
        )
    shown = slice(max(0, n_tokens - _MAX_POSITIONS), None)
    patterns = np.nan_to_num(view.patterns[:, shown, shown].astype(np.float64), posinf=0.0, neginf=0.0)
    strongest = float(np.abs(patterns).max(initial=1e-12))
    causal = bool(np.allclose(np.triu(patterns, k=1), 0.0))
    return {
        # CircuitsVis draws these on a canvas, where they are text whatever they hold.
        "tokens": [label(token, limit=16) for token in view.tokens[shown]],
        "heads": [label(head) for head in heads],
        "patterns": _levels(patterns / strongest, causal),
        "strongest": strongest,
        "causal": causal,
        "positions": view.n_keys or n_tokens,
        **({} if view.ideal is None else {"ideal": _bits(view.ideal[:, shown, shown])}),
    }


def _levels(shares: np.ndarray, causal: bool) -> str:
    """Shares of the strongest in 16 bits, row by row, of a causal pattern without what is never seen."""
    below = shares[:, *np.tril_indices(shares.shape[-1])] if causal else shares
    levels: bytes = np.round(below * MOST_LEVEL).astype("<i2").tobytes()
    return base64.b64encode(levels).decode()


def _bits(cells: np.ndarray) -> str:
    """Cells `[head, query, key]` as bits, row by row, the first in the highest bit."""
    return base64.b64encode(np.packbits(cells.ravel()).tobytes()).decode()


def _harmless(data: Any, key: str = "") -> Any:
    """Plotly's data with strings clean, short and without tags beyond plotly.js' own few."""
    if isinstance(data, dict):
        return {name: value if name == "bdata" else _harmless(value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [_harmless(value, key) for value in data]
    if isinstance(data, str):
        text = clean(data)
        text = label(text, _LONGEST_TICK) if key in _TICK_KEYS else shorten(text, _LONGEST_TEXT)
        return _PLOTLY_TAGS.sub("&lt;", text)
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
