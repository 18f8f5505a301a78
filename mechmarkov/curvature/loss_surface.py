"""The loss as a function of the trainable parameters, in float64: its value, gradient and curvature."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechmarkov.curvature.population import MAX_PATTERN, Population, population_of
from mechmarkov.curvature.trainable_vector import Coordinates
from mechmarkov.curvature.walk_parts import WalkParts, walk_parts
from mechmarkov.models.constructions.walk import attend, read
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.objectives import Objective
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.kernel import kl
from mechmarkov.utils.text import counted

Activation = Callable[[int, Tensor], Tensor]

# A loss this near to the best possible leaves nothing to be stuck at.
SOLVED_NATS = 0.01

# Rows of a dense Hessian at once.
MAX_ROWS = 16

# From this many attention weights, a product with the Hessian is a difference of gradients, for which fused
# kernels keep nothing of that size. From one side it is off by 1e-8 to 2e-7 of itself at T = 1024. Along the
# sharpest directions of large weights that may be 1e-5, and Lanczos asks for 1e-4 of the largest eigenvalue.
# A larger step has a larger error, a smaller one more rounding.
MIN_DIFFERENCE_PATTERN = 1 << 20
ONE_SIDED, BOTH_SIDES = 1e-7, 1e-5

# The fused attention kernels have no second derivative; the one spelled out in torch has.
TWICE_DIFFERENTIABLE = SDPBackend.MATH


@dataclass(frozen=True, eq=False, repr=False)
class LossSurface:
    """The mean loss over a population, in nats, of models that differ in their trainable parameters.

    It is the expected loss under the exact law of each next state, so that only the histories are a sample.

    Attributes:
        thetas: The trainable parameters of each model of a subject.
        population: The sequences.
        objective: The loss.
        coordinates: What the numbers are.
        frozen: The decoder's tensors, of one model.
        decoder: Runs all models but a walk's, whose own form costs only the query's attention.
        walk: The parts of a walk model.
    """

    thetas: Float[Tensor, "member coordinate"]
    population: Population
    objective: Objective
    coordinates: Coordinates
    frozen: dict[str, Tensor]
    decoder: HookedDecoder
    walk: WalkParts | None

    def __repr__(self) -> str:
        """The models and the sequences."""
        models = counted(len(self.thetas), "model")
        return f"LossSurface({models} of {self.coordinates.size} numbers, {self.population.describe()})"

    def group_losses(self, theta: Float[Tensor, "member coordinate"], group: int) -> Float[Tensor, " member"]:
        """Mean loss of each model over one group of sequences."""
        return self._mean_losses(theta, self.population.tokens[group], self.population.law[group])

    def losses(self, theta: Float[Tensor, "member coordinate"], **options: Any) -> Float[Tensor, " member"]:
        """Mean loss of each model over the population; options as of `_scores`."""
        tokens, law = (x.flatten(0, 1) for x in (self.population.tokens, self.population.law))
        parts = torch.split(theta, self.at_once(len(tokens)))
        return torch.cat([self._mean_losses(part, tokens, law, **options) for part in parts])

    def at_once(self, sequences: int) -> int:
        """Returns how many models go through that many sequences together, in bounded memory."""
        return max(1, MAX_PATTERN // (self.pattern * sequences))

    @property
    def pattern(self) -> int:
        """Attention weights of one model on one sequence: of a walk, only those of the query."""
        length = self.population.tokens.shape[-1]
        return length if self.walk is not None else self.decoder.config.n_heads * length**2

    def _mean_losses(
        self, theta: Tensor, tokens: Tensor, law: Tensor, **options: Any
    ) -> Float[Tensor, " member"]:
        return self.objective.expected_loss(self._scores(theta, tokens, **options), law).mean((-2, -1))

    def predictions(self, member: int) -> Float[Tensor, "sequence read state"]:
        """The predictions (probability) of one of the models on the population."""
        tokens = self.population.tokens.flatten(0, 1)
        return self.objective.predict(self._scores(self.thetas[member][None], tokens)[0])

    @torch.no_grad()
    def kl_from(self, law: Float[np.ndarray, "..."], member: int) -> float:
        """KL(law ‖ prediction) of one of the models, mean over the population, nats.

        Args:
            law: `[state]`, such as the stationary law, or `[sequence, read, state]`.
            member: Which model, an index into `thetas`.
        """
        return float(kl(law, self.predictions(member).numpy()).mean())

    def excess(self, member: int) -> float:
        """`kl_from` the exact law of the next state: what a model's predictions lack, nats."""
        return self.kl_from(self.population.law.flatten(0, 1).numpy(), member)

    def _scores(
        self, theta: Tensor, tokens: Tensor, *, activation: Activation | None = None
    ) -> Float[Tensor, "member sequence read d_out"]:
        """Scores of models; `activation` stands in for the MLPs' own function, and is told the layer."""
        if self.walk is not None:
            return self._walk_scores(theta, tokens, self.walk)
        frozen = {name: value.expand(len(theta), *value.shape) for name, value in self.frozen.items()}
        tensors = frozen | self.coordinates.place(theta, self.frozen)
        stack = self._without_weights(len(theta))
        blocks: list[Any] = list(stack.blocks)
        for layer, block in enumerate(blocks):
            if block.mlp is not None:
                own = ACTIVATIONS[str(stack.config.act_fn)]
                block.mlp.act_fn = own if activation is None else partial(activation, layer)
        return functional_call(stack, tensors, (tokens,), {"read": self.population.read})

    @cached_property
    def _without_weights(self) -> Callable[[int], HookedDecoder]:
        """Stacks that weights are put into for one pass: building one takes as long as a small pass."""

        @cache
        def empty(n_models: int) -> HookedDecoder:
            with torch.device("meta"):
                return HookedDecoder(self.decoder.config, n_models=n_models)

        return empty

    def _walk_scores(
        self, theta: Tensor, tokens: Tensor, walk: WalkParts
    ) -> Float[Tensor, "member sequence 1 state"]:
        numbers = self.coordinates.numbers
        u = theta[:, torch.from_numpy(walk.places_of_u(numbers))]
        V = theta[:, torch.from_numpy(walk.places_of_V(numbers))].mT
        # The same for all models: never copied for each.
        x = F.one_hot(tokens[:, :-1], len(walk.read_at)).to(theta.dtype)
        attention = attend(x, walk.norm * u, torch.from_numpy(walk.positions))
        return read(x, V, attention).unsqueeze(-2)

    def gradients(self) -> Float[Tensor, "member group coordinate"]:
        """The gradient of each group's mean loss at each model; over the population it is their mean."""
        groups, each, _ = self.population.tokens.shape
        found = []
        for part in torch.split(self.thetas, self.at_once(each)):
            theta = part.clone().requires_grad_()
            rows = [
                torch.autograd.grad(self.group_losses(theta, group).sum(), theta)[0]
                for group in range(groups)
            ]
            found.append(torch.stack(rows, dim=1))
        return torch.cat(found)

    def hessian_at(self, member: int) -> "Hessian":
        """The Hessian of the loss at one of the models: `times` a vector, or `dense`."""
        return Hessian(self, member)


@dataclass(frozen=True, eq=False)
class Hessian:
    """Second derivatives of the loss at one model.

    Where attention is small the graph of the gradient is kept and used again. Where its second derivatives
    would keep copies of position² elements, a product is a difference of gradients by fused kernels. With one
    vector it is a difference from the model's own, which is enough for Lanczos. The whole Hessian is made of
    differences from both sides. ReLUs then keep the side that they are on: all are the same derivative.
    """

    surface: LossSurface
    member: int

    @property
    def size(self) -> int:
        """Returns how many trainable parameters there are."""
        return self.surface.thetas.shape[-1]

    @property
    def _sequences(self) -> int:
        return self.surface.population.tokens.shape[:2].numel()

    @property
    def is_difference(self) -> bool:
        """Returns whether products are differences of gradients; not of losses with a kink in the scores."""
        smooth = self.surface.objective.kind in ("cross_entropy", "squared")
        large = self.surface.pattern * self._sequences >= MIN_DIFFERENCE_PATTERN
        return smooth and large and self.surface.walk is None

    @cached_property
    def _graph(self) -> tuple[Tensor, Tensor]:
        theta = self.surface.thetas[self.member].clone().requires_grad_()
        with sdpa_kernel(TWICE_DIFFERENTIABLE):
            loss = self.surface.losses(theta[None]).sum()
            (slope,) = torch.autograd.grad(loss, theta, create_graph=True)
        return theta, slope

    @cached_property
    def _linear(self) -> Activation | None:
        """ReLU as the linear function that it is near this model; None without one."""
        config = self.surface.decoder.config
        if config.attn_only or config.act_fn != "relu":
            return None
        sides: dict[int, Tensor] = {}

        def note(layer: int, x: Tensor) -> Tensor:
            sides[layer] = x > 0
            return F.relu(x)

        with torch.no_grad():
            self.surface.losses(self.surface.thetas[self.member][None], activation=note)
        return lambda layer, x: x * sides[layer]

    def times(self, vector: Float[Tensor, " coordinate"]) -> Float[Tensor, " coordinate"]:
        """The Hessian times a vector: `H v`, in nats / weight² times the vector's unit."""
        if not self.is_difference:
            return self._products(vector[None])[0]
        step = ONE_SIDED / max(float(vector.norm()), torch.finfo(vector.dtype).tiny)
        return (self._slope(step * vector) - self._own_slope) / step

    @cached_property
    def _own_slope(self) -> Float[Tensor, " coordinate"]:
        return self._slope(torch.zeros(self.size, dtype=torch.float64))

    def _slope(self, move: Float[Tensor, " coordinate"]) -> Float[Tensor, " coordinate"]:
        """The gradient near the model."""
        theta = (self.surface.thetas[self.member] + move)[None].requires_grad_()
        loss = self.surface.losses(theta, activation=self._linear).sum()
        return torch.autograd.grad(loss, theta)[0][0]

    def _products(self, rows: Float[Tensor, "row coordinate"]) -> Float[Tensor, "row coordinate"]:
        theta, slope = self._graph
        with sdpa_kernel(TWICE_DIFFERENTIABLE):
            (found,) = torch.autograd.grad(slope, theta, rows, retain_graph=True, is_grads_batched=True)
        return found

    def dense(self) -> Float[Tensor, "coordinate coordinate"]:
        """The whole Hessian (nats / weight²), made symmetric in its last bits."""
        units = torch.eye(self.size, dtype=torch.float64)
        if self.is_difference:
            rows = [self._slope(BOTH_SIDES * unit) - self._slope(-BOTH_SIDES * unit) for unit in units]
            hessian = torch.stack(rows) / (2 * BOTH_SIDES)
        else:
            at_once = min(MAX_ROWS, self.surface.at_once(self._sequences))
            hessian = torch.cat([self._products(some) for some in torch.split(units, at_once)])
        return (hessian + hessian.mT) / 2


def loss_surface(subject: Subject, population: Population | None = None) -> LossSurface:
    """The loss of a subject's models over a population, by default `population_of(subject)`.

    Example:
        >>> import mechmarkov as mm
        >>> surface = loss_surface(mm.Subject.of(mm.example("trap"), sequences=8))
        >>> surface.thetas.shape, surface.gradients().shape, round(surface.excess(0), 3)
        (torch.Size([1, 139]), torch.Size([1, 6, 139]), 1.792)
    """
    coordinates = Coordinates.of(subject.run)
    state = {name: value.detach().double() for name, value in subject.decoder.state_dict().items()}
    return LossSurface(
        thetas=coordinates.flatten(state),
        population=population or population_of(subject),
        objective=subject.objective,
        coordinates=coordinates,
        frozen={name: value[0] for name, value in state.items()},
        decoder=subject.decoder,
        walk=walk_parts(subject.run),
    )
