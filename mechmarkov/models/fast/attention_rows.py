"""Causal attention of one small head over one sequence, in functions that numba compiles.

FlashAttention (Dao et al. 2022, arXiv 2205.14135) for heads of up to 16 numbers. Kernels made for large heads
have the numbers of a head in a vector register, which these do not fill. Here it holds queries: the weights
of four keys at a time are computed, used and forgotten. No key ahead is read, and none out of the window.

Scores are in bits, so that weights are powers of two. They are taken without a maximum in front: as long as
a query's sum is an ordinary number, no digit is lost. Where one is not, maxima are taken off, all once more.

Matrices are flat arrays: a head's rows of `n` positions, the first `length` of them a sequence's.
"""

from typing import no_type_check

import numpy as np

from mechmarkov.models.fast.register_rows import (
    add_weighted,
    dots,
    load_rows,
    store_rows,
    transposed,
    where_within,
    zeros,
)
from mechmarkov.models.fast.registers import (
    WIDTH,
    at_least,
    at_most,
    load,
    splat,
    store,
    times_power,
    zero_up_to,
)
from mechmarkov.utils.compiled import called, inlined

f32 = np.float32
LARGEST_SUM = f32(2.0**32)  # of a query's weights; the smallest is one over it
LARGEST_POWER = f32(126)
SMALLEST_POWER = f32(-80)  # below it a weight is zero: its products would be denormal numbers, which are slow
ROUNDING = f32(1.5 * 2**23)  # added to a number, it leaves the nearest integer in the last bits
LN2 = f32(np.log(2))
# 2^x = 1 + x (c1 + x (c2 + ...)) with an error below 2e-7 of it for |x| <= 1/2, in float32.
C1, C2, C3, C4, C5 = map(f32, (0.6931469776, 0.2402224209, 0.05550733744, 0.009671512649, 0.001326472707))


def rows_of(d_head: int) -> tuple[int, ...]:
    """An entry for each number of a head, in whole fours: each count of them is compiled, for seconds."""
    return tuple(range(-(-d_head // 4) * 4))


@no_type_check
@called
def attend(rows, made, read, sums, shift, n, length, window):
    """Set what each query reads, the sum of its weights, and what its scores are shifted by.

    `rows` is a tuple with an entry for each of a head's rows; `made` are queries, keys and values.
    """
    queries, keys, values = made
    for i in range(0, length, WIDTH):
        store(shift, i, splat(f32(0)))
        for _ in range(2):
            _read(rows, read, sums, shift, queries, keys, values, n, i, length, window)
            if not _set_maxima(rows, shift, sums, queries, keys, n, i, length, window):
                break
        for row in range(0, len(rows) * n, n):
            store(read, row + i, load(read, row + i) / load(sums, i))


@no_type_check
@inlined
def _read(rows, read, sums, shift, queries, keys, values, n, i, length, window):
    """The sums of weights, and of weighted values, for a register of queries."""
    found, total = zeros(rows), splat(f32(0))
    for j in range(_first_key(i, window), min(i + WIDTH, length), 4):
        weights = _weights(rows, shift, queries, keys, n, i, j, window)
        total = total + ((weights[0] + weights[1]) + (weights[2] + weights[3]))
        found = add_weighted(found, weights, values, j, n)
    store_rows(read, i, n, found)
    store(sums, i, total)


@no_type_check
@called
def attend_backward(rows, made, d_made, read, d_read, sums, shift, n, length, window):
    """Set `d_made`, gradients as of scores in nats; `d_read` is left divided by `sums`."""
    queries, keys, values = made
    d_queries, d_keys, d_values = d_made
    weights, d_scores = np.empty(WIDTH * WIDTH, f32), np.empty(WIDTH * WIDTH, f32)
    for i in range(0, len(rows) * n, WIDTH):
        store(d_keys, i, splat(f32(0)))
        store(d_values, i, splat(f32(0)))
    for i in range(0, length, WIDTH):
        minus_mean = splat(f32(0))
        for row in range(0, len(rows) * n, n):
            slope = load(d_read, row + i) / load(sums, i)
            store(d_read, row + i, slope)
            minus_mean = minus_mean - slope * load(read, row + i)
        store_rows(d_queries, i, n, zeros(rows))
        for tile in range(_first_key(i, window) // WIDTH * WIDTH, i + WIDTH, WIDTH):
            found = load_rows(rows, d_queries, i, n)
            for a in range(0, WIDTH, 4):
                key_weights = _weights(rows, shift, queries, keys, n, i, tile + a, window)
                slopes = dots(minus_mean, rows, d_read, i, n, values, tile + a, n)
                slopes = _products(key_weights, slopes)
                store_rows(weights, a * WIDTH, WIDTH, key_weights)
                store_rows(d_scores, a * WIDTH, WIDTH, slopes)
                found = add_weighted(found, slopes, keys, tile + a, n)
            store_rows(d_queries, i, n, found)
            # Keys now: with a register of them, the numbers of a query follow each other.
            found = add_weighted(load_rows(rows, d_values, tile, n), transposed(weights), d_read, i, n)
            store_rows(d_values, tile, n, found)
            found = add_weighted(load_rows(rows, d_keys, tile, n), transposed(d_scores), queries, i, n)
            store_rows(d_keys, tile, n, found)


@no_type_check
@inlined
def _first_key(i, window):
    """The first of the first four keys that a register of queries may read."""
    return max(0, i - window) // 4 * 4


@no_type_check
@inlined
def _weights(rows, shift, queries, keys, n, i, j, window):
    """Weights of four keys for a register of queries, over two to the power of `shift`."""
    a, b, c, d = dots(splat(f32(0)) - load(shift, i), rows, queries, i, n, keys, j, n)
    weights = power_of_two(a), power_of_two(b), power_of_two(c), power_of_two(d)
    return _masked(weights, f32(0), i, j, window)


@no_type_check
@inlined
def _masked(x, other, i, j, window):
    """Another number for the queries before one of four keys, or too far behind it."""
    if j + 3 <= i and i + WIDTH - 1 <= j + window:
        return x
    lag, others = i - j, splat(other)
    return (
        where_within(lag, window, x[0], others),
        where_within(lag - 1, window, x[1], others),
        where_within(lag - 2, window, x[2], others),
        where_within(lag - 3, window, x[3], others),
    )


@no_type_check
@inlined
def _products(x, y):
    return x[0] * y[0], x[1] * y[1], x[2] * y[2], x[3] * y[3]


@no_type_check
@inlined
def power_of_two(x):
    """Two to the power of the numbers of a register, of 126 at most; zero up to -80; NaN stays."""
    x = at_most(x, splat(LARGEST_POWER))
    rounded = x + splat(ROUNDING)
    f = x - (rounded - splat(ROUNDING))
    part = splat(C1) + f * (splat(C2) + f * (splat(C3) + f * (splat(C4) + f * splat(C5))))
    return zero_up_to(x, splat(SMALLEST_POWER), times_power(splat(f32(1)) + f * part, rounded))


@no_type_check
@inlined
def _set_maxima(rows, shift, sums, queries, keys, n, i, length, window):
    """Shift each query by its largest score, if the sum of one is not an ordinary number; else false."""
    found = False
    for query in range(i, min(i + WIDTH, length)):
        found = found or not _is_ordinary(sums[query])
    if not found:
        return False
    maxima = splat(f32(-np.inf))
    for j in range(_first_key(i, window), min(i + WIDTH, length), 4):
        scores = dots(splat(f32(0)), rows, queries, i, n, keys, j, n)
        a, b, c, d = _masked(scores, f32(-np.inf), i, j, window)
        maxima = at_least(at_least(maxima, at_least(a, b)), at_least(c, d))
    store(shift, i, maxima)
    return True


@no_type_check
@inlined
def _is_ordinary(total):
    return 1 / LARGEST_SUM < total < LARGEST_SUM
