"""Small matrices times many tokens, in functions that numba compiles: some tokens at a time, in the cache.

A matrix of tokens is a flat array here: rows of `length` tokens, one after the other. BLAS is made for large
matrices; of a toy model's 8 to 64 rows and columns, what it prepares takes as long as the product.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from mechmarkov.models.fast.registers import (
    WIDTH,
    add_total,
    add_totals,
    at_least,
    load,
    load_splat,
    splat,
    store,
)
from mechmarkov.utils.compiled import called, inlined

f32 = np.float32
ZERO, ONE, LOWEST = f32(0), f32(1), f32(-np.inf)
PAIR = 2 * WIDTH
LINE = 16  # numbers of a cache line


def check_floats(shapes: dict[str, tuple[Tensor, tuple[int, ...]]]) -> None:
    """Refuse what a kernel would read or write beyond: inside it nothing is checked.

    Args:
        shapes: By its name, what a kernel is given, and the shape that it takes it to have.

    Raises:
        ValueError: Another shape, another type than float32, or another device than the CPU.
    """
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            given = f"{tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{name} is {given}, expected torch.float32 of shape {list(shape)} on cpu")


def reach(window: int | None, length: int) -> int:
    """Returns how many positions back is looked, which is as far as there are any: kernels count in 32 bits.

    Raises:
        ValueError: A window below 0.
    """
    if window is not None and window < 0:
        raise ValueError(f"window is {window}, expected at least 0")
    return length if window is None else min(window, length)


def new_token_rows(like: Tensor, width: int) -> Float[Tensor, "model *token width"]:
    """Memory for each token of `like` `[model, *token, d]`, tokens last; no view: hooks may write into it."""
    models, *tokens = like.shape[:-1]
    strides = [math.prod(tokens[i:]) for i in range(len(tokens) + 1)]
    return like.new_empty_strided((models, *tokens, width), (strides[0] * width, *strides[1:], strides[0]))


def as_token_rows(x: Float[Tensor, "model *token d"]) -> Float32[np.ndarray, "model d *token"]:
    """The numbers of a tensor, copied if its tokens are not last in memory."""
    return x.detach().movedim(-1, 1).contiguous().numpy()


def as_array(x: Float[Tensor, "*axes"]) -> Float32[np.ndarray, "*axes"]:
    """The numbers of a tensor, copied if they do not lie in its order."""
    return x.detach().contiguous().numpy()


@no_type_check
@inlined
def padded(n):
    """That many tokens and those that are missing to a whole pair of registers."""
    return -(-n // PAIR) * PAIR


@no_type_check
@inlined
def row_length(n):
    """For rows of that many tokens: a cache line more, or those of a power of two would share a place."""
    return padded(n) + LINE


@no_type_check
@called
def take(rows, length, x, factor):
    """The tokens of `x` `[row, token]`, times a factor; zeros behind them up to a whole pair of registers."""
    n = x.shape[1]
    whole, end = n // WIDTH * WIDTH, padded(n)
    for row in range(len(x)):
        numbers, at = x[row], row * length
        for i in range(0, whole, WIDTH):
            store(rows, at + i, load(numbers, i) * splat(factor))
        for i in range(whole, n):
            rows[at + i] = numbers[i] * factor
        for i in range(n, end):
            rows[at + i] = 0


@no_type_check
@called
def give(x, rows, length, factor):
    """Write tokens, times a factor, into `x` `[row, token]`."""
    n = x.shape[1]
    whole = n // WIDTH * WIDTH
    for row in range(len(x)):
        numbers, at = x[row], row * length
        for i in range(0, whole, WIDTH):
            store(numbers, i, load(rows, at + i) * splat(factor))
        for i in range(whole, n):
            numbers[i] = rows[at + i] * factor


@no_type_check
@called
def multiply(out, weights, down, across, x, length, n_in, n_out, n, bias, lowest):
    """`out[a, i] = max(lowest, bias[a] + sum_r weights[r, a] x[r, i])` for `n` tokens, pairs of registers.

    Weights are flat: `down` from row to row, `across` from column to column.
    """
    fours = n_out // 4 * 4
    low = splat(lowest)
    for a in range(0, fours, 4):
        start0, start1 = load_splat(bias, a), load_splat(bias, a + 1)
        start2, start3 = load_splat(bias, a + 2), load_splat(bias, a + 3)
        for i in range(0, n, PAIR):
            a0 = b0 = start0
            a1 = b1 = start1
            a2 = b2 = start2
            a3 = b3 = start3
            at = a * across
            for r in range(n_in):
                p, q = load(x, r * length + i), load(x, r * length + i + WIDTH)
                w0, w1 = load_splat(weights, at), load_splat(weights, at + across)
                w2, w3 = load_splat(weights, at + 2 * across), load_splat(weights, at + 3 * across)
                a0, a1, a2, a3 = a0 + w0 * p, a1 + w1 * p, a2 + w2 * p, a3 + w3 * p
                b0, b1, b2, b3 = b0 + w0 * q, b1 + w1 * q, b2 + w2 * q, b3 + w3 * q
                at += down
            _store_pair(out, a * length + i, at_least(a0, low), at_least(b0, low))
            _store_pair(out, (a + 1) * length + i, at_least(a1, low), at_least(b1, low))
            _store_pair(out, (a + 2) * length + i, at_least(a2, low), at_least(b2, low))
            _store_pair(out, (a + 3) * length + i, at_least(a3, low), at_least(b3, low))
    for a in range(fours, n_out):
        for i in range(0, n, PAIR):
            a0 = b0 = load_splat(bias, a)
            for r in range(n_in):
                w0 = load_splat(weights, r * down + a * across)
                a0 = a0 + w0 * load(x, r * length + i)
                b0 = b0 + w0 * load(x, r * length + i + WIDTH)
            _store_pair(out, a * length + i, at_least(a0, low), at_least(b0, low))


@no_type_check
@inlined
def _store_pair(out, at, a, b):
    store(out, at, a)
    store(out, at + WIDTH, b)


@no_type_check
@called
def add_products(out, down, x, y, length, n_x, n_y, n):
    """`out[r, a] += sum_i x[r, i] y[a, i]` over `n` tokens, in registers; rows of `out` are `down` long."""
    fours_x, fours_y = n_x // 4 * 4, n_y // 4 * 4
    for r in range(0, fours_x, 4):
        for a in range(0, fours_y, 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = splat(f32(0))
            for i in range(0, n, WIDTH):
                x0, x1, x2, x3 = _four_rows(x, r * length + i, length)
                y0, y1, y2, y3 = _four_rows(y, a * length + i, length)
                a0, a1, a2, a3 = a0 + x0 * y0, a1 + x0 * y1, a2 + x0 * y2, a3 + x0 * y3
                b0, b1, b2, b3 = b0 + x1 * y0, b1 + x1 * y1, b2 + x1 * y2, b3 + x1 * y3
                c0, c1, c2, c3 = c0 + x2 * y0, c1 + x2 * y1, c2 + x2 * y2, c3 + x2 * y3
                d0, d1, d2, d3 = d0 + x3 * y0, d1 + x3 * y1, d2 + x3 * y2, d3 + x3 * y3
            sums = (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3)
            add_totals(out, r * down + a, down, sums)
    for r in range(n_x):
        for a in range(fours_y if r < fours_x else 0, n_y):
            total = splat(f32(0))
            for i in range(0, n, WIDTH):
                total = total + load(x, r * length + i) * load(y, a * length + i)
            add_total(out, r * down + a, total)


@no_type_check
@inlined
def _four_rows(x, at, length):
    return load(x, at), load(x, at + length), load(x, at + 2 * length), load(x, at + 3 * length)


@no_type_check
@called
def add_sums(out, x, length, n_rows, n):
    """`out[r] += sum_i x[r, i]` over `n` tokens, whole registers."""
    for r in range(n_rows):
        total = splat(f32(0))
        for i in range(0, n, WIDTH):
            total = total + load(x, r * length + i)
        add_total(out, r, total)


@no_type_check
@called
def add_products_by_row(out, x, y, length, n_rows, n):
    """`out[r] += sum_i x[r, i] y[r, i]` over `n` tokens, whole registers."""
    for r in range(n_rows):
        total = splat(f32(0))
        for i in range(r * length, r * length + n, WIDTH):
            total = total + load(x, i) * load(y, i)
        add_total(out, r, total)


@no_type_check
@inlined
def copy(to, numbers, n):
    """Copy numbers; a slice would be compiled for seconds, with all that can be wrong with its shape."""
    for i in range(n):
        to[i] = numbers[i]
