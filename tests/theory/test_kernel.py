"""Comparisons of a circuit with the chain, against formulas written out again."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mechmarkov.theory import kernel as k

P = np.array([[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]])
PI = np.linalg.matrix_power(P, 200)[0]
TABLES = arrays(np.float64, (3, 3), elements=st.floats(-5, 5).map(lambda x: round(x, 3)))
ROWS = arrays(np.float64, (3, 1), elements=st.floats(-50, 50))


def softmax(table):
    return np.exp(table) / np.exp(table).sum(-1, keepdims=True)


def test_kl_is_the_sum_over_what_is_possible():
    exact, model = np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.1, 0.2, 0.3, 0.4])
    expected = sum(p * math.log(p / q) for p, q in zip(exact, model, strict=True) if p)
    assert k.kl(exact, model) == pytest.approx(expected, abs=1e-15)


def test_kl_floors_what_the_model_calls_impossible_and_ignores_what_is():
    exact, model = np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0])
    assert k.kl(exact, model) == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 1e-12), abs=1e-12)
    assert k.kl(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0


def test_kl_broadcasts_over_leading_axes():
    model = softmax(np.random.default_rng(0).normal(size=(4, 3, 3)))
    values = k.kl(P, model)
    assert values.shape == (4, 3)
    for a, i in np.ndindex(4, 3):
        expected = sum(P[i, j] * math.log(P[i, j] / model[a, i, j]) for j in range(3))
        assert values[a, i] == pytest.approx(expected, abs=1e-14)


@settings(deadline=None, max_examples=40)
@given(TABLES)
def test_kernel_kl_is_the_stationary_mean_of_the_rows(table):
    model = softmax(table)
    rows = [sum(P[i, j] * math.log(P[i, j] / model[i, j]) for j in range(3)) for i in range(3)]
    assert k.kernel_kl(model, P, PI) == pytest.approx(float(PI @ rows), abs=1e-12)


@pytest.mark.parametrize("lead", [(3,), (4,), (2, 3)])
def test_each_table_of_many_has_its_own_scale(lead):
    """As many tables as rows would broadcast along the wrong axis."""
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(*lead, 3, 3)) * 10.0 ** rng.integers(-200, 200, size=(*lead, 1, 1))
    target = rng.normal(size=(3, 3))
    found = k.cosine(tables, target)
    assert found.shape == lead
    for at in np.ndindex(*lead):
        assert found[at] == pytest.approx(float(k.cosine(tables[at], target)), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(TABLES, TABLES)
def test_cosine_is_the_angle_of_flattened_tables(a, b):
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    expected = 0.0 if norms == 0 else np.vdot(a, b) / norms
    assert k.cosine(a, b) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(TABLES, st.sampled_from([1e-180, 1e-30, 1e-3, 1e30, 1e150]))
def test_scale_changes_no_cosine_however_far_it_goes(table, scale):
    target = k.row_centred(np.log(P))
    assert k.cosine(scale * table, target) == pytest.approx(float(k.cosine(table, target)), abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3e-9, 1e12 / 3])
@pytest.mark.parametrize("centred", [k.row_centred, k.double_centred])
def test_a_constant_table_has_cosine_zero_with_everything(centred, value):
    table = centred(np.full((5, 5), value))
    assert (table == 0).all()
    assert k.cosine(table, centred(np.diag(np.arange(1.0, 6)))) == 0


def test_a_table_and_itself_have_cosine_one_and_no_distance():
    for seed in range(50):
        table = np.random.default_rng(seed).normal(size=(4, 4))
        assert k.cosine(table, table) <= 1
        assert k.cosine(table, table) == pytest.approx(1, abs=1e-15)
        assert k.directional_distance(table, table) == pytest.approx(0, abs=1e-7)


@settings(deadline=None, max_examples=40)
@given(TABLES, TABLES)
def test_directional_distance_is_that_of_unit_tables(a, b):
    if not np.linalg.norm(a) or not np.linalg.norm(b):
        assert k.directional_distance(a, b) == pytest.approx(math.sqrt(2))
    else:
        expected = np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b))
        assert k.directional_distance(a, b) == pytest.approx(expected, abs=1e-7)


@settings(deadline=None, max_examples=40)
@given(TABLES, ROWS)
def test_a_constant_per_row_changes_nothing_under_a_softmax(table, rows):
    assert np.allclose(softmax(table + rows), softmax(table), atol=1e-12)
    assert np.allclose(k.row_centred(table + rows), k.row_centred(table), atol=1e-12)
    assert k.slope(table + rows, np.log(P)) == pytest.approx(float(k.slope(table, np.log(P))), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(TABLES, ROWS, ROWS)
def test_double_centring_forgets_rows_and_columns_and_is_a_projection(table, rows, columns):
    centred = k.double_centred(table + rows + columns.T)
    assert np.allclose(centred, k.double_centred(table), atol=1e-12)
    assert np.allclose(centred.sum(0), 0, atol=1e-12)
    assert np.allclose(centred.sum(1), 0, atol=1e-12)
    assert np.allclose(k.double_centred(centred), centred, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(TABLES)
def test_slope_is_that_of_a_regression_with_an_intercept_for_each_row(table):
    design = np.zeros((9, 4))
    design[:, 0] = np.log(P).ravel()
    design[np.arange(9), 1 + np.repeat(np.arange(3), 3)] = 1
    expected = np.linalg.lstsq(design, table.ravel(), rcond=None)[0][0]
    assert k.slope(table, np.log(P)) == pytest.approx(expected, abs=1e-10)


def test_slope_of_the_target_is_its_factor_and_on_uniform_rows_there_is_none():
    assert k.slope(-2.5 * np.log(P) + np.arange(3)[:, None], np.log(P)) == pytest.approx(-2.5)
    assert np.isnan(k.slope(np.log(P), np.full((3, 3), np.log(1 / 3))))


def recall_by_sets(table, chain):
    total = 0.0
    for mine, theirs in zip(table, chain, strict=True):
        best = {j for j, v in enumerate(mine) if v == max(mine)}
        truth = {j for j, v in enumerate(theirs) if v == max(theirs)}
        total += len(best & truth) / len(best)
    return total / len(table)


@settings(deadline=None, max_examples=40)
@given(arrays(np.float64, (4, 4), elements=st.sampled_from([0.0, 1.0, 2.0])))
def test_recall_counts_ties_as_sets(table):
    walk = 0.5 * (np.roll(np.eye(4), 1, 1) + np.roll(np.eye(4), -1, 1))
    assert k.recall(table, walk) == pytest.approx(recall_by_sets(table, walk))
    lopsided = 0.8 * np.roll(np.eye(4), 1, 1) + 0.2 * np.roll(np.eye(4), -1, 1)
    assert k.recall(table, lopsided) == pytest.approx(recall_by_sets(table, lopsided))


def test_a_constant_table_recalls_at_chance():
    walk = 0.5 * (np.roll(np.eye(6), 1, 1) + np.roll(np.eye(6), -1, 1))
    for chain in (P, np.eye(5), walk):
        constant = np.full(chain.shape, 0.3)
        assert k.recall(constant, chain) == pytest.approx(k.chance_recall(chain))
    assert k.chance_recall(P) == pytest.approx(1 / 3)
    assert k.chance_recall(walk) == pytest.approx(1 / 3)


def test_float32_rounding_breaks_no_tie_but_a_difference_does():
    table = np.array([[1.0, 1 + 1e-7], [0.0, 1.0]])
    assert k.argmax_sets(table).tolist() == [[True, True], [False, True]]
    table[0, 1] += 1e-4
    assert k.argmax_sets(table).tolist() == [[False, True], [False, True]]


@settings(deadline=None, max_examples=40)
@given(arrays(np.float64, (5, 5), elements=st.floats(-5, 5).map(lambda x: round(x, 3))))
def test_circulant_share_is_a_projection_onto_the_shifts(table):
    shifts = [np.roll(np.eye(5), d, 1) for d in range(5)]
    projection = sum(np.vdot(shift, table) / 5 * shift for shift in shifts)
    if not np.linalg.norm(table):
        assert np.isnan(k.circulant_share(table))
    else:
        expected = np.linalg.norm(projection) ** 2 / np.linalg.norm(table) ** 2
        assert k.circulant_share(table) == pytest.approx(expected, abs=1e-12)


def test_circulant_share_is_one_for_what_depends_on_the_displacement_alone():
    table = 0.3 * np.roll(np.eye(6), 1, 1) - 2 * np.roll(np.eye(6), 2, 1)
    assert k.circulant_share(table) == pytest.approx(1)
    assert k.circulant_share(table[[1, 0, 2, 3, 4, 5]]) < 0.8
    assert k.circulant_share(np.stack([table, np.ones((6, 6))])).tolist() == pytest.approx([1, 1])


def test_the_target_follows_the_loss():
    zeros = np.roll(np.eye(3), 1, 1)
    for kind, chain, name, target in [
        ("cross_entropy", P, "log P", np.log(P)),
        ("cross_entropy", zeros, "P", zeros),
        ("raw_log", P, "sqrt P", np.sqrt(P)),
        ("raw_log", zeros, "sqrt P", zeros),
        ("normalised_log", P, "P", P),
        ("squared", P, "P", P),
    ]:
        found, table = k.target_for(kind, chain)
        assert found == name
        assert np.array_equal(table, target)
