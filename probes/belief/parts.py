"""Parts of what is hidden, as a task and the state in it: where each is read, and how far apart they lie."""

from itertools import combinations

import numpy as np
from jaxtyping import Float

from mechmarkov.sources import Source
from mechmarkov.sources.base.hidden_chain import HiddenChain, Parts
from mechmarkov.theory.bootstrap import ratio

RANK = 1e-6  # of the largest singular value; below it a direction is rounding
Beliefs = Float[np.ndarray, "*lead batch read hidden"]


def parts_of(source: Source) -> Parts:
    """The parts that a source tells of what is hidden: which value each hidden state has; none of most."""
    return source.parts if isinstance(source, HiddenChain) else {}


def pairs_of(parts: Parts) -> list[str]:
    """The names of all pairs of parts."""
    return [f"{a} and {b}" for a, b in combinations(parts, 2)]


def r2_of_parts(
    readings: Beliefs, belief: Float[np.ndarray, "batch read hidden"], parts: Parts
) -> tuple[Float[np.ndarray, "part ..."], Float[np.ndarray, "part ..."]]:
    """R² of each part's belief as the reading of the whole gives it, and its standard error."""
    found = []
    for values in parts.values():
        exact = belief @ values
        off = ((readings @ values - exact) ** 2).sum(-1).mean(-1)
        found.append(ratio(off, ((exact - exact.mean((0, 1))) ** 2).sum(-1).mean(-1)))
    missed, error = (np.array(each) for each in zip(*found, strict=True))
    return 1 - missed, error


def overlaps(
    stream: Float[np.ndarray, "batch read d_model"],
    belief: Float[np.ndarray, "batch read hidden"],
    parts: Parts,
) -> Float[np.ndarray, " pair"]:
    """The overlap of the subspaces in which the stream moves as each part's belief does.

    The mean squared cosine of the principal angles: 0 is orthogonal, 1 is that one holds the other. A
    subspace is spanned by the covariances of the stream with the part's values.

    Example:
        >>> belief = np.random.default_rng(0).dirichlet([1, 1, 1, 1], (50, 20))
        >>> bits = {"high": np.repeat(np.eye(2), 2, 0), "low": np.tile(np.eye(2), (2, 1))}
        >>> stream = belief @ np.array([[0, 0], [0, 1], [1, 0], [1, 1]])  # a direction for each
        >>> float(overlaps(stream, belief, bits)[0]) < 0.05
        True
    """
    rows = stream.reshape(-1, stream.shape[-1])
    centred = (rows - rows.mean(0)).T
    bases = []
    for values in parts.values():
        exact = (belief @ values).reshape(-1, values.shape[1])
        directions, size, _ = np.linalg.svd(centred @ (exact - exact.mean(0)), full_matrices=False)
        bases.append(directions[:, size > RANK * max(size[0], np.finfo(float).tiny)])
    return np.array(
        [((a.T @ b) ** 2).sum() / max(1, min(a.shape[1], b.shape[1])) for a, b in combinations(bases, 2)]
    )


def laws_of_values(
    belief: Float[np.ndarray, "batch read hidden"],
    laws: Float[np.ndarray, "batch read hidden state"],
    values: Float[np.ndarray, "hidden value"],
) -> Float[np.ndarray, "batch read value state"]:
    """The law of the next token if a part were known, and the rest as the belief has it (probability)."""
    weight = belief[..., None] * values
    total = weight.sum(-2, keepdims=True)
    evenly = values / values.sum(0)
    weight = np.where(total > np.finfo(float).tiny, weight / np.where(total > 0, total, 1), evenly)
    return np.einsum("brhv,brhj->brvj", weight, laws)
