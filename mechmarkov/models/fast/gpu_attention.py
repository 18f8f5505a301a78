"""Causal attention of small heads on a GPU, by the kernels of `gpu_kernels`."""

import math
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG2_E = 1 / math.log(2)
# A block is one warp: how many numbers its vectors have at most, how many vectors it has; how many keys are
# weighed at once (their numbers, and they themselves); how often the backward pass's loops are unrolled.
MOST_NUMBERS, MOST_QUERIES, LEAST_QUERIES = 1024, 128, 32
MOST_NUMBERS_OF_KEYS, MOST_KEYS, UNROLL = 64, 8, 4


def attend_on_gpu(
    q: Float[Tensor, "*stack batch head position d_head"],
    k: Float[Tensor, "*stack batch head position d_head"],
    v: Float[Tensor, "*stack batch head position d_head"],
    scale: float,
    window: int | None = None,
) -> Float[Tensor, "*stack batch head position d_head"]:
    """Causal attention in float32, of heads of an even width; deterministic. Differentiable once.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        scale: What scores are multiplied by.
        window: How many positions back attention reaches; None for all.
    """
    apply: Any = _GpuAttention.apply  # torch's `apply` has no types
    z: Tensor = apply(*(x.flatten(0, -3).contiguous() for x in (q, k, v)), scale * LOG2_E, window)
    return z.view(q.shape)


class _GpuAttention(torch.autograd.Function):
    """`z [sequence_head, position, d_head]`; the backward pass computes weights again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        z, shift = torch.empty_like(q), torch.empty_like(q[..., 0])
        (block, keys), grid, rest = _launch_of(q, scale, window)
        _kernels().attend[grid](
            q, _words(k), _words(v), z, shift, *rest, block, keys, window is not None, num_warps=1
        )
        ctx.save_for_backward(q, k, v, z, shift)
        ctx.scale, ctx.window = scale, window
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, z, shift = ctx.saved_tensors
        dz = dz.contiguous()
        stats = torch.stack([shift, (dz * z).sum(-1)], -1)
        dq, dk, dv = (torch.empty_like(q) for _ in range(3))
        (block, _), grid, rest = _launch_of(q, ctx.scale, ctx.window)
        is_window = ctx.window is not None
        _kernels().attend_backward_queries[grid](
            q, _words(k), _words(v), dz, stats, dq, *rest, block, UNROLL, is_window, num_warps=1
        )
        _kernels().attend_backward_keys[grid](
            _words(q), k, v, _words(dz), _words(stats), dk, dv, *rest, block, UNROLL, is_window, num_warps=1
        )
        return dq, dk, dv, None, None


def _kernels() -> Any:
    return import_module("mechmarkov.models.fast.gpu_kernels")


def _words(x: Tensor) -> Tensor:
    """Two numbers in each word of 64 bits."""
    return x.view(torch.int64)


def block_of(length: int, d_head: int) -> tuple[int, int]:
    """Returns how many queries are in a block, and how many keys are weighed at once: powers of two.

    So the keys before a block are whole groups, of which none reaches into it.

    Example:
        >>> block_of(1024, 8), block_of(1024, 12), block_of(20, 4)
        ((128, 8), (64, 4), (32, 8))
    """
    longest = max(LEAST_QUERIES, 1 << (length - 1).bit_length())
    return (
        min(longest, MOST_QUERIES, _power_of_two(MOST_NUMBERS // d_head)),
        min(MOST_KEYS, _power_of_two(MOST_NUMBERS_OF_KEYS // d_head)),
    )


def _power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)


Launch = tuple[tuple[int, int], tuple[int], tuple[Any, ...]]


def _launch_of(q: Tensor, scale: float, window: int | None) -> Launch:
    """Queries in a block and keys at once, how many blocks there are, and what all kernels are told."""
    sequences, length, d_head = q.shape
    sizes = block_of(length, d_head)
    return sizes, (sequences * -(-length // sizes[0]),), (length, scale, window or 0, d_head)
