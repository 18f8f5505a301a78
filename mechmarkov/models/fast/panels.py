"""Panels of tokens, and small matrices times them, in plain loops that numba compiles.

A panel is a flat array of rows of 64 tokens: `panel[64 row + token]`. So all distances inside the loops over
tokens are constants: LLVM sees that nothing overlaps, and makes vectors of them as wide as the processor has.
BLAS is made for large matrices; of a toy model's 8 to 64 rows, what it prepares takes as long as the product.

Weights come in blocks of four rows and columns, `out[4 a + c] = sum_ri blocks[a, r, 4 i + c] x[4 r + i]`,
with zeros where there are fewer. A block and four results of a token fit in the registers.
"""

import math
from functools import partial
from typing import no_type_check

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import pad

from mechmarkov.utils import compiled

f32 = np.float32
TOKENS = 64  # of a row
LANES = 16  # sums over tokens that are kept next to each other, until all are added
ZERO, ONE = f32(0), f32(1)

# Loops on views of arrays that their caller holds. Numba counts references to each, atomically, unless told
# that nothing is allocated.
called, inlined = partial(compiled.called, _nrt=False), partial(compiled.inlined, _nrt=False)


def check_floats(shapes: dict[str, tuple[Tensor, tuple[int, ...]]]) -> None:
    """Raise unless a kernel stays within its arrays: inside it nothing is checked.

    Args:
        shapes: By its name, what a kernel is given, and the shape that it takes it to have.

    Raises:
        ValueError: Another shape, another type than float32, or another device than the CPU.
    """
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            given = f"{tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{name} is {given}, expected torch.float32 of shape {list(shape)} on cpu")


def new_rows(like: Tensor, width: int) -> Float[Tensor, "model *token width"]:
    """Returns memory for tokens `[model, *token, width]`, tokens last; no view, as hooks may write into it.

    Example:
        >>> new_rows(torch.ones(2, 5, 3), 4).stride()
        (20, 1, 5)
    """
    models, *tokens = like.shape[:-1]
    strides = [math.prod(tokens[i:]) for i in range(len(tokens) + 1)]
    return like.new_empty_strided((models, *tokens, width), (strides[0] * width, *strides[1:], strides[0]))


def as_rows(x: Float[Tensor, "model *sequence token d"]) -> Float32[np.ndarray, "model d sequence token"]:
    """Returns the numbers of a tensor with its tokens last, copied if they are not last in memory.

    Example:
        >>> as_rows(torch.ones(2, 5, 3)).shape
        (2, 3, 1, 5)
    """
    numbers = x.detach().movedim(-1, 1).contiguous().numpy()
    return numbers if x.ndim == 4 else numbers[:, :, None]


def as_array(x: Float[Tensor, "*axes"]) -> Float32[np.ndarray, "*axes"]:
    """Returns the numbers of a tensor, copied if they do not lie in its order."""
    return x.detach().contiguous().numpy()


def blocks_of(weight: Float[Tensor, "model n_in n_out"]) -> Float[Tensor, "model out_block in_block 16"]:
    """Cut a matrix into blocks of four rows and four columns, with zeros where there are fewer.

    Example:
        >>> blocks_of(torch.arange(6.0).view(1, 3, 2)).shape, blocks_of(torch.ones(1, 5, 9)).shape
        (torch.Size([1, 1, 1, 16]), torch.Size([1, 3, 2, 16]))
    """
    n_in, n_out = weight.shape[1:]
    return rearrange(
        pad(weight, (0, -n_out % 4, 0, -n_in % 4)), "m (r i) (a c) -> m a r (i c)", i=4, c=4
    ).contiguous()


def transposed(blocks: Float[Tensor, "model a r 16"]) -> Float[Tensor, "model r a 16"]:
    """Returns the blocks of the transpose of a matrix.

    Example:
        >>> matrix = torch.arange(32.0).view(1, 4, 8)
        >>> transposed(blocks_of(matrix)).equal(blocks_of(matrix.mT))
        True
    """
    return rearrange(blocks, "m a r (i c) -> m r a (c i)", i=4).contiguous()


def in_fours(bias: Float[Tensor, "model n"]) -> Float[Tensor, "model padded"]:
    """Put zeros behind a bias, up to whole fours.

    Example:
        >>> in_fours(torch.ones(1, 3)).tolist()
        [[1.0, 1.0, 1.0, 0.0]]
    """
    return pad(bias, (0, -bias.shape[-1] % 4))


@no_type_check
@compiled.inlined
def new_sums(blocks):
    """Returns zeros for a model's blocks, a number for each of `LANES` lanes."""
    return np.zeros((blocks.shape[1], blocks.shape[2], 16 * LANES), f32)


@no_type_check
@called
def take(panel, x, m, s, start, factor):
    """Fill a panel with tokens of `x` `[model, row, sequence, token]` times a factor, then with zeros."""
    n = x.shape[3] - start
    for row in range(x.shape[1]):
        own, numbers = panel[row * TOKENS :], x[m, row, s, start:]
        if n >= TOKENS:
            for j in range(TOKENS):
                own[j] = numbers[j] * factor
        else:
            for j in range(TOKENS):
                own[j] = numbers[j] * factor if j < n else ZERO


@no_type_check
@called
def give(x, m, s, start, panel, factor):
    """Copy tokens of a panel, times a factor, to where `take` takes them from."""
    n = x.shape[3] - start
    for row in range(x.shape[1]):
        own, numbers = panel[row * TOKENS :], x[m, row, s, start:]
        if n >= TOKENS:
            for j in range(TOKENS):
                numbers[j] = own[j] * factor
        else:
            for j in range(n):
                numbers[j] = own[j] * factor


@no_type_check
@called
def multiply(out, blocks, x, bias):
    """Set panel `out` to `weights^T x + bias`; the weights are `blocks`, `x` a panel."""
    for a in range(len(blocks)):
        own = out[a * 4 * TOKENS :]
        b0, b1, b2, b3 = bias[4 * a], bias[4 * a + 1], bias[4 * a + 2], bias[4 * a + 3]
        w = blocks[a, 0]
        for j in range(TOKENS):
            x0, x1, x2, x3 = x[j], x[TOKENS + j], x[2 * TOKENS + j], x[3 * TOKENS + j]
            own[j] = b0 + w[0] * x0 + w[4] * x1 + w[8] * x2 + w[12] * x3
            own[TOKENS + j] = b1 + w[1] * x0 + w[5] * x1 + w[9] * x2 + w[13] * x3
            own[2 * TOKENS + j] = b2 + w[2] * x0 + w[6] * x1 + w[10] * x2 + w[14] * x3
            own[3 * TOKENS + j] = b3 + w[3] * x0 + w[7] * x1 + w[11] * x2 + w[15] * x3
        for r in range(1, blocks.shape[1]):
            _add_block(own, blocks[a, r], x[r * 4 * TOKENS :])


@no_type_check
@inlined
def _add_block(out, w, x):
    """`out[c] += sum_i w[4 i + c] x[i]`, four rows each."""
    for j in range(TOKENS):
        x0, x1, x2, x3 = x[j], x[TOKENS + j], x[2 * TOKENS + j], x[3 * TOKENS + j]
        for c in range(4):
            at = c * TOKENS + j
            out[at] = out[at] + w[c] * x0 + w[4 + c] * x1 + w[8 + c] * x2 + w[12 + c] * x3


@no_type_check
@called
def add_products(sums, x, y, n):
    """Add `sums[a, r, 4 i + c, lane] += sum_t x[4 r + i, t] y[4 a + c, t]` over `n` panels.

    A lane has every sixteenth token.
    """
    for a in range(sums.shape[0]):
        for r in range(sums.shape[1]):
            for p in range(n):
                _add_square(sums[a, r], x[p, r * 4 * TOKENS :], y[p, a * 4 * TOKENS :])


@no_type_check
@inlined
def _add_square(s, x, y):
    """Add to 16 sums the products of four rows `x` with four rows `y`, lane by lane."""
    for j in range(LANES):
        a0, a1, a2, a3 = s[j], s[LANES + j], s[2 * LANES + j], s[3 * LANES + j]
        b0, b1, b2, b3 = s[4 * LANES + j], s[5 * LANES + j], s[6 * LANES + j], s[7 * LANES + j]
        c0, c1, c2, c3 = s[8 * LANES + j], s[9 * LANES + j], s[10 * LANES + j], s[11 * LANES + j]
        d0, d1, d2, d3 = s[12 * LANES + j], s[13 * LANES + j], s[14 * LANES + j], s[15 * LANES + j]
        for i in range(0, TOKENS, LANES):
            x0, x1, x2, x3 = x[i + j], x[TOKENS + i + j], x[2 * TOKENS + i + j], x[3 * TOKENS + i + j]
            y0, y1, y2, y3 = y[i + j], y[TOKENS + i + j], y[2 * TOKENS + i + j], y[3 * TOKENS + i + j]
            a0, a1, a2, a3 = a0 + x0 * y0, a1 + x0 * y1, a2 + x0 * y2, a3 + x0 * y3
            b0, b1, b2, b3 = b0 + x1 * y0, b1 + x1 * y1, b2 + x1 * y2, b3 + x1 * y3
            c0, c1, c2, c3 = c0 + x2 * y0, c1 + x2 * y1, c2 + x2 * y2, c3 + x2 * y3
            d0, d1, d2, d3 = d0 + x3 * y0, d1 + x3 * y1, d2 + x3 * y2, d3 + x3 * y3
        s[j], s[LANES + j], s[2 * LANES + j], s[3 * LANES + j] = a0, a1, a2, a3
        s[4 * LANES + j], s[5 * LANES + j], s[6 * LANES + j], s[7 * LANES + j] = b0, b1, b2, b3
        s[8 * LANES + j], s[9 * LANES + j], s[10 * LANES + j], s[11 * LANES + j] = c0, c1, c2, c3
        s[12 * LANES + j], s[13 * LANES + j], s[14 * LANES + j], s[15 * LANES + j] = d0, d1, d2, d3


@no_type_check
@called
def add_rows(sums, x):
    """Add `sums[row, lane] += sum_j x[row, j]`, over every sixteenth token j from `lane` on."""
    for row in range(0, len(sums) // LANES, 4):
        own, four = sums[row * LANES :], x[row * TOKENS :]
        for j in range(LANES):
            for i in range(4):
                at = i * TOKENS + j
                total = (four[at] + four[at + LANES]) + (four[at + 2 * LANES] + four[at + 3 * LANES])
                own[i * LANES + j] += total


@no_type_check
@called
def add_lanes(out, sums):
    """Set `out[i] = sum_lane sums[i, lane]`, both in the order of memory; `sums` is left zero."""
    for i in range(out.size):
        total = f32(0)
        for j in range(LANES):
            total += sums[i * LANES + j]
            sums[i * LANES + j] = 0
        out[i] = total
