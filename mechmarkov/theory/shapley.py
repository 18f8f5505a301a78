"""Shapley values: what each player adds to a game, averaged over all orders of joining."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

# Beyond this many players the 2^n coalitions are sampled instead.
EXACT_PLAYERS = 10
PERMUTATIONS = 2000


def coalitions(players: int) -> Bool[np.ndarray, "coalition player"]:
    """Every coalition as a row of members; row `m` has the players of the bits of `m`.

    Example:
        >>> coalitions(2).astype(int).tolist()
        [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    return (np.arange(1 << players)[:, None] >> np.arange(players)) & 1 == 1


def exact(values: Float[np.ndarray, "coalition ..."]) -> Float[np.ndarray, "player ..."]:
    """Shapley values from the worth of every coalition, in the order of `coalitions` (Shapley 1953).

    They add up to the worth of all less the worth of none.

    Example:
        >>> exact(np.array([0.0, 1.0, 0.0, 1.0]))
        array([1., 0.])
    """
    players = int(values.shape[0]).bit_length() - 1
    members = coalitions(players)
    size = members.sum(1)
    values_of_players = []
    for player in range(players):
        without = np.flatnonzero(~members[:, player])
        added = values[without + (1 << player)] - values[without]
        weight = np.array([1 / (players * math.comb(players - 1, int(s))) for s in size[without]])
        values_of_players.append(np.tensordot(weight, added, axes=1))
    return np.stack(values_of_players) if values_of_players else np.zeros((0, *values.shape[1:]))


def sampled(
    worth: Callable[[Bool[np.ndarray, "coalition player"]], Float[np.ndarray, "coalition ..."]],
    players: int,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "player ..."], Float[np.ndarray, "player ..."]]:
    """Shapley values from sampled orders of joining, each with its reverse, and their standard errors.

    The sum is exact whatever the sample: every order adds up to the worth of all less that of none.

    Args:
        worth: The worth of coalitions, given as rows of members.
        players: How many there are.
        permutations: How many orders, in pairs of an order and its reverse (Mitchell et al. 2022).
        seed: The seed of the orders.

    Raises:
        ValueError: For fewer than two pairs, which have no standard error.

    Example:
        >>> values, errors = sampled(lambda members: members @ np.array([1.0, 3.0]), 2, permutations=4)
        >>> values.tolist(), errors.tolist()
        ([1.0, 3.0], [0.0, 0.0])
    """
    pairs = permutations // 2
    if pairs < 2:
        raise ValueError(f"permutations is {permutations}, expected at least 4: two and their reverses")
    rng = np.random.default_rng(seed)
    total = square = np.zeros(())
    for _ in range(pairs):
        order = rng.permutation(players)
        added = 0.5 * (_along(worth, order) + _along(worth, order[::-1]))
        total, square = total + added, square + added * added
    mean = total / pairs
    variance = np.maximum(square / pairs - mean * mean, 0.0) * pairs / (pairs - 1)
    return mean, np.sqrt(variance / pairs)


def _along(
    worth: Callable[[Bool[np.ndarray, "coalition player"]], Float[np.ndarray, "coalition ..."]],
    order: np.ndarray,
) -> Float[np.ndarray, "player ..."]:
    """Returns what each player adds when they join in this order."""
    place = np.argsort(order)
    joined = np.tri(len(order) + 1, len(order), -1, dtype=bool)[:, place]
    return np.diff(worth(joined), axis=0)[place]
