"""Training the walk model: as a stack on sequences, or reduced by symmetry to K + N numbers."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.constructions.walk import (
    Form,
    WalkModel,
    WalkShape,
    position_table,
    small_u,
    walk_frozen_state,
    walk_trained_state,
)
from mechmarkov.objectives import mean_over
from mechmarkov.sources import Source
from mechmarkov.sources.sampling.whole_law import whole_law
from mechmarkov.theory.walk import reduced_walk
from mechmarkov.training.learner import Learner, LearnerJob, Measures
from mechmarkov.training.sections import Init

# Frozen tensors, trained ones by step, and metrics.
Trajectory = tuple[dict[str, Tensor], dict[int, dict[str, Tensor]], dict[str, Tensor]]
MEASURED = ("loss", "accuracy", "parent_attention", "attention_spread")


class WalkLearner(Learner):
    """A stack of walk models as the training loop needs it (`Learner`); exports the decoders that they are.

    Args:
        job: What is trained. A member starts as it does by itself: at zero, or with trained weights N(0,
            std²). (`u = W p_N / |p_N|` has that law where `W` has it.)
        shape: The sizes of the model.
        form: Whether attention has a matrix or a vector.
        dtype: The type of weights and of all that is computed.
    """

    def __init__(self, job: LearnerJob, shape: WalkShape, form: Form, dtype: torch.dtype) -> None:
        self.objective, self.shape = job.objective, shape
        self.model = WalkModel(shape, form, n_models=len(job.seeds), dtype=dtype).to(job.device)
        _draw(self.model, job.seeds, job.inits)
        self.parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        self.masks: dict[str, Tensor] = {}
        self.frozen = walk_frozen_state(self.shape, dtype)
        self.computed_by = "the reduced walk"
        self._last: tuple[Tensor, Tensor] | None = None  # tokens and their one-hot form

    def measure(
        self,
        tokens: Int[Tensor, "*stack batch position"],
        targets: Int[Tensor, "*stack batch read"],
        weights: Float[Tensor, "*stack batch read"] | None = None,
    ) -> Measures:
        if self._last is None or self._last[0] is not tokens:
            self._last = tokens, self.model.one_hot(tokens)
        scores, attention = self.model.run(self._last[1])
        labels = targets[..., 0].expand(scores.shape[:-1])

        def mean(values: Tensor) -> Float[Tensor, " stack"]:
            return mean_over(values.to(scores.dtype).unsqueeze(-1), weights)

        with torch.no_grad():
            seen = attention[..., :-1]
            spread = seen.amax(-1) - seen.amin(-1)
            measures = {
                "accuracy": mean(scores.argmax(-1) == labels),
                "parent_attention": mean(attention[..., -2]),
                "attention_spread": mean(spread),
            }
        return {"loss": mean(self.objective.loss(scores, labels))} | measures

    def export(self) -> dict[str, Tensor]:
        return walk_trained_state(self.model.V.detach(), small_u(self.model))


@torch.no_grad()
def _draw(model: WalkModel, seeds: Sequence[int], inits: Sequence[Init]) -> None:
    for i, (seed, init) in enumerate(zip(seeds, inits, strict=True)):
        if init.scheme == "zero":
            continue
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            draw = torch.randn(parameter[i].shape, generator=generator, dtype=torch.float32)
            parameter[i].copy_(draw.mul_(init.std))


def reduced_trajectory(
    shape: WalkShape, source: Source, lr: float, eps: float, checkpoints: Sequence[int]
) -> Trajectory:
    """Integrate the population gradient descent of the walk model on a circle, its symmetry built in.

    All walks start from state 0, as the others are their rotations. Nothing about it is random: it is the
    same for every seed. See Shi & Cao (arXiv 2511.23239) and `mechmarkov.theory.walk`.

    Args:
        shape: The sizes of the model.
        source: The circle.
        lr: The learning rate.
        eps: That of the raw log.
        checkpoints: Steps at which weights are kept, ascending; the last ends the descent.

    Returns:
        The frozen tensors, the trained ones at each checkpoint, and the metrics `[steps + 1]`; float64, and
        none with a stack axis.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> shape = WalkShape(n_states=4, n_ctx=5)
        >>> _, _, metrics = reduced_trajectory(shape, Circle(n_states=4, p=0.5), 0.1, 1e-3, [0, 10])
        >>> bool(metrics["loss"][-1] < metrics["loss"][0])
        True
    """
    walks, law = (x.numpy() for x in whole_law(source, shape.n_ctx))
    from_zero = walks[:, 0] == 0  # the others are their rotations
    ahead = reduced_walk.displacements(walks[from_zero], shape.n_states)
    weights = law[from_zero] / law[from_zero].sum()
    states = reduced_walk.descend(
        ahead,
        weights,
        n_states=shape.n_states,
        position_norm_sq=shape.norm**2,
        eta=lr,
        eps=eps,
        steps=checkpoints[-1],
    )
    metrics: dict[str, list[float]] = {name: [] for name in MEASURED}
    for state in states:
        attention = reduced_walk.forward(state, ahead).attention
        metrics["loss"].append(reduced_walk.loss(state, ahead, weights, eps))
        metrics["accuracy"].append(reduced_walk.accuracy(state, ahead, weights))
        metrics["parent_attention"].append(float(attention[-2]))
        metrics["attention_spread"].append(float(np.ptp(attention[:-1])))
    positions = position_table(shape)
    at = {step: _unreduced(states[step], shape, positions) for step in checkpoints}
    values = {name: torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}
    return walk_frozen_state(shape, torch.float64), at, values


def _unreduced(state: reduced_walk.ReducedState, shape: WalkShape, positions: Tensor) -> dict[str, Tensor]:
    """`V` circulant, `w_x` constant and `w_p = sum_i logit_i p_i / |p|^2`, as the decoder's tensors."""
    V = torch.from_numpy(reduced_walk.value_matrix(state.profile))
    logits = torch.from_numpy(state.position_logits)
    token = torch.full((shape.n_states,), state.token_logit / shape.norm, dtype=torch.float64)
    if shape.positions == "one_hot":  # equal logits, equal bits
        along = logits / math.pow(shape.norm, 2)
    else:
        along = logits @ positions / math.pow(shape.norm, 3)
    return walk_trained_state(V, torch.cat([token, along]))
