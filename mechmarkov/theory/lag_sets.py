"""Which set of lags a feature layer selects first: the modified χ² information of Chen et al. (2024).

Their model (arXiv 2409.10559; public code) compares the states at lags 1 .. M before the answer with those
before each earlier position i. A polynomial kernel gives position i the score `a sum_S p_S K_S(i)`, where S
is a set of lags, `K_S(i)` is 1 where the states at all lags of S agree, and the shares `p_S = c_S² / sum c²`
are trained. The output is the attended frequency of each state, the loss `-log(output + eps)`. At `a = 0`

    dL/da = -sum_S p_S J_S,
    J_S = E[ sum_k π(k) / (f_k + eps) mean_i K_S(i) (1{x_i = k} - f_k) ],

where π is the answer's law and f are the frequencies in the input. In a long input, with eps = 0,

    J_S = sum_s μ_S(s)² ( sum_k P(k | s)² / μ(k) - 1 ),

with the stationary laws μ_S of the states at the lags of S and μ of one state. With μ_S to the first power it
would be the χ² information. The second power is the chance that another position agrees: a larger set is told
more by each match, and matches less often. To first order in a, gradient flow on c has

    p_S(t) proportional to p_S(0) exp(4 a t J_S / sum c²),    sum c² constant,

so that the set of largest J_S takes all. A set that holds the parents and more is never above them: the law
of the next state is the parents', and the squares of parts sum to at most the square of the whole. The
paper's proof was not read. The criterion is that of its code (`chi_square_mutual_info`, power 2); all else is
derived here.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int

Kernels = Float[np.ndarray, "kernel *history state"]
Joint = Float[np.ndarray, "kernel *history state"]
LagSet = tuple[int, ...]


def lag_sets(window: int, most: int) -> list[LagSet]:
    """All sets of at most that many lags of a window, the empty one first.

    Example:
        >>> lag_sets(3, 2)
        [(), (1,), (2,), (3,), (1, 2), (1, 3), (2, 3)]
    """
    return [each for size in range(most + 1) for each in combinations(range(1, window + 1), size)]


def over_window(
    kernels: Kernels, lags: Sequence[int], window: int
) -> Float[np.ndarray, "kernel *window state"]:
    """Kernels that read some lags, as kernels of all lags of a window.

    Args:
        kernels: An axis of length K for each lag, the furthest first, and the law of the next state.
        lags: Ascending.
        window: The furthest lag of the result.

    Raises:
        ValueError: The lags are not ascending lags of the window, or not as many as the kernels read.

    Example:
        >>> P = np.array([[0.9, 0.1], [0.4, 0.6]])  # of the state two back
        >>> over_window(P[None], [2], window=2)[0, 1].tolist()  # after (1, 0) and (1, 1): the furthest first
        [[0.4, 0.6], [0.4, 0.6]]
    """
    wanted = [*lags] == sorted(set(lags)) and min(lags) >= 1 and max(lags) <= window
    if not wanted or len(lags) != kernels.ndim - 2:
        raise ValueError(
            f"lags are {list(lags)}, expected {kernels.ndim - 2} ascending lags from 1 to {window}"
        )
    n = kernels.shape[-1]
    axes = [n if lag in lags else 1 for lag in range(window, 0, -1)]
    return np.broadcast_to(
        kernels.reshape(len(kernels), *axes, n), (len(kernels), *(window + 1) * (n,))
    ).copy()


def window_law(kernels: Kernels) -> Joint:
    """The stationary law of the states at all lags of a window and of the next state.

    By the elimination of Grassmann, Taksar & Heyman (1985), which subtracts nothing. All entries of a kernel
    are above zero: one closed class of histories.

    Example:
        >>> window_law(np.array([[[0.75, 0.25], [0.25, 0.75]]]))[0].tolist()
        [[0.375, 0.125], [0.125, 0.375]]
    """
    n = kernels.shape[-1]
    rows = kernels.reshape(len(kernels), -1, n)
    histories = rows.shape[1]
    steps = np.zeros((len(kernels), histories, histories))
    at = np.arange(histories)[:, None]
    steps[:, at, (at * n + np.arange(n)) % histories] = rows
    leaves = np.ones((len(kernels), histories))
    for h in range(histories - 1, 0, -1):
        leaves[:, h] = steps[:, h, :h].sum(-1)
        steps[:, :h, :h] += steps[:, :h, h, None] * (steps[:, h, :h] / leaves[:, h, None])[:, None]
    law = np.zeros_like(leaves)
    law[:, 0] = 1
    for h in range(1, histories):
        law[:, h] = (law[:, :h] * steps[:, :h, h]).sum(-1) / leaves[:, h]
        law[:, : h + 1] /= law[:, : h + 1].sum(-1, keepdims=True)
    return (law[..., None] * rows).reshape(kernels.shape)


def selection_score(joint: Joint, lags: LagSet, power: int = 2) -> Float[np.ndarray, " kernel"]:
    """J_S of a long input (no unit); with power 1 the χ² information of the states at S and the next state.

    Args:
        joint: `window_law`.
        lags: S; the empty set has 0.
        power: The power of the probability of the states at S.

    Example:
        >>> copies = window_law(np.array([[[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]]]))
        >>> [float(selection_score(copies, (1,), power)[0].round(6)) for power in (1, 2)]
        [1.0, 0.5]
    """
    window = joint.ndim - 2
    pair = joint.sum(tuple(1 + window - lag for lag in range(1, window + 1) if lag not in lags))
    pair = pair.reshape(len(pair), -1, pair.shape[-1])
    at, state = pair.sum(-1), pair.sum(1, keepdims=True)
    ratio = np.divide(pair**2, state, out=np.zeros_like(pair), where=state > 0).sum(-1)
    # sum_s at^power (ratio / at² - 1), where at > 0.
    terms = np.divide(ratio, at, out=np.zeros_like(at), where=at > 0) - at
    return np.asarray((at ** (power - 1) * terms).sum(-1))


def selection_shares(
    scores: Float[np.ndarray, " set"], start: Float[np.ndarray, " set"], progress: float
) -> Float[np.ndarray, " set"]:
    """p_S of gradient flow on c, to first order in a: the set of the largest score takes all.

    Args:
        scores: J_S.
        start: p_S at time 0, summing to 1.
        progress: `a t / sum c²`.

    Example:
        >>> selection_shares(np.array([0.1, 0.2]), np.array([0.5, 0.5]), 0.0).tolist()
        [0.5, 0.5]
    """
    grown = start * np.exp(4 * progress * (scores - scores.max()))
    return np.asarray(grown / grown.sum())


def finite_scores(
    kernel_values: Float[np.ndarray, "sequence key set"],
    keys: Int[np.ndarray, "sequence key"],
    answer: Float[np.ndarray, "sequence state"],
    weights: Float[np.ndarray, " sequence"],
    *,
    eps: float = 0.0,
) -> Float[np.ndarray, " set"]:
    """J_S of inputs of a finite length, as a mean over sequences.

    Args:
        kernel_values: K_S(i) of every key, for exact or for graded agreement.
        keys: Their states.
        answer: π, the law of the answer.
        weights: The weights of each sequence, summing to 1: its probability where all are enumerated.
        eps: Inside the logarithm of the loss.

    Example:
        >>> agrees, keys = np.array([[[1.0], [0.0]]]), np.array([[0, 1]])  # one set; the first key agrees
        >>> finite_scores(agrees, keys, np.array([[1.0, 0.0]]), np.ones(1)).tolist()
        [0.5]
    """
    hot = np.eye(answer.shape[1])[keys]
    share = hot.mean(1)
    # What no key shows is no output: it adds nothing to the derivative, whatever eps.
    value = np.divide(answer, share + eps, out=np.zeros_like(share), where=share > 0)
    gain = np.einsum("nik,nk->ni", hot - share[:, None], value)
    return np.asarray(np.einsum("n,ni,nis->s", weights, gain, kernel_values) / keys.shape[1])
