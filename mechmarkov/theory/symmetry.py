"""What a group of permutations leaves unchanged: orbits, and matrices that commute with it.

A permutation `g` relabels states; a table `C[i, j]` commutes with the group iff `C[g i, g j] = C[i, j]`, that
is iff it is constant on the orbits of ordered pairs (the orbitals). On a circle these are the circulant
tables, or, where the circle may be reflected too, the symmetric circulant ones.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

Permutation = tuple[int, ...]


def orbits(
    images: Sequence[Int[np.ndarray, " point"]] | Sequence[Permutation], n: int
) -> Int[np.ndarray, " point"]:
    """A number for each of `n` points: that of its orbit under the group these permutations generate.

    Example:
        >>> orbits([(1, 0, 2, 3), (0, 1, 3, 2)], 4).tolist()
        [0, 0, 1, 1]
    """
    point = np.arange(n)
    to = np.concatenate([point, *map(np.asarray, images)])
    edges = coo_array((np.ones(len(to)), (np.tile(point, len(images) + 1), to)), shape=(n, n))
    return connected_components(edges, directed=False)[1].astype(np.int64)


def orbitals(generators: Sequence[Permutation], n_states: int) -> Int[np.ndarray, "state_from state_to"]:
    """A number for each ordered pair of states: that of its orbit.

    Example:
        >>> orbitals([(1, 2, 0)], 3).tolist()
        [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    """
    pair = np.arange(n_states**2).reshape(n_states, n_states)
    images = [pair[np.ix_(g, g)].ravel() for g in map(list, generators)]
    return orbits(images, n_states**2).reshape(n_states, n_states)


def orbit_mean(
    values: Float[np.ndarray, "*lead point"], orbit: Int[np.ndarray, " point"]
) -> Float[np.ndarray, "*lead point"]:
    """Each value replaced by the mean over its orbit: the projection on what the group leaves unchanged.

    Args:
        values: One for each point, along the last axis.
        orbit: The number of each point's orbit, such as `orbits` gives.

    Example:
        >>> orbit_mean(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1])).tolist()
        [2.0, 2.0, 5.0]
    """
    flat = values.reshape(-1, len(orbit))
    count = np.bincount(orbit)
    rows = [(np.bincount(orbit, row, len(count)) / count)[orbit] for row in flat]
    return np.array(rows).reshape(values.shape)


def commutant_share(
    table: Float[np.ndarray, "*lead state_from state_to"], orbital: Int[np.ndarray, "state_from state_to"]
) -> Float[np.ndarray, "*lead"]:
    """Share of tables' squared norm that commutes with the group, in [0, 1]; NaN for a zero table.

    A table of independent entries has, on average, the number of orbitals over K².

    Args:
        table: The tables.
        orbital: The number of each pair's orbit, as `orbitals` gives.

    Example:
        >>> turn = orbitals([(1, 2, 0)], 3)
        >>> commutant_share(np.stack([np.eye(3), np.diag([1.0, 0, 0])]), turn).round(3).tolist()
        [1.0, 0.333]
    """
    flat = table.reshape(*table.shape[:-2], -1)
    inside = orbit_mean(flat, orbital.ravel())
    total = np.asarray((flat**2).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (inside**2).sum(-1) / total
    return np.asarray(np.where(total > 0, share, np.nan))
