"""The rest of each row at the best slope and bias, against a grid of both."""

from itertools import product

import numpy as np
import pytest

from mechmarkov.theory.fitted_rows import left_of_rows

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.15, 0.6]])
BIAS = np.array([1.0, 0.0, -1.0])


def by_grid(table):
    best = (np.inf, np.zeros(3))
    for slope, times in product(np.linspace(-1, 3, 161), np.linspace(-2, 2, 161)):
        q = np.exp(slope * table + times * BIAS)
        rows = (P * np.log(P / (q / q.sum(1, keepdims=True)))).sum(1)
        best = min(best, (rows.sum(), rows), key=lambda one: one[0])
    return best[1]


@pytest.mark.parametrize("turned", [[], [0], [0, 2]])
def test_rows_are_left_as_on_a_grid(turned):
    table = np.log(P) / 1.5 - 0.5 * BIAS
    table[turned] = table[turned, ::-1]
    left, grid = left_of_rows(table, P, BIAS[None]), by_grid(table)
    assert left.sum() == pytest.approx(grid.sum(), abs=1e-3)
    assert left.sum() <= grid.sum() + 1e-6  # the grid misses the best by a little
    assert left == pytest.approx(grid, abs=0.02)


def test_hardly_possible_transitions_hardly_weigh():
    """Their logarithms are nearly all of a table, and most of the mass of two rows is elsewhere."""
    law = np.array([[0.8, 0.2, 1e-6], [0.2, 0.8, 1e-6], [1e-6, 1e-6, 1.0]])
    table = np.log(law[[1, 0, 2]])
    assert left_of_rows(table, law, np.zeros((1, 3)))[:2].min() > 0.15
