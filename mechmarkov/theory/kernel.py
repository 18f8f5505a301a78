"""Comparing a value circuit with the chain.

A value circuit is a table `C[state_from, state_to]`: what a path through the model says of the next state,
given the state it reads. What of it is meaning depends on the loss, so the target and the comparison do too
(`target_for`): under a softmax a constant per row says nothing, and the fixed point is `log P`; for
`-log(score + eps)` gradient descent from zero goes in the direction of the elementwise `sqrt(P)`, not of `P`
as Shi & Cao (2025, theorem 3.1) print it; squared error and normalised scores aim at `P`.

Everything is float64 numpy over leading axes.
"""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import rel_entr

from mechmarkov.theory.predictors import Matrix

Tables = Float[np.ndarray, "*lead state_from state_to"]
"""Value circuits, or one: `[..., state_from, state_to]`."""
TargetName = Literal["P", "sqrt P", "log P"]

# KL floors a model's probability here (and says so): a predictor may give an event exactly zero.
FLOOR = 1e-12

# Entries this close, relative to the table's largest, are equal to an argmax: weights are float32.
TIE = 1e-6

# What centring leaves of a constant is float64 rounding, a few 1e-16 of it.
ROUNDING = 1e-14


def target_for(objective: str, P: Matrix) -> tuple[TargetName, Matrix]:
    """Returns what a value circuit converges to under a loss, up to what that loss cannot see.

    Args:
        objective: `Objective.kind`: "cross_entropy", "raw_log", "normalised_log" or "squared".
        P: The transition matrix (or its m-th power, for a path that looks at lag m).

    Returns:
        `("log P", log P)` for cross-entropy; `("P", P)` there too if P has zeros (then probabilities are
        compared) and for squared or normalised scores; `("sqrt P", sqrt P)` for raw log scores.

    Example:
        >>> target_for("raw_log", np.array([[0.25, 0.75], [1.0, 0.0]]))[0]
        'sqrt P'
    """
    if objective == "raw_log":
        return "sqrt P", np.sqrt(P)
    if objective == "cross_entropy" and (P > 0).all():
        return "log P", np.log(P)
    return "P", P


def row_centred(table: Tables) -> Float[np.ndarray, "..."]:
    """The table less each row's mean: what a softmax can see. Exactly zero for rows that are constant.

    Example:
        >>> row_centred(np.array([[1.0, 3.0], [5.0, 5.0]]))
        array([[-1.,  1.],
               [ 0.,  0.]])
    """
    return _without_rounding(table - table.mean(-1, keepdims=True), table)


def double_centred(table: Tables) -> Float[np.ndarray, "..."]:
    """The table less row and column means: what depends on both states. Zero for a constant table.

    `C_ij - mean_j C_ij - mean_i C_ij + mean_ij C_ij`.

    Example:
        >>> double_centred(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
        [[0.5, -0.5], [-0.5, 0.5]]
    """
    rows = table - table.mean(-1, keepdims=True)
    return _without_rounding(rows - rows.mean(-2, keepdims=True), table)


def _without_rounding(centred: np.ndarray, table: np.ndarray) -> Float[np.ndarray, "..."]:
    largest = np.abs(table).max((-2, -1), keepdims=True)
    return np.where(np.abs(centred) > ROUNDING * largest, centred, 0.0)


def cosine(a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, "*lead"]:
    """Cosine of two centred tables over their last two axes, whatever their scale; 0 where one is zero.

    Tables are `[..., state_from, state_to]` and are not centred here.

    Raises:
        ValueError: Their last two axes differ.

    Example:
        >>> table = row_centred(np.array([[0.9, 0.1], [0.2, 0.8]]))
        >>> float(cosine(table, 3 * table).round(6)), float(cosine(table, -table).round(6))
        (1.0, -1.0)
    """
    a, b = np.asarray(a), np.asarray(b)
    if min(a.ndim, b.ndim) < 2 or a.shape[-2:] != b.shape[-2:]:
        raise ValueError(f"b has shape {b.shape} and a {a.shape}, expected the same two last axes in both")
    return np.asarray(np.clip((_direction(a) * _direction(b)).sum((-2, -1)), -1.0, 1.0))


def _direction(table: np.ndarray) -> np.ndarray:
    """The table at norm 1; zero stays zero."""
    # By its largest entry first: the squares of tiny entries would underflow.
    table = table / np.maximum(np.abs(table).max((-2, -1), keepdims=True), np.finfo(float).tiny)
    norm = np.sqrt((table * table).sum((-2, -1), keepdims=True))
    return np.asarray(table / np.where(norm > 0, norm, 1.0))


def directional_distance(a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, "*lead"]:
    """`|a/|a| - b/|b||`, the Frobenius distance of directions: `sqrt(2 - 2 cosine(a, b))`, between 0 and 2.

    Tables are `[..., state_from, state_to]` of one size. They are not centred here: pass `row_centred` or
    `double_centred` ones, otherwise a mean that both have is compared too. `sqrt(2)` where one is zero.

    Raises:
        ValueError: Their last two axes differ.

    Example:
        >>> P, Q = np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([[0.1, 0.9], [0.9, 0.1]])
        >>> float(directional_distance(row_centred(P), row_centred(Q)).round(6))
        2.0
    """
    return np.asarray(np.sqrt(2 - 2 * cosine(a, b)))


def slope(table: Tables, target: Matrix) -> Float[np.ndarray, "*lead"]:
    """Least-squares slope of a row-centred table on a row-centred target: 1 is exact, 0 is nothing.

    NaN where the target's rows are constant: there is nothing to have a slope on.

    Example:
        >>> log_P = np.log([[0.9, 0.1], [0.2, 0.8]])
        >>> float(slope(2 * log_P + 5, log_P).round(6))
        2.0
    """
    t = row_centred(target)
    return np.asarray((row_centred(table) * t).sum((-2, -1)) / ((t * t).sum() or np.nan))


def kl(
    exact: Float[np.ndarray, "*shape state"], model: Float[np.ndarray, "*lead state"]
) -> Float[np.ndarray, "..."]:
    """`KL(exact ‖ model) = sum_j exact_j log(exact_j / model_j)` over the last axis, in nats.

    The model's probability is floored at 1e-12: a predictor may give an event exactly zero.

    Example:
        >>> kl(np.array([1.0, 0.0]), np.array([0.5, 0.5])).round(4)
        np.float64(0.6931)
    """
    return np.asarray(rel_entr(exact, np.maximum(model, FLOOR)).sum(-1))


def kernel_kl(model: Tables, P: Matrix, pi: Float[np.ndarray, " state_from"]) -> Float[np.ndarray, "*lead"]:
    """`sum_i pi_i KL(P_i ‖ model_i)`, in nats: the cost of predicting with a table instead of the chain.

    Args:
        model: Predictions after each state (probability), any number of tables.
        P: The transition matrix.
        pi: The weight of each state, such as the stationary law.

    Example:
        >>> P = np.array([[0.9, 0.1], [0.4, 0.6]])
        >>> float(kernel_kl(P, P, np.array([0.8, 0.2])))
        0.0
    """
    return np.asarray(kl(P, model) @ pi)


def argmax_sets(table: Tables) -> Bool[np.ndarray, "..."]:
    """True where an entry is its row's maximum, ties (to 1e-6 of the table's largest entry) included.

    Example:
        >>> argmax_sets(np.array([[0.2, 0.8], [0.5, 0.5]])).tolist()
        [[False, True], [True, True]]
    """
    largest = np.abs(table).max((-2, -1), keepdims=True)
    return np.asarray(table >= table.max(-1, keepdims=True) - TIE * largest)


def recall(table: Tables, P: Matrix) -> Float[np.ndarray, "*lead"]:
    """Returns how often a likeliest next state of the table is a likeliest next state of the chain.

    Ties count as sets: a row contributes the share of its maxima that are maxima of P, so a constant
    table scores chance. (Bietti et al. 2023, section 4, for one maximum a row.)

    Example:
        >>> P = np.array([[0.0, 0.9, 0.1], [0.1, 0.0, 0.9], [0.9, 0.1, 0.0]])
        >>> float(recall(P, P)), round(float(recall(np.ones((3, 3)), P)), 3)
        (1.0, 0.333)
    """
    mine, theirs = argmax_sets(table), argmax_sets(P)
    return np.asarray(((mine & theirs).sum(-1) / mine.sum(-1)).mean(-1))


def chance_recall(P: Matrix) -> float:
    """The recall of a constant table: the share of entries of P that are their row's maximum.

    Example:
        >>> chance_recall(np.array([[0.2, 0.8], [0.5, 0.5]]))
        0.75
    """
    return float(argmax_sets(P).mean())


def circulant_share(table: Float[np.ndarray, "*lead state state"]) -> Float[np.ndarray, "*lead"]:
    """`|proj C|² / |C|²` onto circulant tables: 1 iff the table depends only on `j - i mod K`.

    NaN for a table that is zero.

    Example:
        >>> turn = np.roll(np.eye(3), 1, axis=1)
        >>> float(circulant_share(turn).round(6)), float(circulant_share(np.diag([1.0, 0, 0])).round(3))
        (1.0, 0.333)
    """
    n = table.shape[-1]
    i = np.arange(n)
    displaced = table[..., i[:, None], (i[:, None] + i[None, :]) % n]  # [..., state, displacement]
    profile = displaced.mean(-2)
    norm = (table * table).sum((-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norm > 0, n * (profile * profile).sum(-1) / norm, np.nan)
