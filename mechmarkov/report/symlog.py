"""Training steps on an axis that is logarithmic and has a place for step 0."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int

_MAX_TICKS = 8


def symlog(
    step: Float[np.ndarray, "*step"] | Int[np.ndarray, "*step"] | float | int,
) -> Float[np.ndarray, "*step"]:
    """Returns where a training step lies on a symlog axis: log10(1 + step), so that step 0 has a place.

    >>> float(symlog(99))
    2.0
    """
    return np.asarray(np.log10(1 + np.asarray(step, dtype=np.float64)))


def is_symlog(figure: go.Figure) -> bool:
    """Returns whether `figures.lines(..., training_steps=True)` drew a figure: x is log10(1 + step).

    It reads the figure's `layout.meta`. A logarithmic axis of plotly's own is not one.
    """
    return bool((figure.layout.meta or {}).get("symlog"))


def symlog_ticks(last: float | int) -> dict[str, object]:
    """An axis of training steps up to the last one, with steps on its ticks."""
    powers = [10**k for k in range(10) if 10**k <= last]
    at = [0, *(n for power in powers for n in (power, 2 * power, 5 * power) if n <= last)]
    at = at if len(at) <= _MAX_TICKS else [0, *powers]
    return {
        "tickmode": "array",
        "tickvals": symlog(np.array(at)).tolist(),
        "ticktext": [f"{n:,}" for n in at],
    }
