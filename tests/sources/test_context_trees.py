"""Chains of variable order: one tree for all sequences, and a tree drawn for each, by sums over all trees."""

from itertools import product
from math import lgamma

import numpy as np
import pytest
from enumeration import EXACT, assert_drawn, assert_exact, assert_optimal, generator, table

from mechmarkov.sources import ContextTree, ContextTrees, OrderK

LEAVES = [([1], [0.3, 0.7]), ([0, 0], [0.9, 0.1]), ([1, 0], [0.5, 0.5])]
AFTER_TWO = [([i, 2], np.eye(3)[i] * 0.7 + 0.1) for i in range(3)]
THREE = [([0], [0.2, 0.3, 0.5]), ([1], [0.6, 0.3, 0.1]), *AFTER_TWO]


def tree_of(leaves):
    return ContextTree(leaves=[{"context": list(context), "law": list(law)} for context, law in leaves])


def law_after(leaves, past):
    (law,) = [law for context, law in leaves if past[len(past) - len(context) :] == tuple(context)]
    return law


@pytest.mark.parametrize("leaves", [LEAVES, THREE, [([], [0.3, 0.7])]], ids=["two", "three", "root"])
def test_a_tree_is_exact_on_all_short_sequences(leaves):
    source, n = tree_of(leaves), len(leaves[0][1])
    order = max(len(context) for context, _ in leaves)
    rows = [law_after(leaves, past) for past in product(range(n), repeat=max(1, order))]
    start = OrderK(np.reshape(rows, (n,) * (max(1, order) + 1))).history_law

    def law(x):
        first = x[: max(1, order)]
        p = start[sum(state * n**i for i, state in enumerate(reversed(first)))]
        for t in range(len(first), len(x)):
            p *= law_after(leaves, x[:t])[x[t]]
        return p

    assert_exact(source, law, 4)


def all_trees(n, depth, context=()):
    """Every tree below a context, as its leaves, with how often it is split and is not."""
    yield [context], 0, int(depth > 0)
    if depth:
        for below in product(*(list(all_trees(n, depth - 1, (i, *context))) for i in range(n))):
            yield (
                [leaf for leaves, *_ in below for leaf in leaves],
                1 + sum(split for _, split, _ in below),
                sum(ends for *_, ends in below),
            )


def fresh_law(source):
    n, a = source.n_states, source.concentration
    trees = list(all_trees(n, source.depth))

    def evidence(counts):
        seen = np.array(list(counts))
        return np.exp(
            lgamma(n * a) - lgamma(n * a + seen.sum()) + sum(lgamma(a + c) - lgamma(a) for c in seen)
        )

    def law(x):
        total = 0.0
        for leaves, splits, ends in trees:
            counts = {leaf: np.zeros(n) for leaf in leaves}
            for t in range(source.depth, len(x)):
                (leaf,) = [leaf for leaf in leaves if x[t - len(leaf) : t] == leaf]
                counts[leaf][x[t]] += 1
            prior = source.branch**splits * (1 - source.branch) ** ends
            total += prior * np.prod([evidence(c) for c in counts.values()])
        return total / n ** min(len(x), source.depth)

    return law


@pytest.mark.parametrize(
    ("source", "length"),
    [
        (ContextTrees(n_states=2, depth=1), 6),
        (ContextTrees(n_states=2, depth=2, branch=0.7), 7),
        (ContextTrees(n_states=3, depth=2, concentration=1.0), 5),
        (ContextTrees(n_states=2, depth=3, branch=0.3, concentration=2.0), 6),
    ],
    ids=["depth 1", "depth 2", "three states", "depth 3"],
)
def test_weighting_is_optimal_after_every_history(source, length):
    joint = table(fresh_law(source), source.n_states, length)
    assert_drawn(source, joint)
    assert_optimal(source, joint)


def test_a_kernel_is_constant_below_a_leaf():
    kernels = ContextTrees(n_states=2, depth=3).sample_chains(4_000, generator=generator()).numpy()
    root = (kernels == kernels[:, :1]).all((1, 2))
    assert abs(root.mean() - 0.5) < 0.04
    even, odd = (kernels[:, i::2] == kernels[:, i : i + 1] for i in (0, 1))
    halves = even.all((1, 2)) & odd.all((1, 2))
    assert abs((halves & ~root).mean() - 0.125) < 0.03  # split at the root, and not below


def test_a_tree_is_a_chain():
    source = tree_of(LEAVES)
    np.testing.assert_allclose(source.P, source.chain.P, **EXACT)
