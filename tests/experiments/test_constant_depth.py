"""Rajaraman et al. on constant depth: the constructions can fail, and one layer cannot count pairs."""

import numpy as np
import pytest
from scipy.optimize import linprog

from experiments.order_and_lag import constant_depth as cd


def direction(measured, key):
    return next(one.direction for one in measured.findings if one.key == key)


def test_the_k_gram_by_hand():
    tokens = np.array([[0, 1, 0, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 0]])
    law, there = cd.k_gram(tokens, 1, 2)
    assert there.tolist() == [True, False]  # in the second no 0 was followed by anything
    np.testing.assert_allclose(law[0], [1 / 3, 2 / 3])
    law, there = cd.k_gram(tokens, 2, 2)
    np.testing.assert_allclose(law[there], [[1.0, 0.0]][: there.sum()])


def test_the_printed_weights_count_first_positions_as_matches():
    """At k = 2 the head that looks two back is on all tokens alike at position 0 and 1."""
    tokens = cd.every_sequence(2, 7).numpy()
    assert cd.wrong(cd.by_heads(tokens, 2, 2, marked=False), tokens, 2, 2)[0] > 0
    assert cd.wrong(cd.by_heads(tokens, 2, 2, marked=True), tokens, 2, 2)[0] == 0


def test_a_head_that_looks_one_further_is_told(monkeypatch):
    right = cd.looks
    monkeypatch.setattr(cd, "looks", lambda lag: right(lag + 1))
    tokens = cd.every_sequence(2, 7).numpy()
    assert cd.wrong(cd.by_heads(tokens, 2, 2, marked=True), tokens, 2, 2)[0] > 0


def test_sums_without_the_last_token_lag():
    tokens = np.array([[0, 1, 1, 0, 1]])
    # Weights on the last token: what followed 1. On the one before it: what came two after 0.
    np.testing.assert_allclose(cd.by_sums(tokens, 1, 2, range(1)), [[0.5, 0.5]])
    np.testing.assert_allclose(cd.by_sums(tokens, 1, 2, range(1, 2)), [[0, 1]])


def test_scores_as_printed_read_only_the_largest_lag():
    """After the last two tokens, 0 and 1, came 0 before; two after a 0 came 1 and 0."""
    tokens = np.array([[0, 0, 1, 0, 1]])
    np.testing.assert_allclose(cd.by_norms(tokens, 2, 2, printed=True), [[0.5, 0.5]])
    np.testing.assert_allclose(cd.by_norms(tokens, 2, 2), [[1, 0]], atol=1e-9)


def test_theorem_4_needs_other_lags_and_weights_than_printed():
    measured = cd.constant_depth(True)
    assert direction(measured, "first_layer_k") == "corrected"
    assert direction(measured, "three_layers_printed") == "corrected"


def test_norms_without_normalising_are_told(monkeypatch):
    monkeypatch.setattr(cd, "by_norms", lambda tokens, k, n, **_: np.full((len(tokens), n), 1 / n))
    assert direction(cd.constant_depth(True), "three_layers") == "against"


@pytest.mark.parametrize(
    "largest", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)]
)
def test_one_layer_stays_away_from_the_conditional_bigram(largest):
    """The least error over all weights and values of one layer, where one sequence has the largest weight."""
    wanted = {
        (0, 0, 0): 0,
        (1, 0, 0): 0,
        (1, 1, 0): 0,
        (0, 0, 1): 0.5,
        (0, 1, 0): 0.5,
        (0, 1, 1): 1,
        (1, 0, 1): 1,
    }
    marks = {s: np.eye(6)[[2 * i + x for i, x in enumerate(s)]].sum(0) for s in wanted}
    no, rows, bounds = np.zeros(6), [], []
    for sequence, share in wanted.items():
        mark = marks[sequence]
        rows += [np.r_[-share * mark, mark, -1], np.r_[share * mark, -mark, -1], np.r_[mark, no, 0]]
        bounds += [0, 0, 1]
    found = linprog(
        np.r_[no, no, 1],
        A_ub=np.array(rows),
        b_ub=bounds,
        A_eq=[np.r_[marks[largest], no, 0]],
        b_eq=[1],
        bounds=[(0, None)] * 6 + [(None, None)] * 6 + [(0, None)],
    )
    assert found.success
    assert found.fun > 0.05
