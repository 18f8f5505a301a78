"""What the mean of all tokens tells of the label, exactly.

At a small start attention is flat, and all a one-layer model reads is the token mean `m`, the share of each
state among the tokens before the label (Shi & Cao 2025). A plug-in mutual information on samples is bias and
little else; the moments below are exact for any chain.
"""

import numpy as np
from jaxtyping import Float

from mechmarkov.theory.predictors import Matrix
from mechmarkov.theory.walk.first_step import first_step_gradient, occupancy

# A variance below this is rounding: the token mean's entries are shares, of order one.
NO_VARIANCE = 1e-14


def token_mean_variance(P: Matrix, mu: Float[np.ndarray, " state_from"], length: int) -> tuple[float, float]:
    """Variance of the token mean between labels, and its whole variance, both summed over states.

    With `n = length - 1` tokens, `E[m_x 1{label = y}]` is the first-step gradient over n, which gives the
    first; the second is `1/n² sum_ij Pr(s_i = s_j = x)` less the squared mean.

    Returns:
        `(between, total)`, squared probabilities; `0 <= between <= total`.

    Example:
        >>> turn = np.roll(np.eye(3), 1, axis=1)  # 0 -> 1 -> 2 -> 0
        >>> token_mean_variance(turn, np.full(3, 1 / 3), length=7)  # two whole turns: always the same mean
        (0.0, 0.0)
    """
    n = length - 1
    joint = first_step_gradient(P, mu, length) / n  # [label, token]
    label, mean = joint.sum(1), joint.sum(0)
    seen = label > 0
    between = float((((joint[seen] - np.outer(label[seen], mean)) ** 2).sum(1) / label[seen]).sum())
    until = np.cumsum(occupancy(P, mu, length), axis=0)  # [i, state]: expected visits up to position i
    second = until[-1].copy()
    power = np.eye(len(P))
    for m in range(1, n):
        power = power @ P
        second += 2 * np.diag(power) * until[n - 1 - m]
    total = float((second / n**2 - mean**2).sum())
    between, total = (variance if variance > NO_VARIANCE else 0.0 for variance in (between, total))
    return between, total
