"""Two layers of the paper's model from a zero start: is the deterministic walk still a trap?"""

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from experiments.claims import Finding, holds, share
from experiments.harness import Measured, over_seeds

K, EPS = 6, 0.1
TRAPPED, FREE = 13, 12  # N: K divides N - 1, and does not
POSITION_NORM = 4.0  # |p|
ROUNDING = 1e-12  # of a gradient; 4e-15 is found, and at least 0.02 where the symmetry is broken
Weights = dict[str, Tensor]


def sequences(length: int) -> Float[Tensor, "start state position"]:
    """The deterministic walk from each of the K states, one-hot, float64; the last column is empty."""
    states = (torch.arange(K)[:, None] + torch.arange(length)) % K
    one_hot = torch.eye(K, dtype=torch.float64)[states].mT.clone()
    one_hot[:, :, -1] = 0
    return one_hot


def output(weights: Weights, X: Float[Tensor, "start state position"]) -> Float[Tensor, "start state"]:
    """`f = V2 H softmax(H~^T W2 h~_N)` with `H = X + V1 X softmax(X~^T W1 X~)` under a causal mask."""
    X, positions = X.to(weights["V1"].dtype), _positions(X.shape[-1])
    from_later = torch.ones(X.shape[-1], X.shape[-1]).tril(-1).bool()  # [key, query]
    with_positions = torch.cat([X, positions.expand(len(X), -1, -1)], 1)
    scores = einsum(with_positions, weights["W1"], with_positions, "s a key, a b, s b query -> s key query")
    attention = scores.masked_fill(from_later, -torch.inf).softmax(1)
    H = X + weights["V1"] @ X @ attention
    with_positions = torch.cat([H, positions.expand(len(H), -1, -1)], 1)
    last = einsum(with_positions, weights["W2"], with_positions[..., -1], "s a key, a b, s b -> s key")
    return einsum(weights["V2"], H, last.softmax(-1), "out state, s state key, s key -> s out")


def gradients(weights: Weights, X: Tensor, frequencies: Float[Tensor, " start"]) -> Weights:
    """Of the mean of `-log(f_label + eps)` over the walks, weighted by how often each occurs."""
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    labels = (torch.arange(K) + X.shape[-1] - 1) % K
    loss = -(output(leaves, X)[torch.arange(K), labels] + EPS).log() @ frequencies
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def symmetric(length: int, generator: torch.Generator) -> Weights:
    """A random point of the set in which the trapped model stays.

    Both value matrices are constant. Scores are one number for every token and another for the empty last
    column, whatever the query.
    """
    values, scores = torch.rand(2, 2, 5, generator=generator, dtype=torch.float64)
    V = [row[0] * torch.ones(K, K, dtype=torch.float64) for row in values]
    W = []
    for state, position, last, query_state, query_last in scores:
        key = torch.cat([state.expand(K), position.expand(length - 1), last[None]])
        query = torch.cat([query_state.expand(K), torch.zeros(length - 1), query_last[None]])
        W.append(torch.outer(key, query))
    return {"V1": V[0], "V2": V[1], "W1": W[0], "W2": W[1]}


def leaving(weights: Weights, X: Tensor, frequencies: Float[Tensor, " start"]) -> float:
    """The share of the gradient that leaves the symmetric set; 0 is a trap for any step size and any time."""
    gradient = gradients(weights, X, frequencies)
    off = {name: value - _symmetrised(value) for name, value in gradient.items()}
    return float(_norm(off) / _norm(gradient))


def _symmetrised(gradient: Tensor) -> Tensor:
    """The nearest gradient in the symmetric set."""
    groups = [slice(0, K), slice(K, len(gradient) - 1), slice(len(gradient) - 1, None)]
    kept = torch.zeros_like(gradient)
    for key in groups[: 1 if len(gradient) == K else None]:
        for query in groups[:1] if len(gradient) == K else (groups[0], groups[2]):
            kept[key, query] = gradient[key, query].mean()
    return kept


def _norm(weights: Weights) -> Tensor:
    return torch.stack([value.norm() for value in weights.values()]).norm()


def zero_start_depth(quick: bool) -> Measured:
    """Whether a zero start of two layers is left, on the population and on samples."""
    generator = torch.Generator().manual_seed(0)
    even = torch.full((K,), 1 / K, dtype=torch.float64)
    points = [symmetric(TRAPPED, generator) for _ in range(20 if quick else 200)]
    off = [leaving(point, sequences(TRAPPED), even) for point in points]
    zero = {name: torch.zeros_like(value) for name, value in symmetric(FREE, generator).items()}
    elsewhere = leaving(zero, sequences(FREE), even)
    seeds, steps = range(2 if quick else 16), 100 if quick else 400
    spread = [_on_a_sample(seed, steps) for seed in seeds]
    left = sum(value > 0.5 for value in spread)
    return Measured(
        [
            Finding(
                "zero_start_two_layers",
                f"largest share of the gradient that leaves the symmetric set, over {len(points)} random "
                f"points of it: {max(off):.0e}; at zero where K does not divide N - 1 (N = {FREE}): "
                f"{elsewhere:.2f}",
                holds(max(off) < ROUNDING and elsewhere > 1e-3),
                f"K = {K}, N = {TRAPPED}, residual stream, causal mask, equal weight on all walks, float64. "
                "Constant V1 adds the same vector to every token, so layer 2 sees the token mean, which is "
                "the same for every label; averaged over the walks every gradient is constant again",
                "sampled",
                (sum(value < ROUNDING for value in off), len(off)),
            ),
            Finding(
                "zero_start_two_layers_sample",
                f"{share(left, len(spread))} samples predict more than half of the walks after {steps} "
                f"steps; share predicted {over_seeds(spread)}",
                holds(left > len(spread) / 2),
                "1000 sampled walks, eta = 1, float64, otherwise as above. Uneven counts of the walks leave "
                "the symmetric set; what they add does not grow into a prediction",
                "trained at another",
                (left, len(spread)),
            ),
        ]
    )


def _on_a_sample(seed: int, steps: int) -> float:
    """The share of walks that are predicted after training from zero on 1000 of them."""
    counts = np.random.default_rng(seed).multinomial(1000, np.full(K, 1 / K))
    frequencies, X = torch.from_numpy(counts / 1000), sequences(TRAPPED)
    weights = {name: torch.zeros_like(value) for name, value in symmetric(TRAPPED, torch.Generator()).items()}
    for _ in range(steps):
        step = gradients(weights, X, frequencies)
        weights = {name: value - step[name] for name, value in weights.items()}
    labels = (torch.arange(K) + TRAPPED - 1) % K
    return float((output(weights, X).argmax(-1) == labels).double().mean())


def _positions(length: int) -> Float[Tensor, "dimension position"]:
    return POSITION_NORM * torch.eye(length, dtype=torch.float64)
