"""Sums over all sequences of a fixed chain by classes of prefixes that a model cannot tell apart.

A causal model reads a prefix. Where its output depends on the prefix only through a class, and the class of
a longer prefix follows from that of the shorter one and the state that is added, the law of the classes is a
dynamic program over positions. Two such classes are

- `"counts"`: the last state and how often each state came, at most `K C(N + K - 1, K - 1)` of length N;
- an integer m: the last m states, at most `K^m`.

Each step from a class to a next state is a prediction with its own probability. `class_law` gives sequences
that are possible, and for each of their positions the probability that it stands for. So a model needs no
code of its own to be trained on the sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.sampling.whole_law import MAX_SEQUENCES
from mechmarkov.utils.lazy_torch import Tensor, torch

Memory = Literal["counts"] | int


@dataclass(frozen=True, eq=False)
class _Classes:
    """The classes of prefixes of one length: their keys, last states and probabilities."""

    key: Int[np.ndarray, "prefix_class entry"]
    last: Int[np.ndarray, " prefix_class"]
    mass: Float[np.ndarray, " prefix_class"]


@dataclass(frozen=True, eq=False)
class _Edges:
    """All ways to add a state, in the order of the classes: from which class, which state, to which class."""

    before: Int[np.ndarray, " edge"]
    following: Int[np.ndarray, " edge"]
    after: Int[np.ndarray, " edge"]
    mass: Float[np.ndarray, " edge"]


@dataclass(frozen=True, eq=False)
class _Cover:
    """The way sequences go on by one state: each new one goes on from an old one."""

    is_target: bool  # whether the state is one to predict
    path: Int[np.ndarray, " path"]  # the old sequence of each new one
    following: Int[np.ndarray, " path"]  # the state it adds
    mass: Float[np.ndarray, " path"]  # the probability of the way it takes
    old: Bool[np.ndarray, " path"]  # whether it is the first to go on from its old one
    new: Bool[np.ndarray, " path"]  # whether it is the first to take its way


def class_law(
    source: FixedChain, length: int, memory: Memory, read: Literal["all", "last"] = "all"
) -> tuple[Int64[Tensor, "sequence state"], Float64[Tensor, "sequence read"]]:
    """Sequences in which every class of prefixes meets every next state, and what each position stands for.

    A model whose output depends only on the class has the population loss
    `sum(weights * loss(sequence, position)) / positions`. The start is stationary.

    Args:
        source: The chain.
        length: States of a sequence, the last target among them.
        memory: What the model's output depends on: `"counts"`, or how many states back, at least 1.
        read: Whether every state but the first is a target, or only the last.

    Returns:
        Sequences of positive probability, and weights for each target: they sum to 1 at each position.

    Raises:
        ValueError: More than `MAX_SEQUENCES` sequences are needed, or lengths that make no sense.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> states, weights = class_law(Binary(p=0.5, q=0.5), 12, memory=1)
        >>> len(states), weights[:, 5].tolist()
        (4, [0.25, 0.25, 0.25, 0.25])
    """
    states = np.flatnonzero(source.pi)[:, None]
    weights = np.empty((len(states), 0))
    for cover in _covers(source, length, memory, read):
        if cover.is_target:
            kept, added = cover.old[:, None] * weights[cover.path], cover.new * cover.mass
            weights = np.concatenate([kept, added[:, None]], 1)
        else:
            weights = np.empty((len(cover.path), 0))
        states = np.concatenate([states[cover.path], cover.following[:, None]], 1)
    return torch.from_numpy(states), torch.from_numpy(weights)


def count_class_law(
    source: FixedChain, length: int, memory: Memory, read: Literal["all", "last"] = "all"
) -> int:
    """Returns how many sequences `class_law` has, without making them.

    Raises:
        ValueError: As `class_law`.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> count_class_law(Binary(p=0.5, q=0.5), 12, memory=1)
        4
    """
    return [len(cover.path) for cover in _covers(source, length, memory, read)][-1]


def _covers(
    source: FixedChain, length: int, memory: Memory, read: Literal["all", "last"]
) -> Iterator[_Cover]:
    """Yields how sequences go on, state by state.

    Raises:
        ValueError: As `class_law`.
    """
    if length < 2 or (memory != "counts" and memory < 1):
        raise ValueError(f"length is {length}, memory is {memory!r}, expected at least 2 and at least 1")
    classes = _start(source, memory)
    ends = np.arange(len(classes.last))
    for step in range(length - 1):
        after, edges = _step(source, classes, memory)
        is_target = read == "all" or step == length - 2
        if is_target:
            path, edge, old, new = _cover(ends, edges, len(classes.mass))
        else:  # one sequence for each class will do
            edge = np.unique(edges.after, return_index=True)[1]
            path = edges.before[edge]
            old = new = np.ones(len(edge), dtype=bool)
        if len(path) > MAX_SEQUENCES:
            raise ValueError(
                f"{source.title()!r} has more than {MAX_SEQUENCES} classes of {length} states by "
                f"{'counts' if memory == 'counts' else f'the last {memory}'}, expected at most that many"
            )
        yield _Cover(is_target, path, edges.following[edge], edges.mass[edge], old, new)
        classes, ends = after, edges.after[edge]


def _start(source: FixedChain, memory: Memory) -> _Classes:
    last = np.flatnonzero(source.pi)
    counts = np.eye(source.n_states, dtype=np.int64)[last]
    key = np.concatenate([counts, last[:, None]], 1) if memory == "counts" else last[:, None]
    return _Classes(key, last, source.pi[last])


def _step(source: FixedChain, classes: _Classes, memory: Memory) -> tuple[_Classes, _Edges]:
    """The classes of prefixes that are one state longer, and the ways there."""
    rows = source.P[classes.last]
    before, following = np.nonzero(rows)
    mass = classes.mass[before] * rows[before, following]
    if memory == "counts":
        key = classes.key[before]
        key[np.arange(len(key)), following] += 1
        key[:, -1] = following
    else:
        key = np.concatenate([classes.key[before], following[:, None]], 1)[:, -memory:]
    unique, after = np.unique(key, axis=0, return_inverse=True)
    after = after.ravel()
    total = np.bincount(after, mass, minlength=len(unique))
    return _Classes(unique, unique[:, -1], total), _Edges(before, following, after, mass)


def _cover(
    ends: Int[np.ndarray, " path"], edges: _Edges, n_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sequences that take every edge, each from one that ends in the edge's class.

    Where a class has more edges than sequences, sequences are repeated; where it has fewer, edges are.

    Returns:
        For each new sequence: the old one it goes on from, the edge it takes, whether it is that one's first
        copy, and whether it is the first to take its edge.
    """
    n_paths, n_edges = (np.bincount(x, minlength=n_classes) for x in (ends, edges.before))
    first_path, first_edge = (np.cumsum(n) - n for n in (n_paths, n_edges))
    needed = np.maximum(n_paths, n_edges)
    at = np.repeat(np.arange(n_classes), needed)
    turn = np.arange(len(at)) - np.repeat(np.cumsum(needed) - needed, needed)
    path = np.argsort(ends, kind="stable")[first_path[at] + turn % n_paths[at]]
    edge = first_edge[at] + turn % n_edges[at]
    return path, edge, turn < n_paths[at], turn < n_edges[at]
