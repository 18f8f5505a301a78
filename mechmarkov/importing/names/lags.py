"""A number for each head and lag, of what codes keep in its place: slopes, buckets, pairs of positions."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.importing.names.table import Line
from mechmarkov.models.config import MAX_LENGTH
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import quoted, shown


def by_lag(name: str, value: Tensor, line: Line, given: Mapping[str, Any]) -> Float[Tensor, "head lag"]:
    """Returns `b_rel` of a weight or buffer, by what its line says of it and by its shape.

    It may be `[head, lag]` or `[lag, head]`, `[lag]` for all heads, or `[head, query, key]`. With `slopes` it
    is `[head]`, with `buckets` `[bucket, head]`. Axes of length 1 count only where nothing else fits.

    Args:
        name: Its own name, for messages.
        value: The weight, or a tensor without memory.
        line: What the table says of it.
        given: Fields of the config: `n_heads`, and `n_ctx` where the weight does not tell it.

    Raises:
        RunFileError: Naming the weight and what was expected.

    Example:
        >>> by_lag("m", torch.tensor([1.0, 0.5]), Line("m", (), slopes=True), {"n_heads": 2, "n_ctx": 3})
        tensor([[-0.0000, -1.0000, -2.0000],
                [-0.0000, -0.5000, -1.0000]])
    """
    heads = given.get("n_heads")
    if heads is None:
        raise RunFileError(f"{quoted(name)} is of heads: say how many, n_heads=2")
    if line.slopes or line.buckets:
        n_ctx = given.get("n_ctx")
        if type(n_ctx) is not int or not 1 <= n_ctx <= MAX_LENGTH:
            raise RunFileError(f"n_ctx is {shown(n_ctx)}, expected how many lags {quoted(name)} stands for")
        lag = torch.arange(n_ctx, device=value.device)
        if line.slopes:
            return -_of_heads(name, value.flatten(), heads, "a slope a head")[:, None] * lag
        n_buckets = len(_of_heads(name, value.mT, heads, "[bucket, head]").mT)
        if not (line.buckets or 0) > n_buckets // 2 > 0:
            raise RunFileError(
                f"buckets is {line.buckets} for {n_buckets} of them, expected more than half as many"
            )
        return value[buckets(n_ctx, n_buckets, line.buckets or 0).to(value.device)].mT
    value = value if value.ndim < 3 else value.squeeze()
    if value.ndim == 1:
        return value.expand(heads, -1)
    if value.ndim == 2 and value.shape[0] == value.shape[1] and heads == 1:
        value = value[None]
    if value.ndim == 3:
        return _of_pairs(name, value)
    turn = line.transpose is None and value.shape[0] != heads == value.shape[-1]
    return value.mT if turn else value


def buckets(n_lags: int, n_buckets: int, farthest: int) -> Int[Tensor, " lag"]:
    """Returns the bucket of each lag: one for each of the first half, then ever wider ones (T5).

    Raffel et al. 2020 (arXiv 1910.10683), causal, as transformers and x-transformers have it.

    Args:
        n_lags: How many lags; 0 is the query's own position.
        n_buckets: How many buckets.
        farthest: The lag from which all share the last bucket.

    Example:
        >>> buckets(10, n_buckets=4, farthest=8).tolist()
        [0, 1, 2, 2, 3, 3, 3, 3, 3, 3]
    """
    exact, lag = n_buckets // 2, torch.arange(n_lags)
    # In float32, as theirs: at a bucket's end another precision may round to the next.
    ratio = torch.log(lag.clamp_min(1).float() / exact) / math.log(farthest / exact)
    wide = exact + (ratio * (n_buckets - exact)).long()
    return torch.where(lag < exact, lag, wide.clamp(max=n_buckets - 1))


def _of_heads(name: str, value: Tensor, heads: int, words: str) -> Tensor:
    if value.ndim == 0 or value.ndim > 2 or len(value) != heads:
        raise RunFileError(
            f"{quoted(name)} has shape {list(value.shape)}, expected {words} for {heads} heads"
        )
    return value


def _of_pairs(name: str, value: Float[Tensor, "head query key"]) -> Float[Tensor, "head lag"]:
    """The last query's numbers, by lag, where each other query has the same."""
    n = value.shape[-1]
    if value.shape[-2] != n:
        raise RunFileError(f"{quoted(name)} has shape {list(value.shape)}, expected a number a head and lag")
    of_last = value[:, -1].flip(-1)
    if not value.is_meta:
        position = torch.arange(n, device=value.device)
        lag = position[:, None] - position
        seen = lag >= 0
        other = (value - of_last[:, lag.clamp_min(0)])[:, seen].abs().max()
        if not other <= 1e-4 * of_last.abs().max():
            raise RunFileError(
                f"{quoted(name)} differs by {shown(float(other))} among pairs of one lag, expected one number"
            )
    return of_last
