"""Arithmetic on registers in compiled functions, against numpy."""

import numpy as np
import pytest
from numba import njit

from mechmarkov.models.fast.registers import (
    WIDTH,
    add_total,
    add_totals,
    at_least,
    at_most,
    load,
    load_splat,
    splat,
    store,
    times_power,
    zero_up_to,
)


def numbers(n=2 * WIDTH, seed=0):
    return np.random.default_rng(seed).normal(size=n).astype(np.float32)


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_arithmetic_in_each_place(offset):
    @njit
    def compute(a, b, out, at):
        x, y = load(a, at), load(b, at)
        store(out, at, (x + y) * (x - y) / (splat(np.float32(2)) + y * y))

    a, b, out = numbers(), numbers(seed=1), np.zeros(2 * WIDTH, np.float32)
    compute(a, b, out, offset)
    inside = slice(offset, offset + WIDTH)
    np.testing.assert_allclose(out[inside], ((a + b) * (a - b) / (2 + b * b))[inside], rtol=1e-5, atol=1e-6)
    assert not np.delete(out, np.arange(offset, offset + WIDTH)).any()


def test_one_number_in_every_place():
    @njit
    def compute(a, out):
        store(out, 0, load_splat(a, 3))

    a, out = numbers(), np.zeros(WIDTH, np.float32)
    compute(a, out)
    assert (out == a[3]).all()


def test_bounds_let_nan_pass():
    @njit
    def compute(a, out):
        x = load(a, 0)
        store(out, 0, at_least(x, splat(np.float32(-0.5))))
        store(out, WIDTH, at_most(x, splat(np.float32(0.5))))

    a, out = numbers(WIDTH), np.zeros(2 * WIDTH, np.float32)
    a[2] = np.nan
    compute(a, out)
    np.testing.assert_array_equal(out[:WIDTH], np.maximum(a, np.float32(-0.5)))
    np.testing.assert_array_equal(out[WIDTH:], np.minimum(a, np.float32(0.5)))


def test_zero_up_to_a_bound():
    @njit
    def compute(a, b, out):
        store(out, 0, zero_up_to(load(a, 0), splat(np.float32(0.1)), load(b, 0)))

    a, b, out = numbers(WIDTH), numbers(WIDTH, seed=1), np.zeros(WIDTH, np.float32)
    a[2:4] = np.nan, 0.1
    compute(a, b, out)
    np.testing.assert_array_equal(out, np.where(a <= np.float32(0.1), 0, b))


def test_a_power_is_in_the_last_bits():
    @njit
    def compute(a, exponents, out):
        store(out, 0, times_power(load(a, 0), load(exponents, 0)))

    exponents = (np.arange(WIDTH) - 5).astype(np.int32)
    a, out = np.abs(numbers(WIDTH)) + 1, np.zeros(WIDTH, np.float32)
    compute(a, exponents.view(np.float32), out)
    np.testing.assert_array_equal(out, a * np.exp2(exponents.astype(np.float32)))


def test_the_sum_of_a_register():
    @njit
    def compute(a, out):
        add_total(out, 1, load(a, 0))

    a, out = numbers(WIDTH), np.ones(3, np.float32)
    compute(a, out)
    np.testing.assert_allclose(out, [1, 1 + a.sum(dtype=np.float64), 1], rtol=1e-6)


def test_sums_of_sixteen_registers():
    @njit
    def compute(a, out):
        some = (load(a, 0), load(a, 1), load(a, 2), load(a, 3), load(a, 4), load(a, 5))
        more = (load(a, 6), load(a, 7), load(a, 8), load(a, 9), load(a, 10), load(a, 11))
        last = (load(a, 12), load(a, 13), load(a, 14), load(a, 15))
        add_totals(out, 1, 6, some + more + last)

    a, out = numbers(16 + WIDTH), np.ones(25, np.float32)
    compute(a, out)
    expected = np.ones(25)
    for register in range(16):
        four, place = divmod(register, 4)
        expected[1 + 6 * four + place] += a[register : register + WIDTH].sum()
    np.testing.assert_allclose(out, expected, atol=1e-5)
