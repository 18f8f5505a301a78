"""Rotary positions, in both of HookedTransformer's layouts (Su et al. 2021, arXiv 2104.09864)."""

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.config import DecoderConfig


def rotation(
    config: DecoderConfig, length: int, like: Tensor
) -> tuple[Float[Tensor, "position rotary_dim"], Float[Tensor, "position rotary_dim"]]:
    """Returns sines and cosines of the angles by which positions turn, in the dtype of `like`.

    The angle of coordinate pair i at position t is `t / rotary_base^(2 i / rotary_dim)`.

    Example:
        >>> config = DecoderConfig(
        ...     n_layers=1, d_model=4, n_ctx=3, d_head=2, d_vocab=2, positional_embedding_type="rotary"
        ... )
        >>> sin, cos = rotation(config, 3, torch.zeros(()))
        >>> sin.shape, cos[0].tolist()
        (torch.Size([3, 2]), [1.0, 1.0])
    """
    assert config.rotary_dim is not None  # DecoderConfig checks it
    half = config.rotary_dim // 2
    precision = torch.promote_types(like.dtype, torch.float32)
    wavelength = config.rotary_base ** (torch.arange(half, dtype=precision, device=like.device) / half)
    layout = "d -> (d 2)" if config.rotary_adjacent_pairs else "d -> (2 d)"
    angles = torch.arange(length, dtype=precision, device=like.device)[:, None] / repeat(wavelength, layout)
    return angles.sin().to(like.dtype), angles.cos().to(like.dtype)


def rotate(
    x: Float[Tensor, "... position head d_head"], sin: Tensor, cos: Tensor, config: DecoderConfig
) -> Float[Tensor, "... position head d_head"]:
    """Rotate the first `rotary_dim` coordinates of queries or keys by their position's angles.

    Coordinates a and b of a pair become `a cos - b sin` and `b cos + a sin`.

    Args:
        x: Queries or keys.
        sin: Sines of `rotation`, `[position, rotary_dim]`, or with an axis for sequences before.
        cos: Cosines of `rotation`, likewise.
        config: Says how many coordinates turn, and which two are a pair.

    Example:
        >>> config = DecoderConfig(
        ...     n_layers=1, d_model=4, n_ctx=3, d_head=2, d_vocab=2, positional_embedding_type="rotary"
        ... )
        >>> x = torch.tensor([1.0, 0.0]).expand(3, 1, 2)
        >>> rotate(x, *rotation(config, 3, x), config)[1, 0]  # by an angle of 1
        tensor([0.5403, 0.8415])
    """
    assert config.rotary_dim is not None  # DecoderConfig checks it
    turned, rest = x[..., : config.rotary_dim], x[..., config.rotary_dim :]
    pairs = "... (d two) -> two ... d" if config.rotary_adjacent_pairs else "... (two d) -> two ... d"
    first, second = rearrange(turned, pairs, two=2)
    back = "two ... d -> ... (d two)" if config.rotary_adjacent_pairs else "two ... d -> ... (two d)"
    flipped = rearrange(torch.stack([-second, first]), back)
    turned = turned * cos.unsqueeze(-2) + flipped * sin.unsqueeze(-2)
    return torch.cat([turned, rest], dim=-1)
