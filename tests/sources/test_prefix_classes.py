"""Laws of classes of prefixes against all sequences, one by one, and against moments in closed form."""

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest

from mechmarkov.sources import Binary, Chain, Circle
from mechmarkov.sources.sampling.prefix_classes import class_law

CHAINS = {
    "dense": Chain(P=[[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.25, 0.15, 0.6]]),
    "no permutation": Chain(P=[[0, 0.5, 0.5], [1, 0, 0], [1, 0, 0]]),  # its states cannot take turns
    "transient": Chain(P=[[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]),
    "circle": Circle(n_states=4, p=0.3),
    "deterministic": Circle(n_states=3, p=1.0),
}


def walks(source, length):
    """Every sequence of positive probability, with it."""
    for walk in product(range(source.n_states), repeat=length):
        weight = source.pi[walk[0]] * np.prod([source.P[a, b] for a, b in pairwise(walk)])
        if weight > 0:
            yield walk, weight


def class_of(prefix, memory):
    return (*sorted(prefix), prefix[-1]) if memory == "counts" else prefix[-memory:]


@pytest.mark.parametrize("memory", ["counts", 1, 2, 3, 9])
@pytest.mark.parametrize("name", CHAINS)
def test_every_class_meets_every_next_state_at_its_probability(name, memory):
    source, length = CHAINS[name], 6
    expected = [Counter() for _ in range(length - 1)]
    for walk, weight in walks(source, length):
        for t in range(1, length):
            expected[t - 1][class_of(walk[:t], memory), walk[t]] += weight
    for read in ("all", "last"):
        states, weights = (x.numpy() for x in class_law(source, length, memory, read))
        read_at = range(1, length) if read == "all" else [length - 1]
        assert weights.shape == (len(states), len(read_at))
        possible = {walk for walk, _ in walks(source, length)}
        assert set(map(tuple, states.tolist())) <= possible
        assert len(set(map(tuple, states.tolist()))) == len(states)  # so never more than all of them
        for column, t in enumerate(read_at):
            found = Counter()
            for walk, weight in zip(states.tolist(), weights[:, column], strict=True):
                found[class_of(tuple(walk[:t]), memory), walk[t]] += weight
            found = {key: weight for key, weight in found.items() if weight > 0}
            assert found == pytest.approx(expected[t - 1], rel=1e-13)


def test_counts_of_a_long_binary_chain_have_the_moments_of_theory():
    """Mean `N pi`; variance `pi_0 pi_1 (N + 2 sum_k (N - k) r^k)` with `r = 1 - p - q`."""
    source, n = Binary(p=0.2, q=0.3), 300
    states, weights = (x.numpy() for x in class_law(source, n + 1, "counts", "last"))
    assert len(states) == 4 * n  # of 2^301 sequences: either state is last and next
    counts, probability = states[:, :n].sum(1), weights[:, 0]
    mean = counts @ probability
    variance = (counts - mean) ** 2 @ probability
    k = np.arange(1, n)
    assert mean == pytest.approx(n * 0.4, rel=1e-12)
    assert variance == pytest.approx(0.24 * (n + 2 * ((n - k) * 0.5**k).sum()), rel=1e-12)


def test_too_many_classes_are_refused():
    with pytest.raises(ValueError, match="more than 65536 classes of 60 states by counts, expected at most"):
        class_law(Circle(n_states=6, p=0.3), 60, "counts")
    with pytest.raises(ValueError, match="memory is 0, expected"):
        class_law(Binary(p=0.2, q=0.3), 5, 0)
