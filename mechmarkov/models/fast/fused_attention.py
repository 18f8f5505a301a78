"""Causal attention of small heads on a CPU, compiled by numba: weights are used while they are in the cache.

FlashAttention (Dao et al. 2022, arXiv 2205.14135) for heads of up to 16 numbers. Kernels made for large heads
have the numbers of a head in a vector register, which these do not fill. Here it holds queries: of a tile of
128 queries, the weights of four keys at a time are computed, used and forgotten. No key ahead is read, and
none that is out of the window.

Scores are in bits, so that weights are powers of two. They are taken without a maximum in front: as long as a
row's sum is an ordinary number, no digit is lost. Where one is not, the tile is computed again with maxima.

All arrays are flat: rows of a tile's 128 queries, or of all keys.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechmarkov.models.fast.registers import (
    WIDTH,
    add_totals,
    at_least,
    at_most,
    load,
    load_splat,
    splat,
    store,
    times_power,
    zero_below,
)

f32 = np.float32
TILE = 128  # queries
LARGEST_SUM = f32(2.0**32)  # of a row's weights; the smallest is one over it
LARGEST_POWER = f32(126)
SMALLEST_POWER = f32(-80)  # below it a weight is zero: its products would be denormal numbers, which are slow
ROUNDING = f32(1.5 * 2**23)  # added to a number, it leaves the nearest integer in the last bits
LN2 = f32(np.log(2))
# 2^x = 1 + x (c1 + x (c2 + ...)) with an error below 2e-7 of it for |x| <= 1/2, in float32.
C1, C2, C3, C4, C5 = map(f32, (0.6931469776, 0.2402224209, 0.05550733744, 0.009671512649, 0.001326472707))

inlined = njit(error_model="numpy", fastmath={"contract"}, forceinline=True)


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compiled on its first call, in seconds; kept on disk where there is a folder that can be written to."""
    with suppress(RuntimeError):  # numba's, that it finds none
        return njit(cache=True, error_model="numpy", fastmath={"contract"})(function)
    return njit(error_model="numpy", fastmath={"contract"})(function)


def attend_fused(
    q: Float[Tensor, "*stack batch head position d_head"],
    k: Float[Tensor, "*stack batch head position d_head"],
    v: Float[Tensor, "*stack batch head position d_head"],
    scale: float,
    window: int | None = None,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """Causal attention in float32; a sequence's result does not depend on the others. Differentiable once.

    Args:
        q: Queries, best with positions last in memory, as keys and values.
        k: Keys.
        v: Values.
        scale: What scores are multiplied by.
        window: How many positions back attention reaches; None for all.
    """
    apply: Any = _FusedAttention.apply  # torch's `apply` has no types
    z = apply(*(_by_head(x) for x in (q, k, v)), f32(scale), q.shape[-2] if window is None else window)
    return rearrange(z, "(m h) d b p -> m b h p d", h=q.shape[-3]).reshape(q.shape)


def _by_head(x: Tensor) -> Float[Tensor, "model_head d_head batch position"]:
    return rearrange(x.reshape(-1, *x.shape[-4:]), "m b h p d -> (m h) d b p").contiguous()


class _FusedAttention(torch.autograd.Function):
    """`z [model_head, d_head, batch, position]`; the backward pass computes weights again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: np.float32, window: int) -> Tensor:
        z, shifts, sums = torch.empty_like(q), *(torch.empty_like(q[:, 0]) for _ in range(2))
        _forward(*_arrays(q, k, v, z, shifts, sums), scale, window)
        ctx.save_for_backward(q, k, v, z, shifts, sums)
        ctx.scale, ctx.window = scale, window
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, *saved = ctx.saved_tensors
        gradients = [torch.empty_like(q) for _ in range(3)]
        _backward(*_arrays(q, *saved, dz.contiguous(), *gradients), ctx.scale, ctx.window)
        return *gradients, None, None


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [x.detach().numpy() for x in tensors]


@no_type_check
@compiled
def _forward(q, k, v, z, shifts, all_sums, scale, window):
    heads, d_head, batch, length = q.shape
    d, n_keys = -(-d_head // 4) * 4, -(-length // 4) * 4  # four rows at a time, and four keys
    keys, values = np.zeros(d * n_keys, f32), np.zeros(d * n_keys, f32)
    queries, read, weights = np.zeros(d * TILE, f32), np.zeros(d * TILE, f32), np.zeros(4 * TILE, f32)
    sums, shift, maxima = np.zeros(TILE, f32), np.zeros(TILE, f32), np.zeros(TILE, f32)
    for head in range(heads):
        for sequence in range(batch):
            _take(keys, n_keys, k, head, sequence, 0, length, f32(1))
            _take(values, n_keys, v, head, sequence, 0, length, f32(1))
            for start in range(0, length, TILE):
                n = min(TILE, length - start)
                _take(queries, TILE, q, head, sequence, start, n, scale / LN2)
                _clear(shift, n)
                for _ in range(2):
                    _read_tile(read, sums, weights, shift, queries, keys, values, n_keys, start, n, window)
                    if not _set_maxima(shift, sums, maxima, weights, queries, keys, n_keys, start, n, window):
                        break
                shifts[head, sequence, start : start + n] = shift[:n]
                all_sums[head, sequence, start : start + n] = sums[:n]
                _divide(read, sums, d_head, n)
                _give(z, read, TILE, head, sequence, start, n, f32(1))


@no_type_check
@compiled
def _backward(q, k, v, z, shifts, all_sums, dz, dq, dk, dv, scale, window):
    heads, d_head, batch, length = q.shape
    d, n_keys = -(-d_head // 4) * 4, -(-length // 4) * 4
    keys, values = np.zeros(d * n_keys, f32), np.zeros(d * n_keys, f32)
    d_keys, d_values = np.zeros(d * n_keys, f32), np.zeros(d * n_keys, f32)
    queries, read = np.zeros(d * TILE, f32), np.zeros(d * TILE, f32)
    d_queries, d_read = np.zeros(d * TILE, f32), np.zeros(d * TILE, f32)
    weights, d_scores = np.zeros(4 * TILE, f32), np.zeros(4 * TILE, f32)
    shift, sums, mean = np.zeros(TILE, f32), np.zeros(TILE, f32), np.zeros(TILE, f32)
    for head in range(heads):
        for sequence in range(batch):
            _take(keys, n_keys, k, head, sequence, 0, length, f32(1))
            _take(values, n_keys, v, head, sequence, 0, length, f32(1))
            d_keys[:], d_values[:] = 0, 0
            for start in range(0, length, TILE):
                n = min(TILE, length - start)
                _take(queries, TILE, q, head, sequence, start, n, scale / LN2)
                _take(read, TILE, z, head, sequence, start, n, f32(1))
                _take(d_read, TILE, dz, head, sequence, start, n, f32(1))
                _clear(d_queries, n)
                _clear(shift, n)
                shift[:n] = shifts[head, sequence, start : start + n]
                sums[:n] = all_sums[head, sequence, start : start + n]
                sums[n:] = 1
                _divide(d_read, sums, d_head, n)
                for i in range(0, n, WIDTH):
                    product = splat(f32(0))
                    for row in range(d):
                        product = product + load(d_read, row * TILE + i) * load(read, row * TILE + i)
                    store(mean, i, product)
                for key in range(max(0, start - window) // 4 * 4, start + n, 4):
                    lo, hi = _set_weights(weights, shift, queries, keys, key, n_keys, start, n, window)
                    _set_products(d_scores, mean, d_read, values, key, n_keys, lo, hi)
                    for row in range(0, 4 * TILE, TILE):
                        for i in range(row + lo, row + hi, WIDTH):
                            store(d_scores, i, load(d_scores, i) * load(weights, i))
                    for row in range(0, d, 4):
                        own, of_keys = row * TILE, row * n_keys + key
                        _add_dots(d_values, of_keys, n_keys, d_read, own, weights, lo, hi)
                        _add_dots(d_keys, of_keys, n_keys, queries, own, d_scores, lo, hi)
                        _add_products(d_queries, own, keys, of_keys, n_keys, 1, d_scores, 0, lo, hi)
                _give(dq, d_queries, TILE, head, sequence, start, n, scale)
            _give(dk, d_keys, n_keys, head, sequence, 0, length, LN2)  # scaled queries are in bits
            _give(dv, d_values, n_keys, head, sequence, 0, length, f32(1))


@no_type_check
@inlined
def _read_tile(read, sums, weights, shift, queries, keys, values, n_keys, start, n, window):
    """The sums of weights, and of weighted values."""
    _clear(read, n)
    _clear(sums, n)
    for key in range(max(0, start - window) // 4 * 4, start + n, 4):
        lo, hi = _set_weights(weights, shift, queries, keys, key, n_keys, start, n, window)
        for i in range(lo, hi, WIDTH):
            a, b, c, d = _rows(weights, i)
            store(sums, i, load(sums, i) + ((a + b) + (c + d)))
        for row in range(0, len(read) // TILE, 4):
            _add_products(read, row * TILE, values, row * n_keys + key, n_keys, 1, weights, 0, lo, hi)


@no_type_check
@inlined
def _set_maxima(shift, sums, maxima, scores, queries, keys, n_keys, start, n, window):
    """Shift the queries whose sum is no ordinary number by their largest score; false where there is none."""
    found = False
    for i in range(n):
        found = found or not _is_ordinary(sums[i])
    if not found:
        return False
    _clear(shift, n)
    maxima[:] = -np.inf
    for key in range(max(0, start - window) // 4 * 4, start + n, 4):
        lo, hi = _reach(key, start, n, window)
        _set_products(scores, shift, queries, keys, key, n_keys, lo, hi)
        _mask(scores, -np.inf, key, start, lo, hi, window)
        for i in range(lo, hi, WIDTH):
            a, b, c, d = _rows(scores, i)
            store(maxima, i, at_least(at_least(load(maxima, i), at_least(a, b)), at_least(c, d)))
    for i in range(n):
        if not _is_ordinary(sums[i]):
            shift[i] = maxima[i]
    return True


@no_type_check
@inlined
def _is_ordinary(total):
    return 1 / LARGEST_SUM < total < LARGEST_SUM


@no_type_check
@inlined
def _set_weights(weights, shift, queries, keys, key, n_keys, start, n, window):
    """Weights of four keys, over two to the power of `shift`, and the queries `lo` to `hi` that have some."""
    lo, hi = _reach(key, start, n, window)
    _set_products(weights, shift, queries, keys, key, n_keys, lo, hi)
    for row in range(0, 4 * TILE, TILE):
        for i in range(row + lo, row + hi, WIDTH):
            store(weights, i, power_of_two(load(weights, i)))
    _mask(weights, 0, key, start, lo, hi, window)
    return lo, hi


@no_type_check
@inlined
def _reach(key, start, n, window):
    """The queries of a tile that may read one of four keys: from and to, whole registers."""
    return max(0, key - start) // WIDTH * WIDTH, -(-min(n, key + 4 + window - start) // WIDTH) * WIDTH


@no_type_check
@inlined
def _mask(rows, value, key, start, lo, hi, window):
    """A value for the queries between `lo` and `hi` that are before their key, or too far behind it."""
    for row in range(4):
        own = key + row - start  # the query at the key's position
        for i in range(lo, own):
            rows[row * TILE + i] = value
        for i in range(max(lo, own + window + 1), hi):
            rows[row * TILE + i] = value


@no_type_check
@inlined
def power_of_two(x):
    """Two to the power of the numbers of a register, of 126 at most; zero below -80; NaN stays."""
    x = at_most(x, splat(LARGEST_POWER))
    rounded = x + splat(ROUNDING)
    f = x - (rounded - splat(ROUNDING))
    part = splat(C1) + f * (splat(C2) + f * (splat(C3) + f * (splat(C4) + f * splat(C5))))
    return zero_below(x, splat(SMALLEST_POWER), times_power(splat(f32(1)) + f * part, rounded))


@no_type_check
@inlined
def _set_products(out, minus, rows, columns, key, n_keys, lo, hi):
    """`out[a, i] = sum_r columns[r, key + a] rows[r, i] - minus[i]`, four rows."""
    _add_products(out, 0, columns, key, 1, n_keys, rows, 0, lo, hi, minus)
    for row in range(4, len(rows) // TILE, 4):
        _add_products(out, 0, columns, row * n_keys + key, 1, n_keys, rows, row * TILE, lo, hi)


@no_type_check
@inlined
def _add_products(out, o, factors, f, down, across, rows, r, lo, hi, minus=None):
    """`out[a, i] += sum_b factors[a, b] rows[b, i]`, four rows from four; each array from an offset on.

    With `minus` the rows begin with `-minus[i]`, whatever they hold.
    """
    a0, a1, a2, a3 = _four(factors, f, across)
    b0, b1, b2, b3 = _four(factors, f + down, across)
    c0, c1, c2, c3 = _four(factors, f + 2 * down, across)
    d0, d1, d2, d3 = _four(factors, f + 3 * down, across)
    for i in range(lo, hi, WIDTH):
        x0, x1, x2, x3 = _rows(rows, r + i)
        if minus is None:
            y0, y1, y2, y3 = _rows(out, o + i)
        else:
            y0 = y1 = y2 = y3 = splat(f32(0)) - load(minus, i)
        store(out, o + i, y0 + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3)
        store(out, o + TILE + i, y1 + b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3)
        store(out, o + 2 * TILE + i, y2 + c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3)
        store(out, o + 3 * TILE + i, y3 + d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3)


@no_type_check
@inlined
def _add_dots(out, o, down, x, r, y, lo, hi):
    """`out[a, b] += sum_i x[a, i] y[b, i]`, four rows with four."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = splat(f32(0))
    for i in range(lo, hi, WIDTH):
        x0, x1, x2, x3 = _rows(x, r + i)
        y0, y1, y2, y3 = _rows(y, i)
        a0, a1, a2, a3 = a0 + x0 * y0, a1 + x0 * y1, a2 + x0 * y2, a3 + x0 * y3
        b0, b1, b2, b3 = b0 + x1 * y0, b1 + x1 * y1, b2 + x1 * y2, b3 + x1 * y3
        c0, c1, c2, c3 = c0 + x2 * y0, c1 + x2 * y1, c2 + x2 * y2, c3 + x2 * y3
        d0, d1, d2, d3 = d0 + x3 * y0, d1 + x3 * y1, d2 + x3 * y2, d3 + x3 * y3
    add_totals(out, o, down, (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3))


@no_type_check
@inlined
def _rows(x, at):
    return load(x, at), load(x, at + TILE), load(x, at + 2 * TILE), load(x, at + 3 * TILE)


@no_type_check
@inlined
def _four(x, at, step):
    a, b, c, d = at, at + step, at + 2 * step, at + 3 * step
    return load_splat(x, a), load_splat(x, b), load_splat(x, c), load_splat(x, d)


@no_type_check
@inlined
def _clear(rows, n):
    """Zeros for the queries of a tile, up to the end of a register."""
    for row in range(0, len(rows), TILE):
        for i in range(row, row + n, WIDTH):
            store(rows, i, splat(f32(0)))


@no_type_check
@inlined
def _divide(rows, sums, n_rows, n):
    """Divide the rows of a head by the same numbers."""
    for row in range(0, n_rows * TILE, TILE):
        for i in range(0, n, WIDTH):
            store(rows, row + i, load(rows, row + i) / load(sums, i))


@no_type_check
@inlined
def _take(rows, row_length, x, head, sequence, start, n, factor):
    """A head's numbers of a sequence, times a factor; zeros behind them up to the end of a register."""
    whole, end = n // WIDTH * WIDTH, min(row_length, -(-n // WIDTH) * WIDTH)
    for row in range(x.shape[1]):
        numbers, at = x[head, row, sequence, start : start + n], row * row_length
        for i in range(0, whole, WIDTH):
            store(rows, at + i, load(numbers, i) * splat(factor))
        for i in range(whole, n):
            rows[at + i] = numbers[i] * factor
        rows[at + n : at + end] = 0


@no_type_check
@inlined
def _give(x, rows, row_length, head, sequence, start, n, factor):
    whole = n // WIDTH * WIDTH
    for row in range(x.shape[1]):
        numbers, at = x[head, row, sequence, start : start + n], row * row_length
        for i in range(0, whole, WIDTH):
            store(numbers, i, load(rows, at + i) * splat(factor))
        for i in range(whole, n):
            numbers[i] = rows[at + i] * factor
