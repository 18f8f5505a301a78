"""All sequences a fixed chain can give, each with its probability: training without samples."""

import numpy as np
from jaxtyping import Float64, Int64

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.source import Source
from mechmarkov.utils.lazy_torch import Tensor, torch

# A step reads all of them: of 16 states these are 2^20 tokens.
MAX_SEQUENCES = 1 << 16


def is_permutation(source: Source) -> bool:
    """Returns whether a source is a deterministic chain whose states take turns: one sequence per start.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> is_permutation(Circle(n_states=4, p=1.0)), is_permutation(Circle(n_states=4, p=0.5))
        (True, False)
    """
    P = getattr(source, "P", None)
    return P is not None and bool(((P == 0) | (P == 1)).all()) and bool((P.sum(0) == 1).all())


def check_fixed(source: Source) -> FixedChain:
    """The source, if it is a fixed first-order chain.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(source, FixedChain):
        raise ValueError(f"{source.title()!r} is not a fixed first-order chain")
    return source


def n_sequences(source: Source, length: int) -> int:
    """Returns how many sequences of that many states have positive probability.

    Raises:
        ValueError: The source is not a fixed chain, or there are more than `MAX_SEQUENCES`.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> n_sequences(Circle(n_states=4, p=0.5), 5), n_sequences(Circle(n_states=4, p=1.0), 5)
        (64, 4)
    """
    source = check_fixed(source)
    if is_permutation(source):
        return source.n_states
    edges = (source.P > 0).astype(float)
    ends = (source.pi > 0).astype(float)  # sequences so far, by their last state
    for _ in range(length - 1):
        ends = ends @ edges
        if ends.sum() > MAX_SEQUENCES:
            raise ValueError(
                f"{source.title()!r} has more than {MAX_SEQUENCES} sequences of {length} states, expected at "
                "most that many"
            )
    return int(ends.sum())


def whole_law(
    source: Source, length: int
) -> tuple[Int64[Tensor, "sequence state"], Float64[Tensor, " sequence"]]:
    """The sequences of positive probability, in lexicographic order, and their probabilities, which sum to 1.

    The law is that of `source.sample`: the start is stationary.

    Raises:
        ValueError: As `n_sequences`.

    Example:
        >>> from mechmarkov.sources import Binary
        >>> states, weights = whole_law(Binary(p=0.5, q=0.5), 2)
        >>> states.tolist(), weights.tolist()
        ([[0, 0], [0, 1], [1, 0], [1, 1]], [0.25, 0.25, 0.25, 0.25])
    """
    n_sequences(source, length)
    source = check_fixed(source)
    walks = np.flatnonzero(source.pi)[:, None]
    weights = source.pi[walks[:, 0]]
    for _ in range(length - 1):
        rows = source.P[walks[:, -1]]
        before, following = np.nonzero(rows)
        weights = weights[before] * rows[before, following]
        walks = np.concatenate([walks[before], following[:, None]], 1)
    return torch.from_numpy(walks), torch.from_numpy(weights)
