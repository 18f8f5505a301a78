"""Rows of registers in compiled functions, against numpy."""

import numpy as np
import pytest
from numba import njit

from mechmarkov.models.fast.register_rows import (
    add_weighted,
    dots,
    load_rows,
    store_rows,
    transposed,
    where_within,
    zeros,
)
from mechmarkov.models.fast.registers import WIDTH, load, splat, store

LENGTH = 2 * WIDTH + 3  # of a row


def matrix(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, LENGTH)).astype(np.float32)


@njit
def _rows_are_loaded_and_stored(like, x, out):
    store_rows(out, 2, LENGTH, load_rows(like, x, 5, LENGTH))
    store_rows(out, 2 + WIDTH, LENGTH, zeros(like))


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_rows_are_loaded_and_stored(rows):
    x, out = matrix(rows), np.ones((rows, LENGTH), np.float32)
    _rows_are_loaded_and_stored(tuple(range(rows)), x.ravel(), out.ravel())
    expected = np.ones((rows, LENGTH))
    expected[:, 2 : 2 + WIDTH], expected[:, 2 + WIDTH : 2 + 2 * WIDTH] = x[:, 5 : 5 + WIDTH], 0
    np.testing.assert_array_equal(out, expected)


@njit
def _products_with_four_columns(like, x, y, out):
    store_rows(out, 0, WIDTH, dots(splat(np.float32(2)), like, x, 5, LENGTH, y, 7, LENGTH))


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_products_with_four_columns(rows):
    x, y, out = matrix(rows), matrix(rows, seed=1), np.zeros((4, WIDTH), np.float32)
    _products_with_four_columns(tuple(range(rows)), x.ravel(), y.ravel(), out.ravel())
    np.testing.assert_allclose(out, 2 + y[:, 7:11].T @ x[:, 5 : 5 + WIDTH], rtol=1e-5, atol=1e-5)


@njit
def _weighted_columns_are_added(like, x, y, weights, out):
    w = load(weights, 0), load(weights, WIDTH), load(weights, 2 * WIDTH)
    store_rows(out, 0, WIDTH, add_weighted(load_rows(like, x, 5, LENGTH), w, y, 7, LENGTH))


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_weighted_columns_are_added(rows):
    x, y, out = matrix(rows), matrix(rows, seed=1), np.zeros((rows, WIDTH), np.float32)
    weights = matrix(3, seed=2)[:, :WIDTH]
    _weighted_columns_are_added(tuple(range(rows)), x.ravel(), y.ravel(), weights.ravel(), out.ravel())
    np.testing.assert_allclose(out, x[:, 5 : 5 + WIDTH] + y[:, 7:10] @ weights, rtol=1e-5, atol=1e-5)


@njit
def _rows_become_columns(x, out):
    store_rows(out, 0, WIDTH, transposed(x))


def test_rows_become_columns():
    x, out = np.arange(WIDTH**2, dtype=np.float32), np.zeros(WIDTH**2, np.float32)
    _rows_become_columns(x, out)
    np.testing.assert_array_equal(out.reshape(WIDTH, WIDTH), x.reshape(WIDTH, WIDTH).T)


@njit
def _other_numbers_outside(x, first, last, out):
    store(out, 0, where_within(first, last, load(x, 0), splat(np.float32(-np.inf))))


@pytest.mark.parametrize("first", [-2 * WIDTH, -3, 0, 5, 4 * WIDTH])
@pytest.mark.parametrize("last", [0, 4, 3 * WIDTH])
def test_other_numbers_outside(first, last):
    x, out = matrix(1)[0], np.zeros(WIDTH, np.float32)
    _other_numbers_outside(x, first, last, out)
    place = first + np.arange(WIDTH)
    np.testing.assert_array_equal(out, np.where((place >= 0) & (place <= last), x[:WIDTH], -np.inf))
