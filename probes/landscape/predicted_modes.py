"""What theory says of the Hessian at the two points where it is known: the walk's trap and the unigram."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from mechmarkov.curvature.loss_surface import LossSurface
from mechmarkov.curvature.trainable_vector import Coordinates, Symmetry
from mechmarkov.curvature.walk_parts import WalkParts
from mechmarkov.models.config import DecoderConfig
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import FixedChain
from mechmarkov.theory.kernel import kl
from mechmarkov.theory.symmetry import orbits
from mechmarkov.theory.unigram_trap import UnigramPoint, unigram_point
from mechmarkov.theory.walk.trap_spectrum import TrapSpectrum, trap_spectrum

# A model is at the trap if attention and V vary by less than this share. It is at the unigram point if its
# predictions and its bias are within this many nats of it, and no embedding's squared length is above this.
MAX_TRAP_SHARE = 0.01
MAX_UNIGRAM_NATS = 1e-3
MAX_UNIGRAM_SQUARE = 0.05  # curvature along an unembedding is at most half as much
# What attention and MLPs add to an embedding, at most, as a share of it: theory has only the straight path.
MAX_OTHER_PATHS = 0.05


@dataclass(frozen=True, eq=False)
class Predicted:
    """The predicted Hessian outside the symmetric subspace, at the point a model is at.

    Attributes:
        point: Which point that is, in words.
        low: The smallest eigenvalue.
        size: The largest absolute one that theory gives.
        spectrum: All of them, ascending, where they are known.
        modes: An orthonormal basis of the eigenspace of the smallest, one vector a column; empty where that
            eigenvalue is zero.
        rates: Named growth rates, per unit of step size times steps.
        others: What heads and MLPs, which theory leaves out, add at most, as a share of what they read.
    """

    point: str
    low: float
    size: float
    spectrum: Float[np.ndarray, " eigenvalue"] | None
    modes: Float[np.ndarray, "coordinate mode"]
    rates: dict[str, float]
    others: float = 0.0

    @property
    def applies(self) -> bool:
        """Returns whether theory has all that acts there."""
        return self.others <= MAX_OTHER_PATHS


@torch.no_grad()
def predict(subject: Subject, surface: LossSurface, symmetry: Symmetry, member: int) -> Predicted | None:
    """The theory's Hessian for a model, if it is at a point that theory knows: the trap, the unigram point.

    Args:
        subject: The models: `Subject.of(run)`.
        surface: Their expected loss: `loss_surface(subject)`.
        symmetry: The symmetries of source and model: `symmetry_of(run)`.
        member: The index of the model.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.curvature.loss_surface import loss_surface
        >>> from mechmarkov.curvature.trainable_vector import symmetry_of
        >>> subject = mm.Subject.of(mm.example("trap"), sequences=8)
        >>> predict(subject, loss_surface(subject), symmetry_of(subject.run), 0).point
        'the symmetric trap'
    """
    if symmetry.shifts and surface.walk is not None and subject.objective.kind == "raw_log":
        return _at_trap(subject, surface, surface.walk, surface.thetas[member])
    point = unigram_criterion(subject, symmetry)
    if point is None or not at_unigram(subject, surface.coordinates, surface.thetas[member]):
        return None
    assert isinstance(subject.source, FixedChain)
    if surface.kl_from(np.array(subject.source.pi), member) > MAX_UNIGRAM_NATS:
        return None
    outside = [*point.embedding, *point.bias] + [0.0] * symmetry.trivial  # what no token moves is flat
    low, size = min(outside), max(map(abs, outside))
    modes = _embedding_modes(subject.config, surface.coordinates, point, low)
    others = _other_paths(subject, member)
    return Predicted("the unigram point", low, size, None, modes, {"unigram": point.growth}, others)


def _other_paths(subject: Subject, member: int) -> float:
    """The most that a layer's heads or MLP add to what they read, as a share of it (spectral norms)."""
    if subject.config.mixer != "attention":
        return np.inf
    blocks: list[Any] = list(subject.decoder.blocks)
    most = 0.0
    for block in blocks:
        ov = einsum(block.attn.W_V[member], block.attn.W_O[member], "head d k, head k e -> d e")
        most = max(most, float(torch.linalg.matrix_norm(ov, 2)))
        if block.mlp is not None:
            sizes = (torch.linalg.matrix_norm(W[member], 2) for W in (block.mlp.W_in, block.mlp.W_out))
            most = max(most, float(torch.stack([*sizes]).prod()))
    return most


def walk_numbers(
    walk: WalkParts, coordinates: Coordinates, theta: Float[Tensor, "*lead coordinate"]
) -> tuple[Float[np.ndarray, "*lead state_to state_from"], Float[np.ndarray, "*lead position"]]:
    """Returns `V`, and the attention logits of positions with the mean token logit added to those of tokens.

    Args:
        walk: Where V and u stand in the walk model's weights: `surface.walk`.
        coordinates: Where weights stand in a flat vector: `surface.coordinates`.
        theta: Such a vector, or several: `surface.thetas`.
    """
    K = len(walk.read_at)
    numbers = coordinates.numbers
    u = theta.numpy()[..., walk.places_of_u(numbers)] * walk.norm
    V = theta.numpy()[..., walk.places_of_V(numbers)].swapaxes(-1, -2)
    logits = u[..., K:] @ walk.positions.T
    logits[..., :-1] += u[..., :K].mean(-1, keepdims=True)
    return V, logits


def trap_at(
    walk: WalkParts, coordinates: Coordinates, theta: Float[Tensor, " coordinate"], eps: float
) -> tuple[TrapSpectrum, float]:
    """The spectrum of the trap whose V has the mean entry of this one, and the distance from that trap.

    The distance is the larger of the share of V that varies along rows and the spread of the attention over
    tokens against a token's mean share.
    """
    V, logits = walk_numbers(walk, coordinates, theta)
    attention = np.exp(logits - logits.max())
    attention /= attention.sum()
    tokens, alpha, query = attention[:-1], float(V.mean()), float(attention[-1])
    size = float(np.linalg.norm(V))
    varies = float(np.linalg.norm(V - V.mean(1, keepdims=True))) / size if size else 0.0
    z = alpha * (1 - query)
    spectrum = trap_spectrum(
        n_states=len(V),
        length=len(attention),
        position_norm=walk.norm,
        alpha=alpha,
        query_mass=query,
        slope=-1 / (z + eps),
    )
    return spectrum, max(varies, float(np.ptp(tokens) / tokens.mean()))


def _at_trap(
    subject: Subject, surface: LossSurface, walk: WalkParts, theta: Float[Tensor, " coordinate"]
) -> Predicted | None:
    spectrum, distance = trap_at(walk, surface.coordinates, theta, subject.objective.eps)
    if distance > MAX_TRAP_SHARE:
        return None
    values, modes = spectrum.eigenvalues, _growing(subject, surface.coordinates, walk, spectrum)
    low, size = float(values[0]), float(np.abs(values).max())
    rates = {"attention by lag class": spectrum.growth_position, "attention by token": spectrum.growth_token}
    return Predicted("the symmetric trap", low, size, values, modes, rates)


def _growing(
    subject: Subject, coordinates: Coordinates, walk: WalkParts, spectrum: TrapSpectrum
) -> Float[np.ndarray, "coordinate mode"]:
    """The K-1 modes that grow fastest."""
    if spectrum.growth_token > spectrum.growth_position:
        V, attention = _token_modes(coordinates, walk)
        return (spectrum.growing_token[0] * V + spectrum.growing_token[1] * attention).T
    V, attention = lag_class_modes(subject, coordinates, walk)
    return (spectrum.growing_position[0] * V + spectrum.growing_position[1] * attention).T


def _token_modes(
    coordinates: Coordinates, walk: WalkParts
) -> tuple[Float[np.ndarray, "mode coordinate"], Float[np.ndarray, "mode coordinate"]]:
    """Attention by token identity, and the columns of V: K-1 pairs of unit vectors."""
    K = len(walk.read_at)
    columns, attention = np.zeros((K, coordinates.size)), np.zeros((K, coordinates.size))
    states = np.arange(K)
    attention[states, walk.places_of_u(coordinates.numbers)[:K]] = 1
    columns[states[:, None], walk.places_of_V(coordinates.numbers)] = 1 / np.sqrt(K)
    rest = np.linalg.svd(np.ones((1, K)))[2][1:]
    return rest @ columns, rest @ attention


def lag_class_modes(
    subject: Subject, coordinates: Coordinates, walk: WalkParts
) -> tuple[Float[np.ndarray, "mode coordinate"], Float[np.ndarray, "mode coordinate"]]:
    """Attention by lag class, and the band of V that steps as far: K-1 pairs of unit vectors.

    A deterministic walk cannot tell lags apart that are equal modulo K: such a class is attended as one.

    Args:
        subject: Models on a deterministic cycle of K states.
        coordinates: Where weights stand in a flat vector: `surface.coordinates`.
        walk: Where V and u stand in the walk model's weights: `surface.walk`.

    Returns:
        The bands of V and the attention, one pair a row, both orthogonal to the classes' mean.
    """
    source = subject.source
    assert isinstance(source, FixedChain)
    K, tokens = source.n_states, len(walk.positions) - 1
    ahead = source.P.argmax(1)
    in_u, places = walk.places_of_u(coordinates.numbers), walk.places_of_V(coordinates.numbers)
    bands, attention = np.zeros((K, coordinates.size)), np.zeros((K, coordinates.size))
    to = np.arange(K)
    unit = walk.positions[:-1] / np.linalg.norm(walk.positions[:-1], axis=1, keepdims=True)
    for m in range(K):  # lag m modulo K: from x to what lies m steps ahead of it
        bands[m, places[np.arange(K), to]] = 1 / np.sqrt(K)
        of_class = (tokens - np.arange(tokens)) % K == m
        attention[m, in_u[K:]] = unit[of_class].sum(0) / np.sqrt(of_class.sum())
        to = ahead[to]
    rest = np.linalg.svd(np.ones((1, K)))[2][1:]
    return rest @ bands, rest @ attention


def unigram_criterion(subject: Subject, symmetry: Symmetry) -> UnigramPoint | None:
    """The Hessian that the unigram point of such a model has; None where theory does not give it.

    Args:
        subject: The models: `Subject.of(run)`.
        symmetry: The symmetries of source and model: `symmetry_of(run)`.
    """
    config, source, objective = subject.config, subject.source, subject.objective
    if not isinstance(source, FixedChain) or objective.kind != "cross_entropy" or objective.query:
        return None
    if config.normalization_type is not None or subject.run.trainable is not None:
        return None
    within = None
    if not symmetry.trivial:
        orbit = orbits(symmetry.generators, source.n_states)
        member = (orbit[:, None] == orbit).astype(float)
        values, vectors = np.linalg.eigh(np.eye(len(orbit)) - member / member.sum(1))
        within = vectors[:, values > 0.5].T
    return unigram_point(np.array(source.P), np.array(source.pi), tied=config.tied, within=within)


def embeddings(
    subject: Subject, coordinates: Coordinates, theta: Float[Tensor, "*lead coordinate"]
) -> Float[np.ndarray, "*lead row d_model"]:
    """The states' embeddings, and where it is not tied, the unembedding's vectors behind them, one a row.

    Args:
        subject: The models: `Subject.of(run)`.
        coordinates: Where weights stand in a flat vector: `surface.coordinates`.
        theta: Such a vector, or several: `surface.thetas`.
    """
    n, numbers = subject.source.n_states, coordinates.numbers
    places = [numbers["embed.W_E"][:n]]
    places += [] if subject.config.tied else [numbers["unembed.W_U"][:, :n].T]
    return theta.numpy()[..., np.concatenate(places)]


def at_unigram(
    subject: Subject, coordinates: Coordinates, theta: Float[Tensor, "*lead coordinate"]
) -> Bool[np.ndarray, "*lead"]:
    """Returns whether embeddings are small and the bias is near log pi: what other paths add is not asked.

    Args:
        subject: The models: `Subject.of(run)`.
        coordinates: Where weights stand in a flat vector: `surface.coordinates`.
        theta: Such a vector, or several: `surface.thetas`.
    """
    assert isinstance(subject.source, FixedChain)
    bias = theta[..., torch.from_numpy(coordinates.numbers["unembed.b_U"])]
    away = kl(np.array(subject.source.pi), bias.softmax(-1).numpy())
    square = (embeddings(subject, coordinates, theta) ** 2).sum(-1).max(-1)
    return np.asarray((away <= MAX_UNIGRAM_NATS) & (square <= MAX_UNIGRAM_SQUARE))


def _embedding_modes(
    config: DecoderConfig, coordinates: Coordinates, point: UnigramPoint, low: float
) -> Float[np.ndarray, "coordinate mode"]:
    """The eigenspace of the smallest eigenvalue: patterns over states, in every direction of the stream."""
    lowest = point.modes[np.abs(point.embedding - low) <= 1e-9 * max(1.0, abs(low))]
    if low == 0 or not len(lowest):
        return np.zeros((coordinates.size, 0))
    n, direction = lowest.shape[1] // (1 if config.tied else 2), np.arange(config.d_model)[:, None]
    modes = np.zeros((len(lowest), config.d_model, coordinates.size))
    modes[:, direction, coordinates.numbers["embed.W_E"][:n].T] = lowest[:, None, :n]
    if not config.tied:
        modes[:, direction, coordinates.numbers["unembed.W_U"][:, :n]] = lowest[:, None, n:]
    return modes.reshape(-1, coordinates.size).T
