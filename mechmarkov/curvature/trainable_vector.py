"""The trainable parameters of a run as one vector, and which directions a symmetry leaves unchanged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import EllipsisType

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.curvature.walk_parts import WalkParts, walk_parts
from mechmarkov.models.decoder import parameter_shapes
from mechmarkov.runs.run import Run
from mechmarkov.sources import FixedChain
from mechmarkov.sources.sampling.symmetries import order
from mechmarkov.sources.sampling.whole_law import is_permutation
from mechmarkov.theory.symmetry import Permutation, orbits

Span = tuple[tuple[int, int], ...]

# Weights are nearly in the symmetric subspace if what is outside is this small a share of them.
MAX_SHARE_OUTSIDE = 0.1

# Which axis of a tensor runs over tokens, counted from the last.
TOKEN_AXIS = {"embed.W_E": -2, "unembed.W_U": -1, "unembed.b_U": -1}


@dataclass(frozen=True)
class Coordinates:
    """The places of a decoder's trainable parameters; a tied tensor is there once.

    Attributes:
        spans: Name to `(start, stop)` per axis of an unstacked tensor.
        shapes: Name to the shape of the whole tensor.
    """

    spans: dict[str, Span]
    shapes: dict[str, tuple[int, ...]]

    @staticmethod
    def of(run: Run) -> "Coordinates":
        """The coordinates of a run, in the order of the decoder's parameters.

        Example:
            >>> import mechmarkov as mm
            >>> coordinates = Coordinates.of(mm.example("trap"))
            >>> coordinates.size, coordinates.part("blocks.0.attn.W_O")
            (139, (1, 6, 6))
        """
        parameters = parameter_shapes(run.config)
        trainable: Mapping[str, Sequence[Sequence[int]] | None] = (
            dict.fromkeys(parameters) if run.trainable is None else run.trainable
        )
        shapes = {name: shape for name, shape in parameters.items() if name in trainable}
        spans = {}
        for name, shape in shapes.items():
            given = trainable[name] or [(0, size) for size in shape]
            spans[name] = tuple((int(start), int(stop)) for start, stop in given)
        return Coordinates(spans, shapes)

    def part(self, name: str) -> tuple[int, ...]:
        """The shape of what is trained of a tensor."""
        return tuple(stop - start for start, stop in self.spans[name])

    @property
    def size(self) -> int:
        """Returns how many numbers are trained."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(self.part(name)) for name in self.spans]

    @cached_property
    def numbers(self) -> dict[str, Int[np.ndarray, "..."]]:
        """Name to the place in the vector of each trained number of that tensor."""
        places = np.split(np.arange(self.size), np.cumsum(self._sizes)[:-1])
        return {name: at.reshape(self.part(name)) for name, at in zip(self.spans, places, strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Float[Tensor, "*stack coordinate"]:
        """The vector of the trained numbers in whole tensors `[*stack, ...]` by name, a state dict."""
        parts = [tensors[name][_at(span)].flatten(-len(span)) for name, span in self.spans.items()]
        return torch.cat(parts, dim=-1)

    def place(
        self, vector: Float[Tensor, "*stack coordinate"], frozen: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Whole tensors with the vector's numbers in their places and all others as in `frozen`."""
        placed = {}
        pieces = torch.split(vector, self._sizes, dim=-1)
        for (name, span), flat in zip(self.spans.items(), pieces, strict=True):
            piece = flat.reshape(*vector.shape[:-1], *self.part(name))
            if self.part(name) == self.shapes[name]:
                placed[name] = piece
                continue
            room = [(a, whole - b) for (a, b), whole in zip(span, self.shapes[name], strict=True)]
            base = frozen[name].clone()
            base[_at(span)] = 0
            placed[name] = base + F.pad(piece, [end for pair in reversed(room) for end in pair])
        return placed


def _at(span: Span) -> tuple[EllipsisType | slice, ...]:
    return (..., *(slice(*pair) for pair in span))


@dataclass(frozen=True, eq=False)
class Symmetry:
    """The known symmetries of a run's population, and how they act on what is trained.

    Relabelling states by an automorphism of the chain changes neither the law of the sequences nor, with the
    model relabelled too, the loss. For a walk model on a cycle of K states that is walked deterministically,
    with K dividing N - 1, there is a stronger one: shift all tokens along the cycle and all positions with
    them, and each sequence is again itself, its label unchanged. That holds of every sample, not of the
    population only, and it is what theorem 4.1 of Shi & Cao rests on. Gradient descent that starts in the
    subspace that a symmetry leaves unchanged stays there: for shifts, V with constant rows and all tokens
    attended to equally. Where there are shifts, the subspace is theirs.

    Attributes:
        generators: The generators of the chain's automorphisms.
        order: How many automorphisms there are, the identity among them.
        shifts: Whether sequences can be shifted along the cycle.
        acts: Whether relabelling acts on the trained numbers (not where embeddings are frozen in some way).
        walk: Whether it is the walk model that they act on.
        orbit: The orbit of each coordinate.
        positions: For a walk model with shifts, orthonormal rows: each token position's direction in `u`.
        position_from: The first coordinate of `u` behind the token block.
    """

    generators: list[Permutation]
    order: int
    shifts: bool
    acts: bool
    walk: bool
    orbit: Int[np.ndarray, " coordinate"]
    positions: Float[Tensor, "position d_pos"] | None = None
    position_from: int = 0

    @property
    def trivial(self) -> bool:
        """Returns whether nothing is known to be left unchanged, so that there is nothing to project out."""
        return not self.acts or (self.order == 1 and not self.shifts)

    def at(self, theta: Float[Tensor, " coordinate"]) -> "Symmetry":
        """These symmetries if they leave weights (nearly) unchanged; otherwise none.

        The Hessian keeps the inside and the outside of the symmetric subspace apart only in that subspace.
        A walk model is always judged so: its weights grow without end inside.
        """
        apart = float(self.outside(theta).norm())
        if self.trivial or self.walk or apart <= MAX_SHARE_OUTSIDE * float(theta.norm()):
            return self
        return replace(self, acts=False)

    def inside(self, vectors: Float[Tensor, "*lead coordinate"]) -> Float[Tensor, "*lead coordinate"]:
        """The part of vectors that the symmetries leave unchanged; all of it where there are none."""
        if self.trivial:
            return vectors.clone()
        orbit = torch.from_numpy(self.orbit).to(vectors.device)
        count = torch.bincount(orbit).to(vectors.dtype)
        sums = vectors.new_zeros(*vectors.shape[:-1], len(count)).index_add(-1, orbit, vectors)
        kept = (sums / count)[..., orbit]
        if self.positions is not None:
            block = slice(self.position_from, self.position_from + self.positions.shape[1])
            along = kept[..., block] @ self.positions.mT
            uneven = along - along.mean(-1, keepdim=True)
            kept[..., block] -= uneven @ self.positions
        return kept

    def outside(self, vectors: Float[Tensor, "*lead coordinate"]) -> Float[Tensor, "*lead coordinate"]:
        """Returns what is left of vectors without `inside`; all of it where there are no symmetries."""
        return vectors.clone() if self.trivial else vectors - self.inside(vectors)


def symmetry_of(run: Run) -> Symmetry:
    """The symmetries of a run whose source is one chain.

    Example:
        >>> import mechmarkov as mm
        >>> symmetry_of(mm.example("trap")).shifts
        True
    """
    source, coordinates = run.source, Coordinates.of(run)
    numbers = coordinates.numbers
    assert isinstance(source, FixedChain)
    generators = source.automorphism_generators()
    n_automorphisms = order(source.P)
    parts = walk_parts(run)
    fits = parts is not None and (run.config.n_ctx - 1) % source.n_states == 0
    shift = _cycle(source) if fits else None
    images: list[Int[np.ndarray, " coordinate"]] = []
    positions, position_from = None, 0
    if parts is not None and shift is not None:
        images = [_walk_image(coordinates, parts, shift, tuple(range(source.n_states)))]
        lengths = np.linalg.norm(parts.positions[:-1], axis=1, keepdims=True)
        positions = torch.from_numpy(parts.positions[:-1] / lengths)
        position_from = int(numbers["blocks.0.attn.W_K"][0, source.n_states, 0])
    elif parts is not None:
        images = [_walk_image(coordinates, parts, g, g) for g in generators]
    elif run.trainable is None:
        for g in generators:
            image = np.arange(coordinates.size)
            for name, axis in TOKEN_AXIS.items():
                if name in numbers:
                    places = np.moveaxis(numbers[name], axis, 0)
                    image[places[: len(g)]] = places[list(g)]
            images.append(image)
    return Symmetry(
        generators,
        n_automorphisms,
        shift is not None,
        parts is not None or run.trainable is None,
        parts is not None,
        orbits(images, coordinates.size),
        positions,
        position_from,
    )


def _cycle(source: FixedChain) -> Permutation | None:
    """The successor of each state, where the chain is one deterministic cycle through all of them."""
    one_cycle = is_permutation(source) and source.period == source.n_states
    return tuple(map(int, source.P.argmax(1))) if one_cycle else None


def _walk_image(
    coordinates: Coordinates, parts: WalkParts, tokens: Permutation, labels: Permutation
) -> Int[np.ndarray, " coordinate"]:
    """Returns where each coordinate of `V` and `u` goes if what is read and what is scored are relabelled."""
    image = np.arange(coordinates.size)
    token_logits = parts.places_of_u(coordinates.numbers)[: len(tokens)]
    image[token_logits] = token_logits[list(tokens)]
    V = parts.places_of_V(coordinates.numbers)
    image[V] = V[np.ix_(tokens, labels)]
    return image
