"""Which earlier heads feed one head, by what is left of its score once they are cut from its keys."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor

from mechmarkov.theory.bootstrap import ratio

from .circuit import MAX_SHARE_LEFT

Head = tuple[int, int]
ESTIMATE = ("value", "low", "high")


def share_left(
    cut: Float[Tensor, " batch"], intact: Float[Tensor, " batch"]
) -> Float[np.ndarray, " estimate"]:
    """A ratio of means and the ends of its 95 % interval, by the delta method.

    Args:
        cut: A score of each sequence with something cut.
        intact: A score of each with nothing cut.

    Returns:
        The ratio, low and high; NaN if nothing can be cut, as the mean score is 0 or less.

    Example:
        >>> import torch
        >>> share_left(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.4])).round(1).tolist()
        [0.4, -0.2, 1.0]
    """
    if len(intact) < 2 or intact.mean() <= 0:
        return np.full(len(ESTIMATE), np.nan)
    share, error = ratio(cut.numpy(), intact.numpy())
    half = stdtrit(len(intact) - 1, 0.975) * error
    return np.array([share, share - half, share + half])


def takes_half(cut: Float[Tensor, " batch"], intact: Float[Tensor, " batch"]) -> bool:
    """Returns whether a cut clearly takes most of a score."""
    return bool(share_left(cut, intact)[-1] < MAX_SHARE_LEFT)


def feeding(
    score: Callable[[list[Head]], Float[Tensor, " batch"]],
    intact: Float[Tensor, " batch"],
    earlier: list[Head],
) -> tuple[list[Head], dict[Head, Float[Tensor, " batch"]], Float[np.ndarray, " estimate"]]:
    """Returns the earlier heads that feed a head, its score without each, and what is left without all.

    That are those whose own cut takes half; otherwise the fewest that take half together. Without all it is
    NaN where one by itself takes half.
    """
    without_each = {head: score([head]) for head in earlier}
    feeders = [head for head in earlier if takes_half(without_each[head], intact)]
    if feeders:
        return feeders, without_each, np.full(len(ESTIMATE), np.nan)
    all_cut = score(earlier)
    if takes_half(all_cut, intact):
        feeders = sorted(earlier, key=lambda head: float(without_each[head].mean()))
        for head in reversed(feeders):
            others = [one for one in feeders if one != head]
            if takes_half(score(others), intact):
                feeders = others
    return feeders, without_each, share_left(all_cut, intact)
