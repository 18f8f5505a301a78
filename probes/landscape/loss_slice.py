"""A plane through weight space: the run, the unigram point and the bigram point, where both can be built."""

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from mechmarkov.curvature.loss_surface import LossSurface
from mechmarkov.curvature.walk_parts import WalkParts
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import FixedChain

# Attention logit of the parent at the bigram point: e^-12 is left for all others.
PARENT_LOGIT = 12.0
POINTS = 13
MARGIN = 0.25


@torch.no_grad()
def loss_slice(
    subject: Subject, surface: LossSurface, member: int, growing: Float[Tensor, "coordinate way"]
) -> xr.Dataset:
    """The loss over the plane through a model and the two points, with checkpoints and ways out.

    Args:
        subject: A run at its probed steps.
        surface: Its loss.
        member: The model that lies in the plane.
        growing: Unit directions along which the loss of that model falls.

    Returns:
        `slice` [across, along] (nats): `along` is the way from the unigram point, at 0, to the bigram point,
        at 1, and `across` has the same unit; attrs hold `run_at`, where the run is, and `loss_at`, the loss
        at run, unigram and bigram point. `path` [checkpoint, plane]: the models' projections onto the plane;
        `way` [way, plane]: those of the growing directions, each of length 1 in weight space.
        Without such a plane only `no_slice`, one line why, in attrs.
    """
    theta, walk = surface.thetas[member], surface.walk
    built = _walk_points(subject, surface, walk, theta) if walk else _points(subject, surface, theta)
    if isinstance(built, str):
        return xr.Dataset(attrs={"no_slice": built})
    unigram, bigram = built
    across_way = bigram - unigram
    unit = float(across_way.norm())
    along = across_way / unit
    apart = theta - unigram
    a = float(apart @ along)
    rest = apart - a * along
    b = float(rest.norm())
    if b < 1e-9 * unit:  # on the line: any direction across will do
        rest = torch.randn(len(theta), generator=torch.Generator().manual_seed(0), dtype=theta.dtype)
        rest = rest - (rest @ along) * along
    across = rest / rest.norm()
    plane = torch.stack([along, across])
    path = ((surface.thetas - unigram) @ plane.T / unit).numpy()
    x = _axis(a / unit, 0.0, 1.0, *path[:, 0])
    y = _axis(b / unit, 0.0, 0.5, *path[:, 1])
    grid = torch.tensor([[i, j] for j in y for i in x], dtype=theta.dtype) * unit
    thetas = torch.cat([torch.stack([theta, unigram, bigram]), unigram + grid @ plane])
    losses = surface.losses(thetas).numpy()
    return xr.Dataset(
        variables("nats", ("across", "along"), slice=losses[3:].reshape(len(y), len(x)))
        | variables("way from unigram to bigram point", ("checkpoint", "plane"), path=path)
        | variables("share of the direction", ("way", "plane"), way=(growing.T @ plane.T).numpy()),
        coords={"along": x, "across": y, "plane": ["along", "across"], "checkpoint": subject.coordinates},
        attrs={"run_at": [a / unit, b / unit], "loss_at": losses[:3].tolist()},
    )


def _axis(*points: float) -> Float[np.ndarray, " point"]:
    low, high = min(points), max(points)
    return np.linspace(low - MARGIN * (high - low), high + MARGIN * (high - low), POINTS)


def _walk_points(
    subject: Subject, surface: LossSurface, walk: WalkParts, theta: Float[Tensor, " coordinate"]
) -> tuple[Tensor, Tensor] | str:
    """Flat attention with V constant, and attention on the parent with V the root of P; both of one |V|."""
    source = subject.source
    assert isinstance(source, FixedChain)
    if subject.objective.kind == "cross_entropy" or not np.allclose(source.pi, source.pi[0]):
        return "the two points of a walk model are built for raw scores and a uniform stationary law"
    numbers = surface.coordinates.numbers
    places = torch.from_numpy(walk.places_of_V(numbers))
    size = float(theta[places.flatten()].norm()) or 1.0
    root = torch.tensor(np.sqrt(source.P) if subject.objective.kind == "raw_log" else np.array(source.P))
    unigram, bigram = torch.zeros_like(theta), torch.zeros_like(theta)
    unigram[places] = size / source.n_states
    bigram[places] = size * root / root.norm()
    logits = torch.zeros(len(walk.positions), dtype=theta.dtype)
    logits[-2] = PARENT_LOGIT
    block = torch.from_numpy(walk.places_of_u(numbers)[source.n_states :])
    bigram[block] = logits @ torch.from_numpy(walk.positions) / walk.norm**3
    return unigram, bigram


def _points(
    subject: Subject, surface: LossSurface, theta: Float[Tensor, " coordinate"]
) -> tuple[Tensor, Tensor] | str:
    """The run's weights with a silent unembedding, and a table that embedding and unembedding hold."""
    config, source = subject.config, subject.source
    assert isinstance(source, FixedChain)
    n, d, P = source.n_states, config.d_model, np.array(source.P)
    trained = subject.run.trainable is None and subject.objective.kind == "cross_entropy"
    if not trained or config.normalization_type is not None or subject.objective.query:
        return "the two points are built for cross-entropy on the next token, with no norm and nothing frozen"
    if (P <= 0).any():
        return "P has zeros, so the bigram point is at infinity"
    numbers = {name: torch.from_numpy(places) for name, places in surface.coordinates.numbers.items()}
    unigram, bigram = theta.clone(), torch.zeros_like(theta)
    unigram[numbers["unembed.b_U"]] = torch.tensor(np.log(source.pi))
    if not config.tied:
        if d < n - 1:
            return f"d_model is {d}, too narrow for a table of {n} states"
        unigram[numbers["unembed.W_U"]] = 0
        left, sigma, right = np.linalg.svd(np.log(P) - np.log(P).mean(1, keepdims=True))
        rank = min(n, d)
        bigram[numbers["embed.W_E"][:, :rank]] = torch.tensor(left[:, :rank] * np.sqrt(sigma[:rank]))
        bigram[numbers["unembed.W_U"][:rank]] = torch.tensor(np.sqrt(sigma[:rank])[:, None] * right[:rank])
        return unigram, bigram
    unigram[numbers["embed.W_E"]] = 0
    if n != 2:
        return "with tied weights the bigram point is built for two states"
    return _tied_bigram(numbers, P, None if config.gated_mlp else config.d_mlp, unigram, bigram)


def _tied_bigram(
    numbers: dict[str, Tensor], P: np.ndarray, d_mlp: int | None, unigram: Tensor, bigram: Tensor
) -> tuple[Tensor, Tensor] | str:
    """`E_1 = -E_0` along one direction; where the slope must be negative an MLP turns it round.

    With `E_x = ±a/2` the embedding adds `a²/2` to the log-odds of its own state, and two hidden units that
    see `±` give back `-k` times the stream.
    """
    log_odds = np.log(P[:, 1] / P[:, 0])
    slope, offset = float(log_odds[1] - log_odds[0]), float(log_odds.mean())
    turn = slope < 0
    if turn and (d_mlp is None or d_mlp < 2):
        return "with tied weights and p + q > 1 the bigram point needs an MLP without a gate"
    half = float(np.sqrt(abs(slope))) / 2  # slope = |E_1 - E_0|² times 1, or times 1 - k with k = 2
    bigram[numbers["embed.W_E"][0, 0]], bigram[numbers["embed.W_E"][1, 0]] = -half, half
    bigram[numbers["unembed.b_U"]] = torch.tensor([-offset / 2, offset / 2], dtype=bigram.dtype)
    if turn:
        into, out = numbers["blocks.0.mlp.W_in"], numbers["blocks.0.mlp.W_out"]
        bigram[into[0, 0]], bigram[into[0, 1]] = 1.0, -1.0
        bigram[out[0, 0]], bigram[out[1, 0]] = -2.0, 2.0
    return unigram, bigram
