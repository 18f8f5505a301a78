"""The symmetries of a chain: permutations g of its states with `P[g i, g j] = P[i, j]`.

A permutation is a tuple, `g[i]` the image of state i. The group is found as a chain of stabilisers: for each
state b from the last to the first, permutations that fix all states before b and move b to each place it can
go. The generators so found are few (fewer than K orbits can merge at each b) even where the group is huge,
as the K! permutations of the uniform chain. Each is searched for by colour refinement and backtracking,
within a budget: on some chains (strongly regular graphs) the search would not end.
"""

from collections.abc import Iterator
from functools import lru_cache, reduce
from itertools import product
from math import prod

import numpy as np
from jaxtyping import Float, Int

from mechmarkov.theory.symmetry import Permutation

# Entries of P this close are equal: symmetric chains are often computed, and so equal only up to rounding.
TOLERANCE = 1e-12

MAX_STATES = 512  # a table of all pairs is sorted at each refinement
MAX_PAIRS = 200_000_000  # sorted in all refinements together: 20 to 30 s; 100 equal states take half of them


class SymmetriesUnknownError(ValueError):
    """The search for a chain's automorphisms was given up."""


def generators(P: Float[np.ndarray, "state_from state_to"]) -> list[Permutation]:
    """Generators of the automorphism group; none if only the identity is in it.

    Raises:
        SymmetriesUnknownError: Too many states, or the search took too long.

    Example:
        >>> generators(np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]))
        [(0, 2, 1), (1, 0, 2)]
    """
    return _stabiliser_chain(P)[0]


def order(P: Float[np.ndarray, "state_from state_to"]) -> int:
    """Returns how many automorphisms the chain has, the identity among them.

    Example:
        >>> order(np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]))
        6
    """
    return prod(len(transversal) for transversal in _stabiliser_chain(P)[1])


def elements(P: Float[np.ndarray, "state_from state_to"], limit: int) -> list[Permutation]:
    """Every automorphism, sorted, so the identity comes first.

    Raises:
        ValueError: There are more than `limit`.

    Example:
        >>> elements(np.array([[0.5, 0.5], [0.5, 0.5]]), limit=10)
        [(0, 1), (1, 0)]
    """
    transversals = _stabiliser_chain(P)[1]
    n_elements = order(P)
    if n_elements > limit:
        raise ValueError(
            f"the chain has {n_elements} automorphisms, more than the limit of {limit}: "
            "use automorphism_generators()"
        )
    return sorted(reduce(lambda g, factor: _compose(factor, g), each) for each in product(*transversals))


def _compose(g: Permutation, h: Permutation) -> Permutation:
    """First h, then g."""
    return tuple(g[i] for i in h)


def _stabiliser_chain(
    P: Float[np.ndarray, "state_from state_to"],
) -> tuple[list[Permutation], list[list[Permutation]]]:
    """Generators, and for each state b one element per place that it goes with the states before it fixed.

    Every automorphism is one product of such elements, the last state's first.
    """
    if len(P) > MAX_STATES:
        raise SymmetriesUnknownError(
            f"the chain's symmetries are unknown: it has {len(P)} states, "
            f"and they are searched for up to {MAX_STATES}"
        )
    return _search_all(P.astype(float).tobytes(), len(P))


@lru_cache(maxsize=16)
def _search_all(table: bytes, n_states: int) -> tuple[list[Permutation], list[list[Permutation]]]:
    """`_stabiliser_chain` of a table of float64; every probe asks for it again."""
    pairs = _pair_colours(np.frombuffer(table).reshape(n_states, n_states))
    budget = iter(range(MAX_PAIRS // (2 * n_states**2)))
    generators: list[Permutation] = []
    transversals = []
    for b in reversed(range(n_states)):
        fixed = np.minimum(np.arange(n_states), b)  # states before b are told apart, the others not yet
        refined = _refine(pairs, np.stack([fixed, fixed]), budget)[0]
        reached = _orbit(b, generators, n_states)  # all generators so far fix every state before b
        for target in np.flatnonzero(refined == refined[b]):
            if int(target) not in reached:
                g = _search(pairs, _individualise(fixed, b), _individualise(fixed, int(target)), budget)
                if g is not None:
                    generators.append(g)
                    reached = _orbit(b, generators, n_states)
        transversals.append(list(reached.values()))
    return generators, transversals


def _orbit(state: int, group: list[Permutation], n_states: int) -> dict[int, Permutation]:
    """Returns where the group takes a state, each place with an element that takes it there."""
    reached = {state: tuple(range(n_states))}
    frontier = [state]
    while frontier:
        place = frontier.pop()
        for g in group:
            if g[place] not in reached:
                reached[g[place]] = _compose(g, reached[place])
                frontier.append(g[place])
    return reached


def _pair_colours(P: Float[np.ndarray, "state_from state_to"]) -> Int[np.ndarray, "state_from state_to"]:
    """A number for each ordered pair of states: its transition probabilities there and back, and i = j."""
    values = np.sort(P, axis=None)
    levels = np.concatenate([[0], np.cumsum(np.diff(values) > TOLERANCE)])
    colour = levels[np.searchsorted(values, P)]
    there_and_back = colour * (levels[-1] + 1) + colour.T
    return 2 * there_and_back + np.eye(len(P), dtype=np.int64)


def _individualise(colours: Int[np.ndarray, " state"], state: int) -> Int[np.ndarray, " state"]:
    individual = colours.copy()
    individual[state] = len(colours)
    return individual


def _refine(
    pairs: Int[np.ndarray, "state_from state_to"],
    colours: Int[np.ndarray, "copy state"],
    budget: Iterator[int],
) -> Int[np.ndarray, "copy state"]:
    """Split colours until states of one colour see equally many of each colour through each kind of pair.

    The copies of the state space are refined together, so that a colour means the same in each of them.
    """
    n_copies, n_states = colours.shape
    n_colours = len(np.unique(colours))
    for _ in budget:
        seen = pairs * (colours.max() + 1) + colours[:, None, :]  # [copy, state, other state]
        seen.sort(axis=-1)
        signature = np.concatenate([colours[..., None], seen], axis=-1).reshape(n_copies * n_states, -1)
        split = np.unique(signature, axis=0, return_inverse=True)[1]
        colours = split.reshape(n_copies, n_states)
        if colours.max() + 1 == n_colours:
            return colours
        n_colours = int(colours.max()) + 1
    raise SymmetriesUnknownError(
        f"the chain's symmetries are unknown: the search over its {n_states} states was given up"
    )


def _search(
    pairs: Int[np.ndarray, "state_from state_to"],
    source: Int[np.ndarray, " state"],
    target: Int[np.ndarray, " state"],
    budget: Iterator[int],
) -> Permutation | None:
    """An automorphism that takes each state to one of the same colour, or None."""
    source, target = _refine(pairs, np.stack([source, target]), budget)
    counts = np.bincount(source)
    if not np.array_equal(counts, np.bincount(target, minlength=len(counts))):
        return None
    if counts.max() == 1:
        g = np.empty(len(source), dtype=np.int64)
        g[np.argsort(source)] = np.argsort(target)
        return tuple(map(int, g)) if np.array_equal(pairs[np.ix_(g, g)], pairs) else None
    state = int(np.flatnonzero(counts[source] > 1)[0])
    for image in np.flatnonzero(target == source[state]):
        permutation = _search(
            pairs, _individualise(source, state), _individualise(target, int(image)), budget
        )
        if permutation is not None:
            return permutation
    return None
