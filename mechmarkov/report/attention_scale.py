"""The one scale of all attention figures: multiples of uniform attention, from white to dark blue."""

import numpy as np
from jaxtyping import Float

LOG2_DARKEST = 3  # of a multiple of uniform attention: one scale for every figure of every run
FLAT_LOG2 = 0.2  # of a multiple of uniform attention; rows below it say nothing

ATTENTION_SCALE = {
    "zmin": 0.0,
    "zmax": LOG2_DARKEST,
    "colorscale": [[0.0, "#ffffff"], [1.0, "#08306b"]],
    "showscale": False,
    "texttemplate": None,
    "text": None,
}


def multiples(pattern: Float[np.ndarray, "*head query key"], n_keys: int) -> np.ndarray:
    """Attention as log2 of its multiple of uniform attention, 0 where it is uniform or less.

    Args:
        pattern: The last rows of a causal pattern; its last row sees all keys.
        n_keys: How many keys the last row sees.
    """
    n = pattern.shape[-1]
    seen = n_keys - n + 1 + np.arange(n)[:, None]
    return np.asarray(np.clip(np.log2(np.maximum(pattern * seen, 1e-9)), 0.0, LOG2_DARKEST))


def shown_end(shown: int, positions: int) -> str:
    """Returns what a caption says if a figure shows only the end of a context; nothing if it shows all of it.

    >>> shown_end(24, 97), shown_end(24, 24)
    (' The last 24 of 97 positions are shown.', '')
    """
    return f" The last {shown} of {positions} positions are shown." if shown < positions else ""
