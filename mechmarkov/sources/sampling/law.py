"""The exact law of a Markov chain, as pure functions of its transition matrix, in float64 and nats."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.special import entr

from mechmarkov.utils.lazy_torch import Tensor, torch


def classes(P: Float[np.ndarray, "state_from state_to"]) -> list[tuple[int, ...]]:
    """Communicating classes, each sorted, in the order of their first states.

    Example:
        >>> classes(np.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.1, 0.1, 0.8]]))
        [(0, 1), (2,)]
    """
    n_classes, member_of = connected_components(P > 0, connection="strong")
    return sorted(tuple(np.flatnonzero(member_of == i).tolist()) for i in range(n_classes))


def closed_classes(P: Float[np.ndarray, "state_from state_to"]) -> list[tuple[int, ...]]:
    """The communicating classes that are never left; the stationary law is unique iff there is one.

    Example:
        >>> closed_classes(np.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.1, 0.1, 0.8]]))
        [(0, 1)]
    """
    return [members for members in classes(P) if not np.delete(P[members, :] > 0, members, axis=1).any()]


def period(P: Float[np.ndarray, "state_from state_to"]) -> int:
    """The period of the closed class: the gcd of the lengths of its cycles; 1 is aperiodic.

    Raises:
        ValueError: More than one class is closed.

    Example:
        >>> period(np.array([[0.0, 1.0], [1.0, 0.0]]))
        2
    """
    members = _only_closed_class(P)
    edges = P[np.ix_(members, members)] > 0
    level = shortest_path(edges, unweighted=True, indices=0).astype(int)
    return int(np.gcd.reduce((level[:, None] + 1 - level)[edges]))


def stationary(P: Float[np.ndarray, "state_from state_to"], name: str = "P") -> Float[np.ndarray, " state"]:
    """The law `pi` with `pi P = pi`, exactly zero on transient states.

    Raises:
        ValueError: More than one class is closed, so there is more than one such law; names the classes, and
            the matrix by `name`.

    Example:
        >>> stationary(np.array([[0.5, 0.5], [0.8, 0.2]])).round(4).tolist()
        [0.6154, 0.3846]
    """
    members = _only_closed_class(P, name)
    pi = np.zeros(len(P))
    A, within = P[np.ix_(members, members)], np.zeros(len(members))
    _eliminate(A, np.zeros(len(members)), within)
    pi[list(members)] = within
    return pi


def eliminate(P: Float64[Tensor, "*batch state_from state_to"]) -> Float64[Tensor, "*batch state"]:
    """Stationary laws of many irreducible chains at once, on whatever device they are.

    Solves `pi P = pi` by the elimination of Grassmann, Taksar & Heyman (1985). It has no subtraction, so it
    is accurate in every digit even for chains that hardly ever change state, where a general solver is not.

    Example:
        >>> P = torch.tensor([[[0.5, 0.5], [0.75, 0.25]]], dtype=torch.float64)
        >>> eliminate(P).round(decimals=3).tolist()
        [[0.6, 0.4]]
    """
    A: Any = P.movedim((-2, -1), (0, 1)).clone(memory_format=torch.contiguous_format)  # the batch last
    arrays = (A, torch.zeros_like(A[0]), pi := torch.zeros_like(A[0]))
    # On a processor the same memory in numpy, whose calls on few numbers take less time.
    _eliminate(*(x.numpy() for x in arrays) if P.device.type == "cpu" else arrays)
    return pi.movedim(0, -1)


def _eliminate(A: Any, leaves: Any, pi: Any) -> None:
    """Write the law of `A` `[state_from, state_to, ...]`, which is used up, into zeros `[state, ...]`."""
    for n in range(len(A) - 1, 0, -1):  # cut state n out: what passes through it goes where it would lead
        leaves[n] = A[n, :n].sum(0)
        A[:n, :n] += A[:n, n, None] * (A[n, :n] / leaves[n])
    pi[0] = 1
    for n in range(1, len(A)):  # put it back; pi stays a law throughout, so that no ratio can overflow
        enters = (pi[:n] * A[:n, n]).sum(0)
        pi[:n] *= leaves[n] / (leaves[n] + enters)
        pi[n] = enters / (leaves[n] + enters)


def entropy(law: Float[np.ndarray, " state"]) -> float:
    """Shannon entropy in nats, with `0 log 0 = 0`.

    Example:
        >>> round(entropy(np.array([0.5, 0.5, 0.0])), 4)
        0.6931
    """
    return float(entr(law).sum())


def entropy_rate(P: Float[np.ndarray, "state_from state_to"], pi: Float[np.ndarray, " state_from"]) -> float:
    """Entropy of the next state given the current one, `sum_i pi_i H(P_i)`, in nats.

    Example:
        >>> round(entropy_rate(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([2 / 3, 1 / 3])), 4)
        0.4621
    """
    return float(pi @ entr(P).sum(1))


def reachable(P: Float[np.ndarray, "state_from state_to"]) -> Bool[np.ndarray, "state_from state_to"]:
    """Returns which states can be reached from each, itself among them.

    Example:
        >>> reachable(np.array([[0.5, 0.5], [0.0, 1.0]])).tolist()
        [[True, True], [False, True]]
    """
    reach = (P > 0) | np.eye(len(P), dtype=bool)
    for _ in range(len(P).bit_length()):  # each squaring doubles the length of the paths allowed
        reach = reach.astype(np.float32) @ reach > 0
    return reach


def _only_closed_class(P: Float[np.ndarray, "state_from state_to"], name: str = "P") -> tuple[int, ...]:
    closed = closed_classes(P)
    if len(closed) > 1:
        named = ", ".join("{" + ", ".join(map(str, members)) + "}" for members in closed)
        raise ValueError(
            f"{name} has {len(closed)} closed classes of states, {named}, "
            "expected one: the stationary law is not unique"
        )
    return closed[0]
