"""Processes that no finite hidden chain makes, by small real matrices; pure functions.

`T[x, i, j]` acts on row vectors: `l T[x_1] … T[x_n] r` is the probability of a word, with `l` and `r` the
eigenvectors of the sum of matrices to the eigenvalue 1 (Jaeger 2000). Riechers, Elliott & Shai 2025 (arXiv
2507.07432) train networks on such processes; of their text the abstract was read, and names and parameters
are those of public codes. The matrices here were derived from the laws in the docstrings, and are tested
against these: by density matrices, or by how long stretches between two resets are.
"""

import numpy as np
from jaxtyping import Float

Operators = Float[np.ndarray, "state from to"]


def bloch_walk(alpha: float, beta: float) -> Operators:
    """A qubit that is measured weakly along z or along x, by the toss of a coin; four tokens.

    Kraus operators `(α + β σ_z) γ`, `(α - β σ_z) γ`, `(α + β σ_x) γ` and `(α - β σ_x) γ` with
    `γ² = 1 / (4 (α² + β²))`. What is known is (1, x, z) of the Bloch ball.

    Raises:
        ValueError: Both numbers are 0.

    Example:
        >>> T = bloch_walk(1.0, 51**0.5)
        >>> T.shape, T.sum(0)[0].tolist()
        ((4, 3, 3), [1.0, 0.0, 0.0])
    """
    if not (size := 4 * (alpha**2 + beta**2)) > 0:
        raise ValueError(f"alpha and beta are {alpha} and {beta}, expected numbers that are not both 0")
    told, kept = 2 * alpha * beta / size, (alpha**2 - beta**2) / size
    along_z, along_x = (
        [np.array(rows) for rows in ([[0.25, 0, s], [0, kept, 0], [s, 0, 0.25]] for s in (told, -told))],
        [np.array(rows) for rows in ([[0.25, s, 0], [s, 0.25, 0], [0, 0, kept]] for s in (told, -told))],
    )
    return np.stack([*along_z, *along_x])


def moon(alpha: float, beta: float) -> Operators:
    """A process whose memory is a logarithm; three tokens.

    Token 0 resets. Since a reset, tokens 1 and 2 multiply a number s by α and by β; at first it is 1. A
    stretch of n of these that a reset ends has the probability `(s - 1 - log s) / z^(n + 1)`, where z makes
    all stretches together 1. Fanizza, Lumbreras & Winter 2024 (arXiv 2209.11225) have families of processes
    that no quantum system of finite dimension makes. That this is one of them is not checked here.

    Raises:
        ValueError: Other numbers than `alpha > 1 > beta > 0`.

    Example:
        >>> T = moon(np.e, 0.5)
        >>> T.shape, round(float(np.abs(np.linalg.eigvals(T.sum(0))).max()), 9)
        ((3, 3, 3), 1.0)
    """
    if not alpha > 1 > beta > 0:
        raise ValueError(f"alpha and beta are {alpha} and {beta}, expected alpha > 1 > beta > 0")
    # What is known is (s, 1 + log s, 1): a reset has the weight of the first less the second.
    reset = np.outer([1.0, -1.0, 0.0], [1.0, 1.0, 1.0])
    times = [np.array([[by, 0, 0], [0, 1, 0], [0, np.log(by), 1]]) for by in (alpha, beta)]
    T = np.stack([reset, *times])
    return T / np.abs(np.linalg.eigvals(T.sum(0))).max()


def frdn(angle: float, decay: float) -> Operators:
    """A process whose memory is an angle (Fox & Rubin 1968, Dharmadhikari & Nadkarni 1970); two tokens.

    Token 0 resets. A stretch of n ≥ 1 ones that a reset ends has the probability `λ^n sin²(n a / 2)`, and one
    of none has what is left. Where the angle a is not a fraction of π, no finite hidden chain makes it.

    Args:
        angle: The angle a, in radians.
        decay: The factor λ.

    Raises:
        ValueError: A factor outside (0, 1), or stretches that are more likely than 1 together.

    Example:
        >>> T = frdn(2.0, 0.5)
        >>> T.shape, round(float(np.abs(np.linalg.eigvals(T.sum(0))).max()), 9)
        ((2, 4, 4), 1.0)
    """
    if not 0 < decay < 1:
        raise ValueError(f"decay is {decay}, expected a number in (0, 1)")
    cos, sin = np.cos(angle), np.sin(angle)
    some = (1 / (1 - decay) - (1 - decay * cos) / (1 - 2 * decay * cos + decay**2)) / 2
    if some > 1:
        raise ValueError(f"decay is {decay}, expected less: stretches sum to {some:.6g}, above 1")
    # What is known is λ^n (1, cos n a, sin n a), next to whether the last token was a reset.
    turned = decay * np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, cos, sin], [0, 0, -sin, cos]])
    return np.stack([np.outer([1, 1, 1, 0], [1 - some, 0.5, -0.5, 0]), turned])
