"""ALiBi: attention's scores fall in proportion to the distance, at a slope of each head's own."""

import torch
from jaxtyping import Float
from torch import Tensor


def alibi(n_heads: int, n_lags: int, like: Tensor) -> Float[Tensor, "head lag"]:
    """Returns what ALiBi adds to a score, minus the head's slope times the lag (Press et al. 2022).

    The slope of head h, counted from 1, is `2^(-8 h / n_heads)`, as HookedTransformer has it. The authors
    (arXiv 2108.12409) have others where `n_heads` is not a power of two: those are a `relative_bias`.

    Args:
        n_heads: The number of heads of a layer.
        n_lags: How many lags; 0 is the query's own position.
        like: Its device is taken, and float64 if it is; else float32.

    Example:
        >>> alibi(2, 3, torch.zeros(()))
        tensor([[-0.0000, -0.0625, -0.1250],
                [-0.0000, -0.0039, -0.0078]])
    """
    precision = torch.float64 if like.dtype == torch.float64 else torch.float32
    start = 2 ** (-8 / n_heads)
    head, lag = (torch.arange(n, dtype=precision, device=like.device) for n in (n_heads, n_lags))
    return (start * start**head)[:, None] * -lag
