"""Park et al.'s four algorithms: a model as a mixture of them, and whether the mixture can be told at all."""

from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from scipy.optimize import nnls
from torch import Tensor

import mechmarkov as mm

ALGORITHMS = ("unigram_retrieval", "bigram_retrieval", "in_context_unigram", "in_context_bigram")
SHORT = ("uni-retrieval", "bi-retrieval", "uni-inference", "bi-inference")
RESAMPLES = 200
SUM_TO_ONE = 1e3  # weight of that equation in the least squares, whose own entries are below 1


@dataclass(frozen=True)
class Fit:
    """The mixture of the four algorithms that is nearest to a model in squared distance.

    Attributes:
        weights: In the order of `ALGORITHMS`, at least 0, of sum 1.
        interval: 95 % of the weights over resampled sequences: low and high.
        explained: Share of the variance of the model's predictions around their mean.
        condition: Largest by smallest eigenvalue of the algorithms' differences: how much further apart
            they are in one direction of the simplex than in another. 1 is equally well told apart.
    """

    weights: Float[np.ndarray, " algorithm"]
    interval: Float[np.ndarray, "2 algorithm"]
    explained: float
    condition: float


def fit(
    model: Float[np.ndarray, "batch position state"],
    algorithms: Float[np.ndarray, "algorithm batch position state"],
    seed: int = 0,
) -> Fit:
    """Fit on the simplex, by least squares over all predictions."""
    laws = rearrange(algorithms, "algorithm b t s -> b algorithm (t s)")
    gram = laws @ laws.swapaxes(1, 2)
    product = (laws @ rearrange(model, "b t s -> b (t s) 1"))[..., 0]
    weights = on_simplex(gram.sum(0), product.sum(0))
    draws = np.random.default_rng(seed).multinomial(len(gram), np.full(len(gram), 1 / len(gram)), RESAMPLES)
    again = np.stack([on_simplex(*(np.tensordot(n, x, 1) for x in (gram, product))) for n in draws])
    rest = model - np.einsum("i,ibts->bts", weights, algorithms)
    spread = model - model.mean((0, 1))
    along = np.linalg.svd(np.ones((1, len(algorithms))))[2][1:]  # directions in which weights keep their sum
    eigenvalues = np.linalg.eigvalsh(along @ gram.sum(0) @ along.T)
    return Fit(
        weights=weights,
        interval=np.quantile(again, [0.025, 0.975], axis=0),
        explained=float(1 - (rest**2).sum() / (spread**2).sum()),
        condition=float(eigenvalues[-1] / eigenvalues[0]),
    )


def on_simplex(
    gram: Float[np.ndarray, "algorithm algorithm"], product: Float[np.ndarray, " algorithm"]
) -> Float[np.ndarray, " algorithm"]:
    """Weights w >= 0 of sum 1 that minimise `w gram w - 2 product w`.

    Example:
        >>> on_simplex(np.eye(2), np.array([0.9, 0.3])).round(3).tolist()
        [0.8, 0.2]
    """
    scale = np.trace(gram)
    lower = np.linalg.cholesky(gram / scale)
    rows = np.vstack([lower.T, np.full(len(gram), SUM_TO_ONE)])
    weights, _ = nnls(rows, np.append(np.linalg.solve(lower, product / scale), SUM_TO_ONE))
    return np.asarray(weights / weights.sum())


def bigram_use(
    decoder: mm.HookedDecoder, tokens: Int[Tensor, "batch position"]
) -> Float[np.ndarray, " step"]:
    """Mean KL from the last prediction to that after a shuffled context, the last token in place."""
    shuffled = mm.shuffle_context(tokens, "all but last", seed=0)
    many = (decoder.n_models, -1, -1)
    with torch.no_grad():
        before, after = (
            decoder(x.expand(many))[..., -1, :].double().log_softmax(-1) for x in (tokens, shuffled)
        )
    return np.asarray((before.exp() * (before - after)).sum(-1).mean(-1).numpy())
