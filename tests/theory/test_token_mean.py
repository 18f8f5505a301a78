"""The variance of the token mean against all sequences, one by one."""

from itertools import pairwise, product

import numpy as np
import pytest

from mechmarkov.sources import Circle
from mechmarkov.theory.walk.token_mean import token_mean_variance

P3 = np.array([[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]])


def by_enumeration(P, mu, length):
    n = len(P)
    weights, means, labels = [], [], []
    for walk in product(range(n), repeat=length):
        weights.append(mu[walk[0]] * np.prod([P[a, b] for a, b in pairwise(walk)]))
        means.append(np.bincount(walk[:-1], minlength=n) / (length - 1))
        labels.append(walk[-1])
    w, m, y = np.array(weights), np.array(means), np.array(labels)
    centre = w @ m
    total = float((w @ (m - centre) ** 2).sum())
    between = 0.0
    for label in range(n):
        share = w[y == label].sum()
        between += share * ((w[y == label] @ m[y == label] / share - centre) ** 2).sum()
    return between, total


@pytest.mark.parametrize("mu", [[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], ids=["any start", "one start"])
@pytest.mark.parametrize("length", [2, 3, 7])
def test_against_all_sequences(mu, length):
    found = token_mean_variance(P3, np.array(mu), length)
    assert found == pytest.approx(by_enumeration(P3, np.array(mu), length), abs=1e-12)


def test_whole_turns_say_nothing_and_broken_ones_everything():
    turning = Circle(n_states=6, p=1.0)
    assert token_mean_variance(turning.P, np.array(turning.pi), 97) == (0.0, 0.0)
    between, total = token_mean_variance(turning.P, np.array(turning.pi), 99)
    assert 0 < between == pytest.approx(total)
