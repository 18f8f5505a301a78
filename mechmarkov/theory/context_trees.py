"""Context-tree weighting: the exact Bayes predictor where a sequence has a context tree of its own.

Willems, Shtarkov & Tjalkens 1995 (IEEE Trans. Inf. Theory 41, 653-664). The leaves of a tree are suffixes
of the past, each with a law of the next state. A priori a node above the largest depth is split with
probability `branch`, and a leaf's law is Dirichlet(a).
"""

import numpy as np
from jaxtyping import Int
from scipy.special import expit, logit

from mechmarkov.theory.predictors import NextLaws, Tokens, check_tokens


def context_tree_weighting(
    tokens: Tokens, n_states: int, depth: int, branch: float = 0.5, concentration: float = 0.5
) -> NextLaws:
    """The law of the next state after each position (probability), by the mixture over all trees.

    At each node of the context's path the law is `w · counts + (1 - w) · the child's`, with w the posterior
    that the node is a leaf: O(depth · K) a position. Uniform where fewer than `depth` states are known.

    Args:
        tokens: The states so far.
        n_states: K.
        depth: The largest depth of a leaf, D.
        branch: The probability that a node above it is split, in (0, 1).
        concentration: a.

    Example:
        >>> law = context_tree_weighting(np.array([[0, 1, 0, 1, 0, 1]]), n_states=2, depth=1)[0]
        >>> law[:3].round(3).tolist(), law[-1].round(3).tolist()
        ([[0.5, 0.5], [0.375, 0.625], [0.333, 0.667]], [0.795, 0.205])
    """
    check_tokens(tokens, n_states)
    sequence, law = np.arange(len(tokens)), np.full((*tokens.shape, n_states), 1 / n_states)
    first = node_offsets(n_states, depth)
    counts = np.full((len(tokens), first[-1], n_states), float(concentration))
    leaf = np.full((len(tokens), first[-1]), float(logit(1 - branch)))  # log odds that a node is one
    path = np.zeros((depth + 1, len(tokens)), dtype=np.int64)
    for t in range(tokens.shape[1]):
        if t >= depth:  # the state that has come, after the context before it
            _see(counts, leaf, path, sequence, tokens[:, t])
        path = _onward(path, tokens[:, t], n_states, first)
        if t >= depth - 1:
            law[:, t] = _laws(counts, leaf, path, sequence)[0]
    return law


def node_offsets(n_states: int, depth: int) -> Int[np.ndarray, " level"]:
    """The number of the first node at each depth, and of all nodes last.

    Example:
        >>> node_offsets(2, 3).tolist()
        [0, 1, 3, 7, 15]
    """
    return np.concatenate([[0], np.cumsum(n_states ** np.arange(depth + 1))])


def _onward(
    path: Int[np.ndarray, "level batch"],
    token: Int[np.ndarray, " batch"],
    n_states: int,
    first: Int[np.ndarray, " _"],
) -> Int[np.ndarray, "level batch"]:
    """The nodes of the context's suffixes of 0, 1, … states, once a state more has come."""
    suffix = path - first[:-1, None]
    onward = np.zeros_like(path)
    for level in range(1, len(path)):
        onward[level] = first[level] + suffix[level - 1] * n_states + token
    return onward


def _laws(counts: np.ndarray, leaf: np.ndarray, path: np.ndarray, sequence: np.ndarray) -> list[np.ndarray]:
    """The law at each node of the path, the root first."""
    seen = counts[sequence, path]
    own = seen / seen.sum(-1, keepdims=True)
    laws = [own[-1]]
    for level in range(len(path) - 2, -1, -1):
        w = expit(leaf[sequence, path[level]])[:, None]
        laws.append(w * own[level] + (1 - w) * laws[-1])
    return laws[::-1]


def _see(
    counts: np.ndarray, leaf: np.ndarray, path: np.ndarray, sequence: np.ndarray, token: np.ndarray
) -> None:
    laws = _laws(counts, leaf, path, sequence)
    for level in range(len(path) - 1):
        own = counts[sequence, path[level]]
        gain = own[sequence, token] / own.sum(-1) / laws[level + 1][sequence, token]
        leaf[sequence, path[level]] += np.log(gain)
    for nodes in path:
        counts[sequence, nodes, token] += 1
