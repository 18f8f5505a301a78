"""Varre et al.'s simplified transformer, and its gradient where it is an in-context sub-n-gram.

The first layer's heads mix one-hot tokens by position alone; the second layer attends by a bilinear form over
the tokens and what the heads carry, and its output is the attention-weighted frequency of each token.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

import mechmarkov as mm
from mechmarkov.sources.sampling import law

FLOOR = 1e-8  # inside the logarithm, as in the authors' code
CHUNK = 1 << 21  # one-hot entries of the keys at a time


@dataclass(frozen=True)
class Simplified:
    """The two attention layers' logits.

    Attributes:
        by_position: Of the first layer, for each head.
        by_token: Of the second, over blocks: block 0 is the token, block j what head j carries.
    """

    by_position: Float[Tensor, "head query key"]
    by_token: Float[Tensor, "query_block query_state key_block key_state"]


def sub_n_gram(n_states: int, length: int, heads: int, looks_back: int, sharpness: float) -> Simplified:
    """The model whose prediction is the frequency of what followed the last `looks_back` tokens.

    Head j looks j tokens back for j = 1 … `looks_back`; the heads beyond are as at the start, uniform. The
    second layer compares block j - 1 of the query with block j of the key, by `sharpness` times the identity.
    """
    by_position = torch.zeros(heads, length, length, dtype=torch.float64)
    by_token = torch.zeros(heads + 1, n_states, heads + 1, n_states, dtype=torch.float64)
    for j in range(1, looks_back + 1):
        by_position[j - 1].diagonal(-j).fill_(sharpness)
        by_token[j - 1, :, j].fill_diagonal_(sharpness)
    return Simplified(by_position, by_token)


def predict(model: Simplified, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch state"]:
    """The model's law of the token after the last."""
    n_states, length = model.by_token.shape[1], tokens.shape[1]
    x = torch.nn.functional.one_hot(tokens, n_states).double()
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixes = model.by_position[:, :length, :length].masked_fill(ahead, -torch.inf).softmax(-1)
    carried = torch.einsum("hqk,bks->bqhs", mixes, x)
    stream = torch.cat([x[:, :, None], carried], dim=2)  # [batch, position, block, state]
    logits = torch.einsum("bis,isjt,bkjt->bk", stream[:, -1], model.by_token, stream)
    return torch.einsum("bk,bks->bs", logits.softmax(-1), x)


def gradient(
    model: Simplified, tokens: Int[Tensor, "batch position"], targets: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, "head query key"], Float[Tensor, "query_block query_state key_block key_state"]]:
    """Of the mean loss `-log(prediction of the target + 1e-8)`, by both layers' logits."""
    leaves = (model.by_position.requires_grad_(), model.by_token.requires_grad_())
    total = [torch.zeros_like(leaf) for leaf in leaves]
    step = max(1, CHUNK // (tokens.shape[1] * model.by_token[0].numel()))
    for start in range(0, len(tokens), step):
        part = slice(start, start + step)
        law = predict(model, tokens[part]).gather(1, targets[part, None])
        found = torch.autograd.grad(-(law + FLOOR).log().sum(), leaves)
        total = [old + new for old, new in zip(total, found, strict=True)]
    by_position, by_token = (each / len(tokens) for each in total)
    return by_position, by_token


def gradient_norm(
    model: Simplified,
    source: mm.DirichletChains,
    length: int,
    sequences: int,
    generator: torch.Generator,
    keep: Callable[[Tensor, Tensor], list[Tensor]],
) -> tuple[float, float, float]:
    """The norm of the population gradient, low and high by two sampling errors, from independent parts.

    The product of two independent estimates has the squared norm as its mean, where the square of one has
    its own noise added. `keep` says which entries of the two gradients are parameters.
    """
    parts = 8
    found = []
    for _ in range(parts):
        drawn = source.sample(sequences // parts, length + 1, generator=generator)
        entries = keep(*gradient(model, drawn[:, :-1], drawn[:, -1]))
        found.append(torch.cat([entry.flatten() for entry in entries]))
    g = torch.stack(found)
    inner = rearrange(g @ g.T, "a b -> (a b)")
    off = inner[~torch.eye(parts, dtype=torch.bool).flatten()]
    squared = float(off.mean())
    # Of a jackknife over parts: each leaves its products out.
    left_out = torch.stack(
        [(g @ g.T)[~torch.eye(parts, dtype=torch.bool) & _without(parts, i)].mean() for i in range(parts)]
    )
    error = float(((parts - 1) / parts * (left_out - left_out.mean()).square().sum()).sqrt())
    norm, low, high = (max(0.0, squared + sign * error) ** 0.5 for sign in (0, -2, 2))
    return norm, low, high


def limit(source: mm.DirichletChains, kernels: int) -> list[tuple[float, float]]:
    """The gradient's norm at the unigram and at the bigram of order-2 chains, for endless sequences.

    What is left is by the own token of the keys: a key attended to carries state b as often as the
    prediction says, so that the gradient of block (i, 0) is `E[1(query block i = a) (law - prediction)_b]`,
    with the true law after both tokens. The mean is over kernels, each with its stationary law.

    Returns:
        Norm and sampling error, at the unigram (block 0 of the query) and the bigram (block 1).
    """
    K = source.n_states
    kernel = source.sample_chains(kernels, generator=torch.Generator().manual_seed(0))
    histories = torch.zeros(kernels, K * K, K * K, dtype=torch.float64)
    for last in range(K):  # from (older, last) to (last, next)
        histories[:, last::K, last * K : (last + 1) * K] = kernel[:, last::K]
    joint = rearrange(law.eliminate(histories)[..., None] * kernel, "n (a b) y -> n a b y", a=K)
    one, pairs = joint.sum((1, 2)), joint.sum(1)
    after_last = pairs / pairs.sum(2, keepdim=True)
    unigram = pairs - pairs.sum(2, keepdim=True) * one[:, None]
    bigram = (joint - joint.sum(3, keepdim=True) * after_last[:, None]).sum(2)
    return [(float(g.mean(0).norm()), float(g.std(0).norm()) / kernels**0.5) for g in (unigram, bigram)]


def _without(parts: int, i: int) -> Tensor:
    kept = torch.ones(parts, parts, dtype=torch.bool)
    kept[i], kept[:, i] = False, False
    return kept
