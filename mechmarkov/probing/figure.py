"""A figure, and what to read from it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention of several heads on one sequence, for CircuitsVis.

    Attributes:
        tokens: The labels of the positions.
        patterns: Attention of each head, queries in rows.
        head_labels: "L0H0", ….
        others: The same heads on other sequences, for a reader to choose from.
    """

    tokens: list[str]
    patterns: Float[np.ndarray, "head query key"]
    head_labels: list[str]
    others: "tuple[AttentionView, ...]" = ()


@dataclass(frozen=True, eq=False)
class Figure:
    """A picture and what to read from it."""

    title: str
    caption: str
    kind: Literal["plotly", "attention"]
    content: go.Figure | AttentionView
