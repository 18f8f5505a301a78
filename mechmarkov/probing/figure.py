"""A figure, and what to read from it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Bool, Float


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention of several heads on one sequence, for CircuitsVis.

    Attributes:
        tokens: The labels of the positions.
        patterns: Attention of each head, queries in rows.
        head_labels: "L0H0", ….
        others: Views of these heads on other sequences, for a reader to choose from.
        ideal: The keys that an ideal head in each one's place reads, which the thumbnails outline.
        n_keys: How many keys the last position sees; the number of tokens, unless these are a context's end.
            Colours are multiples of the uniform attention on them.
    """

    tokens: list[str]
    patterns: Float[np.ndarray, "head query key"]
    head_labels: list[str]
    others: "tuple[AttentionView, ...]" = ()
    ideal: Bool[np.ndarray, "head query key"] | None = None
    n_keys: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Figure:
    """A picture and what to read from it.

    Attributes:
        title: What it shows.
        caption: What to read from it.
        kind: What draws it: plotly.js or CircuitsVis.
        content: What is drawn.
        key: Its name within the probe, the same at every step and in every run. The report's slider moves the
            figures of one key, and a comparison puts them in a row. The title by default: a probe whose title
            changes with the step gives a key.
        score: The score that the y axis shows; the report draws its null across.
    """

    title: str
    caption: str
    kind: Literal["plotly", "attention"]
    content: go.Figure | AttentionView
    key: str = ""
    score: str = ""

    def __post_init__(self) -> None:
        """The key is the title where none is given."""
        object.__setattr__(self, "key", self.key or self.title)

    def __repr__(self) -> str:
        """The title, and where the picture is."""
        return f"Figure({self.title!r}, drawn by {self.kind}: .content, .caption)"
