"""Causal attention of one head from queries, keys and values, in plain loops that numba compiles.

FlashAttention (Dao et al. 2022, arXiv 2205.14135) for heads of up to 16 numbers. Kernels made for large heads
have the numbers of a head in a vector register, which these do not fill. Here it holds a tile of sixteen
queries: the weights of a tile of keys are computed, used and forgotten. No tile of keys ahead is read,
and none out of the window.

Scores are in bits, so that weights are powers of two. They are taken without a maximum in front: as long as
a query's sum is an ordinary number, no digit is lost. Where one is not, maxima are taken off, all once more.

`made` `[panel, 3 head, row token]` holds queries, keys and values, `read` `[panel, head, row token]` what
queries read; `sums` and `shift` `[token]` hold each query's sum of weights, and what its scores are shifted
by.
"""

from typing import no_type_check

import numpy as np

from mechmarkov.models.fast.panels import LANES, TOKENS, called, f32, inlined

ZERO, ONE, LOWEST = f32(0), f32(1), f32(-np.inf)
LARGEST_SUM = f32(2.0**32)  # of a query's weights; the smallest is one over it
LARGEST_POWER = f32(126)
SMALLEST_POWER = f32(-80)  # below it a weight is zero: its products would be denormal numbers, which are slow
ROUNDING = f32(1.5 * 2**23)  # added to a number, it leaves the nearest integer in the last bits
SHIFT = np.int32(23)  # of the exponent's bits
LN2 = f32(np.log(2))
# 2^x = 1 + x (c1 + x (c2 + ...)) with an error below 2e-7 of it for |x| <= 1/2, in float32.
C1, C2, C3, C4, C5 = map(f32, (0.6931469776, 0.2402224209, 0.05550733744, 0.009671512649, 0.001326472707))
SQUARE = LANES * LANES


def rows_of(d_head: int) -> tuple[int, ...]:
    """Returns the rows of a head's numbers, in whole fours; each count of them is compiled, for seconds.

    Example:
        >>> rows_of(6)
        (0, 1, 2, 3, 4, 5, 6, 7)
    """
    return tuple(range(-(-d_head // 4) * 4))


def reach(window: int | None, length: int) -> int:
    """Returns how many positions back a query looks, at most the length: kernels count in 32 bits.

    Raises:
        ValueError: A window below 0.

    Example:
        >>> reach(None, 12), reach(3, 12), reach(99, 12)
        (12, 3, 12)
    """
    if window is not None and window < 0:
        raise ValueError(f"window is {window}, expected at least 0")
    return length if window is None else min(window, length)


@no_type_check
@called
def attend(rows, weights, made, read, head, sums, shift, length, window):
    """Compute one head's attention in a sequence; arrays are as at the top of this file.

    Args:
        rows: The rows of a head's numbers, from `rows_of`.
        weights: Memory for `SQUARE` numbers.
        made: Queries in bits, keys and values.
        read: What is set: what each query reads.
        head: The number of the head.
        sums: What is set: the sum of each query's weights.
        shift: What is set: what each query's scores are shifted by.
        length: How many positions there are.
        window: How many positions back is looked, from `reach`.
    """
    heads = read.shape[1]
    for t in range(0, length, LANES):
        queries, out = made[t // TOKENS, head][t % TOKENS :], read[t // TOKENS, head][t % TOKENS :]
        own_sums, own_shift = sums[t:], shift[t:]
        _fill(own_shift, 0, ZERO)
        for _ in range(2):
            _read(rows, weights, out, own_sums, own_shift, queries, made, heads + head, heads, t, window)
            if _are_ordinary(own_sums, min(LANES, length - t)):
                break
            _set_maxima(rows, own_shift, queries, made, heads + head, t, window)
        for j in range(LANES):
            for d in range(len(rows)):
                out[d * TOKENS + j] /= own_sums[j]


@no_type_check
@inlined
def _read(rows, weights, out, sums, shift, queries, made, k, heads, t, window):
    """The sums of weights, and of weighted values, for a tile of queries."""
    _fill(sums, 0, ZERO)
    for d in range(len(rows)):
        _fill(out, d * TOKENS, ZERO)
    for u in range(_first_tile(t, window), t + 1, LANES):
        keys, values = made[u // TOKENS, k][u % TOKENS :], made[u // TOKENS, k + heads][u % TOKENS :]
        for a in range(0, LANES, 4):
            _weigh(rows, weights[a * LANES :], shift, queries, keys[a:], t - u - a, window)
        _add_weights(sums, weights)
        _add_weighted(rows, out, weights, values)


@no_type_check
@called
def attend_backward(rows, squares, made, d_made, read, d_read, head, sums, shift, length, window):
    """Compute the gradients of `attend` with respect to queries, keys and values.

    Args:
        rows: The rows of a head's numbers, from `rows_of`.
        squares: Memory for five times `SQUARE` numbers.
        made: Queries in bits, keys and values.
        d_made: What is set: their gradients, as of scores in nats.
        read: What queries read, from `attend`.
        d_read: Its gradient; it is left divided by `sums`.
        head: The number of the head.
        sums: The sums of `attend`.
        shift: The shifts of `attend`.
        length: How many positions there are.
        window: How many positions back is looked, from `reach`.
    """
    heads = read.shape[1]
    weights, slopes, turned, between, start = squares[0], squares[1], squares[2], squares[3], squares[4]
    for p in range(len(made)):
        for own in (d_made[p, head], d_made[p, head + heads], d_made[p, head + 2 * heads]):
            for i in range(len(rows) * TOKENS):
                own[i] = ZERO
    for t in range(0, length, LANES):
        p, at = t // TOKENS, t % TOKENS
        queries, d_queries = made[p, head][at:], d_made[p, head][at:]
        d_out, own_shift = d_read[p, head][at:], shift[t:]
        _divide(rows, start, d_out, read[p, head][at:], sums[t:])
        for u in range(_first_tile(t, window), t + 1, LANES):
            p, at = u // TOKENS, u % TOKENS
            keys, values = made[p, head + heads][at:], made[p, head + 2 * heads][at:]
            d_keys, d_values = d_made[p, head + heads][at:], d_made[p, head + 2 * heads][at:]
            for a in range(0, LANES, 4):
                _weigh(rows, weights[a * LANES :], own_shift, queries, keys[a:], t - u - a, window)
                _set_slopes(rows, slopes[a * LANES :], weights[a * LANES :], start, d_out, values[a:])
            _add_weighted(rows, d_queries, slopes, keys)
            # Keys now: next to each other in memory, for a query's numbers.
            _turn(turned, between, weights)
            _add_weighted(rows, d_values, turned, d_out)
            _turn(turned, between, slopes)
            _add_weighted(rows, d_keys, turned, queries)


@no_type_check
@inlined
def _fill(x, at, number):
    for j in range(LANES):
        x[at + j] = number


@no_type_check
@inlined
def _first_tile(t, window):
    """The first tile of keys that a tile of queries may read."""
    return max(0, t - window) // LANES * LANES


@no_type_check
@inlined
def _dots(rows, start, x, j, y):
    """Sums `start + sum_d x[d, j] y[d, a]` for four `a`."""
    s0 = s1 = s2 = s3 = start
    for d in range(0, len(rows) * TOKENS, TOKENS):
        s0, s1, s2, s3 = (
            s0 + x[d + j] * y[d],
            s1 + x[d + j] * y[d + 1],
            s2 + x[d + j] * y[d + 2],
            s3 + x[d + j] * y[d + 3],
        )
    return s0, s1, s2, s3


@no_type_check
@inlined
def _masked(x0, x1, x2, x3, other, lag, window):
    """Numbers of four keys, the first `lag` before a query; another one ahead and out of the window."""
    return (
        x0 if 0 <= lag <= window else other,
        x1 if 1 <= lag <= window + 1 else other,
        x2 if 2 <= lag <= window + 2 else other,
        x3 if 3 <= lag <= window + 3 else other,
    )


@no_type_check
@inlined
def _weigh(rows, weights, shift, queries, keys, lag, window):
    """Weights of four keys, the first `lag` before the first query, over two to the power of the shift."""
    is_masked = lag < 3 or lag + LANES - 1 > window
    for j in range(LANES):
        s0, s1, s2, s3 = _dots(rows, ZERO - shift[j], queries, j, keys)
        w0, w1, w2, w3 = _power_of_two(s0), _power_of_two(s1), _power_of_two(s2), _power_of_two(s3)
        if is_masked:
            w0, w1, w2, w3 = _masked(w0, w1, w2, w3, ZERO, lag + j, window)
        weights[j], weights[LANES + j], weights[2 * LANES + j], weights[3 * LANES + j] = w0, w1, w2, w3


@no_type_check
@inlined
def _add_weights(sums, weights):
    for j in range(LANES):
        total = sums[j]
        for a in range(j, SQUARE, 4 * LANES):
            total += (weights[a] + weights[a + LANES]) + (weights[a + 2 * LANES] + weights[a + 3 * LANES])
        sums[j] = total


@no_type_check
@inlined
def _add_weighted(rows, out, weights, x):
    """`out[d, j] += sum_a weights[a, j] x[d, a]` for sixteen `a`, four rows at a time."""
    for first in range(0, len(rows) * TOKENS, 4 * TOKENS):
        own, numbers = out[first:], x[first:]
        for j in range(LANES):
            s0, s1, s2, s3 = own[j], own[TOKENS + j], own[2 * TOKENS + j], own[3 * TOKENS + j]
            for a in range(LANES):
                w = weights[a * LANES + j]
                s0, s1 = s0 + w * numbers[a], s1 + w * numbers[TOKENS + a]
                s2, s3 = s2 + w * numbers[2 * TOKENS + a], s3 + w * numbers[3 * TOKENS + a]
            own[j], own[TOKENS + j], own[2 * TOKENS + j], own[3 * TOKENS + j] = s0, s1, s2, s3


@no_type_check
@inlined
def _divide(rows, start, d_out, out, sums):
    """Divide gradients by the sums of weights, and set what is added to the slopes of scores: `-z . dz`."""
    for j in range(LANES):
        along = ZERO
        for d in range(len(rows)):
            slope = d_out[d * TOKENS + j] / sums[j]
            d_out[d * TOKENS + j] = slope
            along = along - slope * out[d * TOKENS + j]
        start[j] = along


@no_type_check
@inlined
def _set_slopes(rows, slopes, weights, start, d_out, values):
    """The slopes of four keys' scores: weights times `v . dz - z . dz`."""
    for j in range(LANES):
        s0, s1, s2, s3 = _dots(rows, start[j], d_out, j, values)
        slopes[j], slopes[LANES + j] = weights[j] * s0, weights[LANES + j] * s1
        slopes[2 * LANES + j], slopes[3 * LANES + j] = (
            weights[2 * LANES + j] * s2,
            weights[3 * LANES + j] * s3,
        )


@no_type_check
@inlined
def _turn(out, between, square):
    """The transpose of a square: four streams shuffled into one, twice."""
    _shuffle(between, square)
    _shuffle(out, between)


@no_type_check
@inlined
def _shuffle(out, x):
    a, b, c, d = x, x[SQUARE // 4 :], x[SQUARE // 2 :], x[3 * SQUARE // 4 :]
    for i in range(SQUARE // 4):
        out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3] = a[i], b[i], c[i], d[i]


@no_type_check
@inlined
def _power_of_two(x):
    """Two to the power of a number, of 126 at most; zero up to -80; NaN stays."""
    x = LARGEST_POWER if x > LARGEST_POWER else x
    rounded = x + ROUNDING
    f = x - (rounded - ROUNDING)
    part = ONE + f * (C1 + f * (C2 + f * (C3 + f * (C4 + f * C5))))
    bits = np.int32(f32(part).view(np.int32) + (f32(rounded).view(np.int32) << SHIFT))
    return ZERO if x <= SMALLEST_POWER else bits.view(np.float32)


@no_type_check
@called
def _set_maxima(rows, shift, queries, made, k, t, window):
    """Shift each query of a tile by its largest score."""
    _fill(shift, 0, LOWEST)
    for u in range(_first_tile(t, window), t + 1, LANES):
        keys = made[u // TOKENS, k][u % TOKENS :]
        for a in range(0, LANES, 4):
            _raise_shift(rows, shift, queries, keys[a:], t - u - a, window)


@no_type_check
@inlined
def _raise_shift(rows, shift, queries, keys, lag, window):
    for j in range(LANES):
        largest = shift[j]
        s0, s1, s2, s3 = _dots(rows, ZERO, queries, j, keys)
        s0, s1, s2, s3 = _masked(s0, s1, s2, s3, LOWEST, lag + j, window)
        s0, s2 = s1 if s0 < s1 else s0, s3 if s2 < s3 else s2
        largest = s0 if largest < s0 else largest
        shift[j] = s2 if largest < s2 else largest


@no_type_check
@inlined
def _are_ordinary(sums, n):
    """Returns whether the sums of weights of the first `n` queries are neither too large nor too small."""
    ordinary = True
    for j in range(n):
        ordinary = ordinary and 1 / LARGEST_SUM < sums[j] < LARGEST_SUM
    return ordinary
