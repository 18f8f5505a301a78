"""The walk model's gradient descent on a circle, reduced by symmetry to `K + N + 1` numbers.

Setting: Shi & Cao 2025 (arXiv 2511.23239): scores `f(X) = V X S`, attention `S` the softmax of the logits
`w_x[s_i] + <p_i, w_p>` over N positions, the last of which holds no token; loss `E[-log(f_y + eps)]`; full
gradient descent from `V = W = 0`. On the population, rotating the circle changes nothing. So `V` stays
circulant, all entries of `w_x` stay equal, and what is left is

- `profile` [K]: `V[y, x] = profile[(y - x) mod K]`;
- `token_logit`: every entry of `w_x`;
- `position_logits` [N]: `<p_i, w_p>`, the logits that positions give by themselves.

(K + N in effect, since the token logit only ever adds to those of the positions that hold a token.) A path
then matters only through its displacements, how far the label lies ahead of each token. Steps here are
those of the full model: `V` moves by `-eta dL/dV` and `w = W x_N` by `-eta |p|^2 dL/dw`, with orthogonal
positions of squared norm `|p|^2` (the paper's sine positions: `(M + 1) / 2`).

Why it exists: at a symmetric trap a tensor implementation leaves the symmetric subspace by rounding, sooner
or later. Here the symmetry is built in, and every sum runs in an order in which equal terms give equal bits:
the trap is flat to the last bit, for as long as one likes.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mechmarkov.theory.walk.first_step import check_length

Displacements = Int[np.ndarray, "path token_position"]
"""How far the last state of each path lies ahead of each earlier one, modulo the circle."""

Weights = Float[np.ndarray, " path"]
"""The paths' probabilities."""


@dataclass(frozen=True, eq=False)
class ReducedState:
    """The weights of the reduced walk model after `step` steps, made by `zero_state` and `descend`.

    Attributes:
        profile: K numbers, `V[y, x] = profile[(y - x) mod K]`.
        token_logit: Every entry of `w_x`, the attention logits of states.
        position_logits: N numbers `<p_i, w_p>`, the logits that positions give by themselves, the last that
            of the empty position; N is the `length` of `zero_state`.
        step: How many steps of gradient descent led here.
    """

    profile: Float[np.ndarray, " displacement"]
    token_logit: float
    position_logits: Float[np.ndarray, " position"]
    step: int = 0


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward pass: what the loss, the gradient and the predictions are made of.

    Attributes:
        attention: `S` at each of the N positions, the empty last one among them.
        mass: Attention on the tokens of each path that lie a given displacement behind the label.
        scores: Each path's score of the state `offset` ahead of the label; offset 0 is the label's own.
    """

    attention: Float[np.ndarray, " position"]
    mass: Float[np.ndarray, "path displacement"]
    scores: Float[np.ndarray, "path offset"]


def displacements(tokens: Int[np.ndarray, "path position"], n_states: int) -> Displacements:
    """Returns how far the last state of each path lies ahead of each earlier one, modulo the circle.

    Example:
        >>> displacements(np.array([[5, 0, 1]]), n_states=6).tolist()
        [[2, 1]]
    """
    return (tokens[:, -1:] - tokens[:, :-1]) % n_states


def deterministic_displacements(n_states: int, length: int) -> Int[np.ndarray, "1 token_position"]:
    """The one path that a walk with p = 1 takes, as displacements; its weight is 1.

    Example:
        >>> deterministic_displacements(n_states=3, length=6).tolist()
        [[2, 1, 0, 2, 1]]
    """
    check_length(length)
    return displacements(np.arange(length)[None], n_states)


def zero_state(n_states: int, length: int) -> ReducedState:
    """The paper's start, `V = W = 0`, for paths of `length` states.

    Example:
        >>> zero_state(n_states=3, length=5).position_logits.shape
        (5,)
    """
    return ReducedState(np.zeros(n_states), 0.0, np.zeros(length))


def value_matrix(profile: Float[np.ndarray, " displacement"]) -> Float[np.ndarray, "state_to state_from"]:
    """The circulant `V` of a displacement profile, `V[y, x] = profile[(y - x) mod K]`.

    Example:
        >>> value_matrix(np.array([0.0, 1.0, 2.0])).tolist()
        [[0.0, 2.0, 1.0], [1.0, 0.0, 2.0], [2.0, 1.0, 0.0]]
    """
    state = np.arange(len(profile))
    return profile[(state[:, None] - state) % len(profile)]


def forward(state: ReducedState, displacements: Displacements) -> Forward:
    """Attention, displacement masses and scores of each path.

    Args:
        state: The weights.
        displacements: The array that `displacements` returns, a path a row.

    Raises:
        ValueError: Paths of another length than the weights are for, or displacements that are not below K.

    Example:
        >>> one = deterministic_displacements(n_states=3, length=4)  # three tokens and the label
        >>> forward(zero_state(3, 4), one).attention.tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    n_paths, n_tokens = displacements.shape
    n_states = len(state.profile)
    if n_tokens + 1 != len(state.position_logits):
        expected = f"{len(state.position_logits) - 1}, one fewer than position_logits"
        raise ValueError(f"displacements has {n_tokens} columns, expected {expected}")
    if displacements.size and not 0 <= displacements.min() <= displacements.max() < n_states:
        raise ValueError(
            f"displacements has {displacements.max()}, expected 0 to {n_states - 1}, as `profile` has"
        )
    logits = state.position_logits + np.append(np.full(n_tokens, state.token_logit), 0.0)
    attention = np.exp(logits - logits.max())
    attention /= attention.sum()
    # bincount adds one term after another, so displacements of equal count and attention get equal bits.
    cell = np.arange(n_paths)[:, None] * n_states + displacements
    mass = np.bincount(cell.ravel(), np.tile(attention[:-1], n_paths), minlength=n_paths * n_states)
    mass = mass.reshape(n_paths, n_states)
    displacement = np.arange(n_states)
    shifted = state.profile[(displacement[:, None] + displacement) % n_states]  # [offset, displacement]
    scores = np.stack([(mass * row).sum(axis=1) for row in shifted], axis=1)
    return Forward(attention, mass, scores)


def loss(state: ReducedState, displacements: Displacements, weights: Weights, eps: float) -> float:
    """`E[-log(f_y + eps)]` over the weighted paths, in nats; f_y is the score of the path's label y.

    Example:
        >>> paths = deterministic_displacements(n_states=3, length=4)
        >>> round(loss(zero_state(3, 4), paths, np.ones(1), eps=0.1), 4)  # all scores are zero
        2.3026
    """
    _check_weights(weights, displacements)
    return float(-(weights * np.log(forward(state, displacements).scores[:, 0] + eps)).sum())


def accuracy(state: ReducedState, displacements: Displacements, weights: Weights) -> float:
    """Probability that the highest score is the label's; m scores tied to the last bit get 1 / m each.

    Example:
        >>> paths = deterministic_displacements(n_states=4, length=5)
        >>> accuracy(zero_state(4, 5), paths, np.ones(1))
        0.25
    """
    _check_weights(weights, displacements)
    scores = forward(state, displacements).scores
    highest = scores == scores.max(axis=1, keepdims=True)
    return float((weights * highest[:, 0] / highest.sum(axis=1)).sum())


def _check_weights(weights: Weights, displacements: Displacements) -> None:
    if weights.shape != displacements.shape[:1]:
        raise ValueError(
            f"weights has shape {weights.shape}, expected a number for each of {len(displacements)} paths"
        )


def descend(
    displacements: Displacements,
    weights: Weights,
    *,
    n_states: int,
    position_norm_sq: float,
    eta: float,
    eps: float,
    steps: int,
    start: ReducedState | None = None,
) -> list[ReducedState]:
    """Full-batch gradient descent on `E[-log(f_y + eps)]` over weighted paths.

    Args:
        displacements: From `displacements` or `deterministic_displacements`. With every path of the chain
            at its probability this is the population; with a sample, an estimate of it that keeps the
            population's symmetry.
        weights: The paths' probabilities, summing to 1.
        n_states: K.
        position_norm_sq: `|p|^2`, (M + 1) / 2 for the paper's positions.
        eta: Step size.
        eps: The floor in the loss.
        steps: How many steps to take.
        start: Where to start; zero weights by default.

    Returns:
        `steps + 1` states, the start among them.

    Raises:
        ValueError: Arguments that do not fit together, or a step so large that a score falls below `-eps`,
            where the loss is not defined.

    Example:
        >>> trap = deterministic_displacements(n_states=6, length=97)
        >>> run = descend(trap, np.ones(1), n_states=6, position_norm_sq=500.5, eta=1.0, eps=0.1, steps=50)
        >>> bool(np.ptp(run[-1].profile) == 0), round(accuracy(run[-1], trap, np.ones(1)), 3)
        (True, 0.167)
    """
    state = zero_state(n_states, displacements.shape[1] + 1) if start is None else start
    _check(displacements, weights, state, n_states)
    for name, value in (("position_norm_sq", position_norm_sq), ("eta", eta), ("eps", eps)):
        if not value > 0:
            raise ValueError(f"{name} is {value}, expected above 0")
    if steps < 0:
        raise ValueError(f"steps is {steps}, expected at least 0")
    states = [state]
    for _ in range(steps):
        state = _step(state, displacements, weights, position_norm_sq, eta, eps)
        states.append(state)
    return states


def _step(
    state: ReducedState, displacements: Displacements, weights: Weights, p_sq: float, eta: float, eps: float
) -> ReducedState:
    passed = forward(state, displacements)
    score = passed.scores[:, 0]
    if not score.min() + eps > 0:
        raise ValueError(
            f"at step {state.step} a label's score is {score.min():.3g}, at or below -eps = {-eps:g}, where "
            "the loss is not defined: take a smaller eta"
        )
    slope = -weights / (score + eps)  # dL/dscore of each path, weighted
    by_profile = (slope[:, None] * passed.mass).sum(axis=0)
    read = np.zeros(len(state.position_logits))  # what each position reads out; the empty last one nothing
    read[:-1] = (slope[:, None] * state.profile[displacements]).sum(axis=0)
    by_logit = passed.attention * (read - (slope * score).sum())
    n_states = len(state.profile)
    # One entry of the profile is K entries of V, and the token logit K entries of w_x, each of which gets a
    # K-th of the gradient. Positions move as <p_i, w_p>, which brings |p|^2 in once more.
    return ReducedState(
        profile=state.profile - eta / n_states * by_profile,
        token_logit=float(state.token_logit - eta * p_sq / n_states * by_logit[:-1].sum()),
        position_logits=state.position_logits - eta * p_sq**2 * by_logit,
        step=state.step + 1,
    )


def _check(displacements: Displacements, weights: Weights, state: ReducedState, n_states: int) -> None:
    n_paths, n_tokens = displacements.shape
    if displacements.size == 0:
        raise ValueError(f"displacements are {n_paths} paths of {n_tokens} tokens, expected at least one")
    if displacements.min() < 0 or displacements.max() >= n_states:
        raise ValueError(
            f"displacements run from {displacements.min()} to {displacements.max()}, "
            f"expected 0 to {n_states - 1}"
        )
    if len(weights) != n_paths or weights.min() < 0 or not abs(weights.sum() - 1) <= 1e-9:
        raise ValueError(
            f"weights are {len(weights)} numbers adding up to {weights.sum():.9g}, "
            f"expected {n_paths} probabilities adding up to 1"
        )
    if len(state.profile) != n_states or len(state.position_logits) != n_tokens + 1:
        raise ValueError(
            f"start has {len(state.profile)} states and {len(state.position_logits)} positions, "
            f"expected {n_states} and {n_tokens + 1}"
        )
