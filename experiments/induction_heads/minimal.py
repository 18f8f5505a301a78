"""The minimal model: a softmax over lags, then linear attention with a K x K matrix; trained as a stack.

Layer 1 mixes the tokens before each key by the softmax of a vector over lags,
`m_i = sum_l softmax(v)_l x_{i-l}`, x one-hot; layer 2 scores that mix against the query's token and copies
the key's, `logits_t = sum_{i <= t} (x_t W m_i) x_i`. `v` starts at 0, `W` at 0.01 everywhere (Edelman et al.
2024, their public code).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

import mechmarkov as mm

W_START = 0.01
SHARP = 10.0  # of v at a clamped lag: softmax puts all but 1e-2 there over 100 lags


def logits(
    v: Float[Tensor, "seed lag"],
    W: Float[Tensor, "seed state key_state"],
    tokens: Int[Tensor, "seed batch position"],
    masked: bool = True,
) -> Float[Tensor, "seed batch position state"]:
    """What the minimal model says of the next token.

    Args:
        v: Of each lag from the key; lag 0 is the key itself.
        W: Current token against mixed token.
        tokens: The states.
        masked: Whether layer 1 is causal. The public code computes the mask and does not use it: keys then
            see every later token, with the weight of lag 0.
    """
    length, n_states = tokens.shape[-1], W.shape[-1]
    x = F.one_hot(tokens, n_states).to(v.dtype)
    lag = torch.arange(length)[:, None] - torch.arange(length)
    scores = v[:, lag.clamp_min(0)]
    if masked:
        scores = scores.masked_fill(lag < 0, -torch.inf)
    mixed = einsum(scores.softmax(-1), x, "seed key past, seed batch past k -> seed batch key k")
    # Sums over keys up to the query, of (mix, token) pairs: linear attention needs no table of scores.
    pairs = einsum(mixed, x, "seed batch key k, seed batch key j -> seed batch key k j").cumsum(2)
    read = einsum(x, W, "seed batch query i, seed i k -> seed batch query k")
    return einsum(read, pairs, "seed batch query k, seed batch query k j -> seed batch query j")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A stack of minimal models over training, at every step kept.

    Attributes:
        steps: `[step]`.
        v, W: `[step, seed, lag]`, `[step, seed, state, key_state]`.
        v_gradient, W_gradient: The largest entries of the gradients there, `[step, seed]`.
    """

    steps: Int[np.ndarray, " step"]
    v: Float[Tensor, "step seed lag"]
    W: Float[Tensor, "step seed state key_state"]
    v_gradient: Float[Tensor, "step seed"]
    W_gradient: Float[Tensor, "step seed"]

    @property
    def previous(self) -> Float[np.ndarray, "step seed"]:
        """What layer 1 of the last key gives the token before it."""
        return self.v.softmax(-1)[..., 1].numpy()

    @property
    def diagonal(self) -> Float[np.ndarray, "step seed"]:
        """How far the diagonal of `W` is above the rest, in logits a pair."""
        n = self.W.shape[-1]
        diagonal = self.W.diagonal(dim1=-2, dim2=-1).sum(-1)
        return (diagonal / n - (self.W.sum((-2, -1)) - diagonal) / (n * n - n)).numpy()


def train(
    source: mm.sources.Source,
    seeds: Sequence[int],
    *,
    n_ctx: int,
    batch: int,
    steps: int,
    every: int,
    lr_W: float,
    lr_v: float,
    start_v: Float[Tensor, " lag"] | None = None,
    start_W: Float[Tensor, "state key_state"] | None = None,
    masked: bool = True,
) -> Trajectory:
    """Stochastic gradient descent on the mean cross-entropy, fresh sequences every step, float64.

    Args:
        source: Of the sequences; a learning rate of 0 holds its parameter at its start.
        seeds: Of the data, one a member.
        n_ctx: Length of the input.
        batch: Sequences a step.
        steps: How many.
        every: Keep every so many.
        lr_W: Of `W`.
        lr_v: Of `v`.
        start_v: Of every member; zeros by default.
        start_W: Likewise; 0.01 everywhere by default.
        masked: See `logits`.
    """
    n, m = source.n_states, len(seeds)
    v = torch.zeros(n_ctx, dtype=torch.float64) if start_v is None else start_v
    W = torch.full((n, n), W_START, dtype=torch.float64) if start_W is None else start_W
    v, W = v.repeat(m, 1).requires_grad_(), W.repeat(m, 1, 1).requires_grad_()
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    kept: list[tuple[Tensor, ...]] = []
    for step in range(steps + 1):
        states = torch.stack([source.sample(batch, n_ctx + 1, generator=g) for g in generators])
        scores = logits(v, W, states[..., :-1], masked)
        loss = F.cross_entropy(scores.flatten(0, 2), states[..., 1:].flatten()) * m  # a mean for each member
        dv, dW = torch.autograd.grad(loss, [v, W])
        if step % every == 0:
            kept.append((v.detach().clone(), W.detach().clone(), dv.abs().amax(-1), dW.abs().amax((-2, -1))))
        with torch.no_grad():
            v -= lr_v * dv
            W -= lr_W * dW
    v_at, W_at, dv_at, dW_at = (torch.stack(values) for values in zip(*kept, strict=True))
    return Trajectory(np.arange(0, steps + 1, every), v_at, W_at, dv_at, dW_at)


def predictions(
    trajectory: Trajectory, tokens: Int[Tensor, "batch position"], masked: bool = True
) -> Float[np.ndarray, "step seed batch position state"]:
    """Of all models of a trajectory on the same sequences."""
    steps, seeds = trajectory.v.shape[:2]
    flat = tokens.expand(steps * seeds, *tokens.shape)
    scores = logits(trajectory.v.flatten(0, 1), trajectory.W.flatten(0, 1), flat, masked)
    return scores.softmax(-1).unflatten(0, (steps, seeds)).numpy()


def clamped_layer_1(n_ctx: int) -> Float[Tensor, " lag"]:
    """The ideal `v`: all weight on the token before the key."""
    v = torch.zeros(n_ctx, dtype=torch.float64)
    v[1] = SHARP
    return v
