"""Small matrices times tokens in compiled functions, against numpy."""

import numpy as np
import pytest
import torch
from numba import njit

from mechmarkov.models.fast.registers import WIDTH
from mechmarkov.models.fast.token_rows import (
    PAIR,
    add_products,
    add_products_by_row,
    add_sums,
    as_token_rows,
    give,
    multiply,
    new_token_rows,
    padded,
    row_length,
    take,
)

COUNTS = [1, WIDTH, PAIR - 1, PAIR, 2 * PAIR + 3]
SHAPES = [(1, 1), (3, 2), (4, 4), (8, 6), (5, 16), (9, 7)]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def in_rows(x, length):
    """A matrix in rows of a length, zeros behind it."""
    out = np.zeros((len(x), length), np.float32)
    out[:, : x.shape[1]] = x
    return out


@njit
def _take_and_give(x, rows, out, n):
    take(rows, row_length(n), x[:, 3 : 3 + n], np.float32(2))
    give(out[:, 1 : n + 1], rows, row_length(n), np.float32(3))


@pytest.mark.parametrize("n", COUNTS)
def test_tokens_are_taken_and_given(n):
    x, rows, out = numbers(5, n + 4), np.full((5, row_length(n)), np.nan, np.float32), np.zeros((5, n + 2))
    _take_and_give(x, rows.ravel(), out.astype(np.float32), n)
    np.testing.assert_array_equal(rows[:, :n], 2 * x[:, 3 : 3 + n])
    assert not rows[:, n : padded(n)].any()
    given = np.zeros((5, n + 2), np.float32)
    _take_and_give(x, rows.ravel(), given, n)
    np.testing.assert_allclose(given[:, 1 : n + 1], 6 * x[:, 3 : 3 + n], rtol=1e-6)
    assert not given[:, [0, -1]].any()


@njit
def _multiply(out, bounded, turned, weights, bias, x, n_in, n_out, n):
    multiply(out, weights, n_out, 1, x, row_length(n), n_in, n_out, n, bias, np.float32(-np.inf))
    multiply(bounded, weights, n_out, 1, x, row_length(n), n_in, n_out, n, bias, np.float32(0.5))
    none = np.zeros(n_in, np.float32)
    multiply(turned, weights, 1, n_out, out, row_length(n), n_out, n_in, n, none, np.float32(-np.inf))


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize(("n_in", "n_out"), SHAPES)
def test_products_with_and_without_bias_and_bound(n_in, n_out, n):
    x, weights, bias = numbers(n_in, n), numbers(n_in, n_out, seed=1), numbers(n_out, seed=2)
    out, bounded = (np.zeros((n_out, row_length(n)), np.float32) for _ in range(2))
    turned = np.zeros((n_in, row_length(n)), np.float32)
    rows = in_rows(x, row_length(n)).ravel()
    _multiply(out.ravel(), bounded.ravel(), turned.ravel(), weights.ravel(), bias, rows, n_in, n_out, n)
    expected = weights.T @ x + bias[:, None]
    np.testing.assert_allclose(out[:, :n], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bounded[:, :n], np.maximum(expected, 0.5), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(turned[:, :n], weights @ expected, rtol=1e-4, atol=1e-4)


@njit
def _add(out, sums, by_row, x, y, n_x, n_y, n):
    add_products(out, n_y + 2, x, y, row_length(n), n_x, n_y, n)
    add_sums(sums, x, row_length(n), n_x, n)
    add_products_by_row(by_row, x, y, row_length(n), min(n_x, n_y), n)


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize(("n_x", "n_y"), SHAPES)
def test_sums_over_tokens_are_added(n_x, n_y, n):
    x, y = numbers(n_x, n), numbers(n_y, n, seed=1)
    out, sums, by_row = np.ones((n_x, n_y + 2), np.float32), np.ones(n_x, np.float32), np.ones(9, np.float32)
    _add(out.ravel(), sums, by_row, *(in_rows(z, row_length(n)).ravel() for z in (x, y)), n_x, n_y, n)
    np.testing.assert_allclose(out[:, :n_y], 1 + x @ y.T, rtol=1e-4, atol=1e-4)
    assert (out[:, n_y:] == 1).all()
    np.testing.assert_allclose(sums, 1 + x.sum(1), rtol=1e-4, atol=1e-4)
    few = min(n_x, n_y)
    np.testing.assert_allclose(by_row[:few], 1 + (x[:few] * y[:few]).sum(1), rtol=1e-4, atol=1e-4)
    assert (by_row[few:] == 1).all()


def test_rows_do_not_share_a_place_in_the_cache():
    """A core's first cache has a place for each line of 4096 bytes, and eight or twelve may share one."""
    for n in (64, 256, 1024, 1000):
        places = {4 * row_length(n) * row % 4096 // 64 for row in range(16)}
        assert len(places) == 16


def test_new_memory_has_tokens_last():
    for shape in ((2, 7, 3), (2, 4, 5, 3)):
        x = new_token_rows(torch.zeros(shape), 6)
        assert x.shape == (*shape[:-1], 6)
        assert x.movedim(-1, 1).is_contiguous()
        assert not x._is_view()
        as_token_rows(x)[:] = 5  # the same memory
        assert (x == 5).all()
