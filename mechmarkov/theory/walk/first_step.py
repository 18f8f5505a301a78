"""The first gradient step of the walk model, from zero weights, in closed form.

Setting: Shi & Cao 2025 (arXiv 2511.23239), the one-layer model `f(X) = V X softmax(...)`, trained by gradient
descent on the population loss from `V = W = 0`. The label is the last state of a path of `length = N` states.
At zero every token has attention `1 / N` and the gradient of `W` vanishes, so all that the first step can
learn is the joint law of the label and a token at a random earlier position. If those are independent the
step carries no information: a first-step trap.

`l'(0)` is the slope of the loss in the label's score at score 0, `-1 / eps` for `-log(score + eps)`.
"""

import numpy as np
from jaxtyping import Complex, Float

from mechmarkov.theory.predictors import Matrix


def first_step_profile(
    n_states: int, p: float, length: int
) -> tuple[Complex[np.ndarray, " mode"], Float[np.ndarray, " displacement"]]:
    """The first step on the circle, by one FFT: its modes `g_k` and its displacement profile `v_d`.

    `v_d` is the expected number of earlier tokens that lie `d` steps behind the label. From zero, one step of
    size `eta` on `E[-log(f_y + eps)]` gives `V[y, x] = eta / (eps N K) * v[(y - x) mod K]`.

    Returns:
        `g` [K], where `g_0 = N - 1` and `g_k = lambda_k (1 - lambda_k^(N-1)) / (1 - lambda_k)` with
        `lambda_k = cos(2 pi k / K) + i (2 p - 1) sin(2 pi k / K)`, and `v` [K], its Fourier transform.

    Raises:
        ValueError: Fewer than 3 states, `p` outside [0, 1], or paths without a token before the label.

    Example:
        >>> _, profile = first_step_profile(n_states=6, p=1.0, length=97)
        >>> profile.round(9).tolist()
        [16.0, 16.0, 16.0, 16.0, 16.0, 16.0]
    """
    if n_states < 3:
        raise ValueError(f"n_states is {n_states}, expected at least 3 states on a circle")
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}, expected a probability in [0, 1]")
    check_length(length)
    angle = 2 * np.pi * np.arange(1, n_states) / n_states
    eigenvalue = np.cos(angle) + 1j * (2 * p - 1) * np.sin(angle)
    modes = np.empty(n_states, dtype=np.complex128)
    modes[0] = length - 1
    modes[1:] = eigenvalue * (1 - eigenvalue ** (length - 1)) / (1 - eigenvalue)
    return modes, np.fft.fft(modes).real / n_states


def circle_first_step_information(n_states: int, p: float, length: int) -> float:
    """Share of the first step that tells states apart, `sum_{k != 0} |g_k|^2 / sum_k |g_k|^2`, in [0, 1].

    Zero up to rounding is a first-step trap: for p in {0, 1} exactly when `K` divides `N - 1`.

    Example:
        >>> circle_first_step_information(6, 1.0, 97) < 1e-9 < circle_first_step_information(6, 0.5, 97)
        True
    """
    power = np.abs(first_step_profile(n_states, p, length)[0]) ** 2
    return float(power[1:].sum() / power.sum())


def first_step_gradient(
    P: Matrix, mu: Float[np.ndarray, " state_from"], length: int
) -> Float[np.ndarray, "state_to state_from"]:
    """The first gradient of `V` for any chain with start law `mu`: `sum_m (P^m)^T diag(mu P^(N-1-m))`.

    The sum runs over lags `m = 1 .. N-1`. The factor `l'(0) / N` of the gradient proper is left out, so that
    entry `[y, x]` is the expected number of earlier tokens `x` on paths that end in `y`, and all entries add
    up to `N - 1`.

    Args:
        P: The chain.
        mu: The law of the first state.
        length: N, the states of a path, its label among them.

    Raises:
        ValueError: `length` is below 2.

    Example:
        >>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
        >>> first_step_gradient(swap, np.array([0.5, 0.5]), length=3).tolist()  # label, one back, two back
        [[0.5, 0.5], [0.5, 0.5]]
    """
    check_length(length)
    gradient = np.zeros_like(P)
    power = np.eye(len(P))
    for law in reversed(occupancy(P, mu, length)):  # lag 1 is the last token before the label
        power = power @ P
        gradient += power.T * law
    return gradient


def first_step_information(gradient: Float[np.ndarray, "state_to state_from"]) -> float:
    """Share of a first-step gradient's squared norm outside the product of its margins, in [0, 1].

    The gradient is, up to scale, the joint law of label and random earlier token. The product of its margins
    is what it would be if they were independent: a `V` whose prediction is the same for every input. On the
    circle this is `circle_first_step_information`.

    Args:
        gradient: What `first_step_gradient` returns.

    Example:
        >>> first_step_information(np.eye(2)), first_step_information(np.ones((2, 2)))
        (0.5, 0.0)
    """
    independent = np.outer(gradient.sum(axis=1), gradient.sum(axis=0)) / gradient.sum()
    return float(((gradient - independent) ** 2).sum() / (gradient**2).sum())


def occupancy(P: Matrix, mu: Float[np.ndarray, " state_from"], length: int) -> list[np.ndarray]:
    """The law of each state of a path but the last, the label, from a start law on: `mu P^t`, t = 0 .. N-2.

    Example:
        >>> [law.tolist() for law in occupancy(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.0]), 3)]
        [[1.0, 0.0], [0.0, 1.0]]
    """
    laws = [mu]
    for _ in range(length - 2):
        laws.append(laws[-1] @ P)
    return laws


def check_length(length: int) -> None:
    """Refuse paths without a token before the label.

    Raises:
        ValueError: `length`, the number of states with the label among them, is below 2.
    """
    if length < 2:
        raise ValueError(f"length is {length}, expected at least 2 states: a token and a label")
