"""In which order a weight's axes lie, told by what a product with it gives."""

from itertools import permutations

import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.importing.live.events import same


def is_mask(value: Tensor) -> bool:
    """Returns whether a weight holds one number up to the diagonal of a square, and another after it.

    Example:
        >>> is_mask(torch.ones(1, 3, 3).tril()), is_mask(torch.eye(3))
        (True, False)
    """
    x = value.detach().squeeze()
    if x.ndim != 2 or x.shape[0] != x.shape[1] or len(x) < 3:
        return False
    before = torch.ones_like(x, dtype=torch.bool).tril()
    return bool((x[before] == x[0, 0]).all() and (x[~before] == x[0, 1]).all() and x[0, 0] != x[0, 1])


def side_by_side(x: Tensor) -> Tensor:
    """Returns numbers of heads as those of one: `[batch, position, head d_head]`."""
    return x.flatten(2) if x.ndim > 3 else x


def is_turned(x: Tensor, matrix: Float[Tensor, "one other"], bias: Tensor, y: Tensor) -> bool | None:
    """Returns whether a matrix lies as `[d_out, d_in]`; None where it does not give `y` of `x`.

    Example:
        >>> x, matrix = torch.ones(1, 1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> is_turned(x, matrix, torch.zeros(1), x @ matrix.mT)
        True
    """
    for turn, one in ((False, matrix), (True, matrix.mT)):
        fits = x.shape[-1:] == one.shape[:1] and y.shape[-1:] == one.shape[1:]
        if fits and same(x @ one + bias, y):
            return turn
    return None


def order_of_axes(x: Tensor, weight: Float[Tensor, "one two three"], y: Tensor) -> tuple[int, ...] | None:
    """Returns the axes of heads, of what is read and of what is given; None where no order gives `y` of `x`.

    Args:
        x: The stream `[batch, position, d_in]`, or what heads give, with an axis of heads or in one.
        weight: The weight, with an axis of heads somewhere.
        y: Numbers of heads in one, or the sum of all heads.

    Example:
        >>> x, weight = torch.tensor([[[1.0, 2.0]]]), torch.arange(12.0).view(2, 2, 3)
        >>> order_of_axes(x, weight, torch.einsum("btd,dhk->bthk", x, weight).flatten(2))
        (1, 0, 2)
    """
    for order in permutations(range(3)):
        one = weight.permute(order)
        n_heads, d_in, d_out = one.shape
        z, given = side_by_side(x), list[Tensor]()
        if z.shape[-1] == d_in and y.shape[-1] == n_heads * d_out:
            given.append(torch.einsum("btd,hdk->bthk", z, one).flatten(2))
        if z.shape[-1] == n_heads * d_in:
            of_heads = torch.einsum("bthk,hkd->bthd", z.unflatten(2, (n_heads, d_in)), one)
            given += [of_heads.sum(2), of_heads.flatten(2)]
        if any(same(each, y) for each in given):
            return order
    return None
