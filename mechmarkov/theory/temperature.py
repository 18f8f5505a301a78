"""The temperature at which predictions are nearest to a law: "right, but half as sure" is not another law.

For predictions q at inverse temperature s, `q_s = softmax(s log q)`, KL(p ‖ q_s) is convex in s. Its slope is
`E_{q_s}[log q] - E_p[log q]` and its curvature the variance of log q under q_s, so that Newton's method finds
the minimum in a few steps.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from mechmarkov.theory.kernel import FLOOR, kl

COLDEST, HOTTEST = 256.0, 1 / 32.0  # inverse temperatures; beyond, predictions are certain, or uniform
STEPS = 16
ROUNDING = 1e-9  # of slopes, as a share of the largest log probability


def best_temperature(
    p: Float[np.ndarray, "batch read state"],
    q: Float[np.ndarray, "batch read state"],
    *,
    opposite: bool = False,
) -> tuple[float, Float[np.ndarray, " batch"]]:
    """Returns the temperature of q that is nearest to p, and KL(p ‖ q at it) of each sequence (nats).

    A temperature above 1 means that q is surer than p: it has to be heated.

    Args:
        p: A law.
        q: Predictions.
        opposite: Whether temperatures below 0 are asked too, at which what q makes unlikely is likely.

    Example:
        >>> p = np.array([[[0.8, 0.2]]])
        >>> q = p**0.5 / (p**0.5).sum(-1, keepdims=True)  # half as sure
        >>> temperature, nats = best_temperature(p, q)
        >>> round(temperature, 4), bool(nats.max() < 1e-9)
        (0.5, True)
        >>> round(best_temperature(p, p[..., ::-1], opposite=True)[0], 4)
        -1.0
    """
    # What is far below the floor of a KL still tells how sure q is; a zero is as unlikely as the least.
    logs = np.log(np.maximum(q, q.min(initial=FLOOR, where=q > 0)))
    # The slope at s = 0 says on which side of it the minimum of a convex function is. Of the uniform law it
    # is 0, or rounding.
    slope = float(logs.mean()) - float((p * logs).sum(-1).mean())
    sign = -1 if opposite and slope > ROUNDING * float(np.abs(logs).max()) else 1
    logs = sign * logs
    aim, s = float((p * logs).sum(-1).mean()), 1.0
    low, high = HOTTEST, COLDEST
    for _ in range(STEPS):
        heated = softmax(s * logs, axis=-1)
        mean = (heated * logs).sum(-1)
        slope = float(mean.mean()) - aim
        low, high = (s, high) if slope < 0 else (low, s)
        curvature = float(((heated * logs**2).sum(-1) - mean**2).mean())
        step = s - slope / curvature if curvature > 0 else low
        s = step if low < step < high else float(np.sqrt(low * high))
    return sign / s, np.asarray(np.maximum(kl(p, softmax(s * logs, axis=-1)), 0).mean(-1))
