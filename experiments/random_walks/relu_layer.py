"""The walk model with one more layer, `A relu(V X S + b) + c` (figure 10): no decoder of ours is it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import mechmarkov as mm
from mechmarkov.models.constructions.walk import WalkModel, WalkShape


class ReluLayer(WalkModel):
    """A stack of walk models whose K scores are the hidden units of one more layer (the paper's m = K = 19).

    Args:
        shape: The sizes; hidden units are as many as states.
        seeds: One a member: every weight and bias starts at N(0, `std`²).
        std: Of the start.
        biases: Whether the two maps have them.
    """

    def __init__(self, shape: WalkShape, seeds: range, *, std: float, biases: bool) -> None:
        super().__init__(shape, n_models=len(seeds))
        K = shape.n_states
        self.A = nn.Parameter(torch.zeros(len(seeds), K, K))
        if biases:
            self.b = nn.Parameter(torch.zeros(len(seeds), 1, K))
            self.c = nn.Parameter(torch.zeros(len(seeds), 1, K))
        self.biases = biases
        with torch.no_grad():
            for i, seed in enumerate(seeds):
                generator = torch.Generator().manual_seed(seed)
                for parameter in self.parameters():
                    parameter[i].copy_(torch.randn(parameter[i].shape, generator=generator) * std)

    def scores(self, x: Float[Tensor, "stack batch real n_states"]) -> Float[Tensor, "stack batch n_states"]:
        """Scores of the answer, from one-hot words."""
        hidden = self.run(x)[0]
        hidden = (hidden + self.b if self.biases else hidden).relu()
        scores = hidden @ self.A.mT
        return scores + self.c if self.biases else scores


@dataclass(frozen=True)
class Trained:
    """Accuracy on the training set `[step, member]`, and at the end how far the answers' rows of A agree."""

    accuracy: Float[Tensor, "step member"]
    agreement: Float[Tensor, " member"]


def train(
    source: mm.sources.FruitQuestions,
    objective: mm.Objective,
    *,
    seeds: range,
    eta: float,
    steps: int,
    biases: bool,
    sequences: int = 1024,
    unit_columns: bool = True,
) -> Trained:
    """Full-batch gradient descent on a mean loss, from a start of sd 0.01.

    `agreement` is the cosine of the two answers' rows of A, 1 where the model cannot tell them apart.
    """
    length = source.length
    drawn = torch.stack(
        [source.sample(sequences, length, generator=torch.Generator().manual_seed(10_000 + s)) for s in seeds]
    )
    labels: Int[Tensor, "stack batch"] = drawn[..., -1]
    shape = WalkShape(source.n_states, length, unit_columns=unit_columns)
    model = ReluLayer(shape, seeds, std=0.01, biases=biases)
    x, accuracy = model.one_hot(drawn), []
    parameters = list(model.parameters())
    for step in range(steps + 1):
        scores = model.scores(x)
        accuracy.append((scores.argmax(-1) == labels).float().mean(-1))
        if step == steps:
            break
        loss = objective.loss(scores, labels).mean(-1).sum()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= eta * gradient
    rows = model.A.detach()[:, :2]  # apple and orange are the first two words
    return Trained(torch.stack(accuracy), torch.cosine_similarity(rows[:, 0], rows[:, 1], dim=-1))
