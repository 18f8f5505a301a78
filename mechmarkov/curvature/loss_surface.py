"""The loss as a function of the trainable parameters, in float64: its value, gradient and curvature."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.special import xlogy

from mechmarkov.curvature.population import MAX_PATTERN, Population
from mechmarkov.curvature.trainable_vector import Coordinates
from mechmarkov.curvature.walk_parts import WalkParts, walk_parts
from mechmarkov.models.constructions.walk import attend, read
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.kernel import FLOOR

# A loss this near to the best possible leaves nothing to be stuck at.
SOLVED_NATS = 0.01


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """The fused attention kernels have no second derivative; the one spelled out in torch has."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


@dataclass(frozen=True, eq=False)
class LossSurface:
    """The mean loss over a population, in nats, of models that differ in their trainable parameters.

    It is the expected loss under the exact law of each next state, so that only the histories are a sample.

    Attributes:
        thetas: The trainable parameters of each model of a subject.
        population: The sequences.
        objective: The loss.
        coordinates: What the numbers are.
        frozen: The decoder's tensors, of one model.
        decoder: Runs them; None for a walk model, whose own form costs the query's attention alone.
        walk: The parts of a walk model.
    """

    thetas: Float[Tensor, "member coordinate"]
    population: Population
    objective: Objective
    coordinates: Coordinates
    frozen: dict[str, Tensor]
    decoder: HookedDecoder
    walk: WalkParts | None

    def group_losses(self, theta: Float[Tensor, "member coordinate"], group: int) -> Float[Tensor, " member"]:
        """Mean loss of each model over one group of sequences."""
        return self._mean_losses(theta, self.population.tokens[group], self.population.law[group])

    def losses(self, theta: Float[Tensor, "member coordinate"]) -> Float[Tensor, " member"]:
        """Mean loss of each model over the population."""
        tokens, law = (x.flatten(0, 1) for x in (self.population.tokens, self.population.law))
        parts = torch.split(theta, self._at_once(len(tokens)))
        return torch.cat([self._mean_losses(part, tokens, law) for part in parts])

    def _at_once(self, sequences: int) -> int:
        """How many models go through so many sequences together."""
        length = self.population.tokens.shape[-1]
        return max(1, MAX_PATTERN // (self.decoder.config.n_heads * length**2 * sequences))

    def _mean_losses(self, theta: Tensor, tokens: Tensor, law: Tensor) -> Float[Tensor, " member"]:
        return self.objective.expected_loss(self._any_scores(theta, tokens), law).mean((-2, -1))

    def predictions(self, member: int) -> Float[Tensor, "sequence read state"]:
        """What one of the models predicts on the population."""
        tokens = self.population.tokens.flatten(0, 1)
        return self.objective.predict(self._any_scores(self.thetas[member][None], tokens)[0])

    @torch.no_grad()
    def excess(self, member: int) -> float:
        """KL from the exact law of the next state to a model's prediction, mean over the population, nats."""
        law, predicted = self.population.law.flatten(0, 1), self.predictions(member)
        return float((xlogy(law, law) - xlogy(law, predicted.clamp_min(FLOOR))).sum(-1).mean())

    def _any_scores(self, theta: Tensor, tokens: Tensor) -> Float[Tensor, "member sequence read d_out"]:
        return self._scores(theta, tokens) if self.walk is None else self._walk_scores(theta, tokens)

    def _scores(self, theta: Tensor, tokens: Tensor) -> Float[Tensor, "member sequence read d_out"]:
        frozen = {name: value.expand(len(theta), *value.shape) for name, value in self.frozen.items()}
        tensors = frozen | self.coordinates.place(theta, self.frozen)
        with torch.device("meta"):
            stack = HookedDecoder(self.decoder.config, n_models=len(theta))
        return functional_call(stack, tensors, (tokens,))[..., self.population.read, :]

    def _walk_scores(self, theta: Tensor, tokens: Tensor) -> Float[Tensor, "member sequence 1 state"]:
        assert self.walk is not None
        numbers = self.coordinates.numbers
        u = theta[:, torch.from_numpy(numbers["blocks.0.attn.W_K"][0, :, 0])]
        K = len(self.walk.read_at)
        u = torch.cat([u[:, torch.from_numpy(self.walk.read_at)], u[:, K:]], dim=-1)
        places = numbers["blocks.0.attn.W_O"][0][self.walk.read_at][:, self.walk.written_at]
        V = theta[:, torch.from_numpy(places)].mT
        x = F.one_hot(tokens[:, :-1], K).to(theta.dtype).expand(len(theta), -1, -1, -1)
        attention = attend(x, self.walk.norm * u, torch.from_numpy(self.walk.positions))
        return read(x, V, attention).unsqueeze(-2)

    def gradients(self) -> Float[Tensor, "member group coordinate"]:
        """The gradient of each group's mean loss at each model; over the population it is their mean."""
        groups, each, _ = self.population.tokens.shape
        found = []
        for part in torch.split(self.thetas, self._at_once(each)):
            theta = part.clone().requires_grad_()
            rows = [
                torch.autograd.grad(self.group_losses(theta, group).sum(), theta)[0]
                for group in range(groups)
            ]
            found.append(torch.stack(rows, dim=1))
        return torch.cat(found)

    def hessian_at(self, member: int) -> "Hessian":
        """Second derivatives at one of the models."""
        return Hessian(self, member)


@dataclass(frozen=True, eq=False)
class Hessian:
    """Second derivatives of the loss at one model; the graph of its gradient is kept and used again."""

    surface: LossSurface
    member: int

    @property
    def size(self) -> int:
        """How many trainable parameters there are."""
        return self.surface.thetas.shape[-1]

    @cached_property
    def _graph(self) -> tuple[Tensor, Tensor]:
        theta = self.surface.thetas[self.member].clone().requires_grad_()
        with _twice_differentiable():
            loss = self.surface.losses(theta[None]).sum()
            (slope,) = torch.autograd.grad(loss, theta, create_graph=True)
        return theta, slope

    def times(self, vector: Float[Tensor, " coordinate"]) -> Float[Tensor, " coordinate"]:
        """The Hessian times a vector."""
        theta, slope = self._graph
        with _twice_differentiable():
            (product,) = torch.autograd.grad(slope, theta, vector, retain_graph=True)
        return product

    def dense(self) -> Float[Tensor, "coordinate coordinate"]:
        """The whole Hessian, made symmetric in its last bits."""
        hessian = torch.stack([self.times(unit) for unit in torch.eye(self.size, dtype=torch.float64)])
        return (hessian + hessian.mT) / 2


def loss_surface(subject: Subject, population: Population, coordinates: Coordinates) -> LossSurface:
    """The loss of a subject's models over a population."""
    state = {name: value.detach().double() for name, value in subject.decoder.state_dict().items()}
    return LossSurface(
        thetas=coordinates.flatten(state),
        population=population,
        objective=subject.objective,
        coordinates=coordinates,
        frozen={name: value[0] for name, value in state.items()},
        decoder=subject.decoder,
        walk=walk_parts(subject.run),
    )
