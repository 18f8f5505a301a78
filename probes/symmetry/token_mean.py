"""What can be read off only the token mean, on sequences that nothing was fitted to."""

import numpy as np
import torch
from jaxtyping import Float, Int

from mechmarkov.curvature.population import Population
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import wilson

TIE_SHARE = 1e-9


def token_mean_accuracy(
    subject: Subject, population: Population, first_step: Float[np.ndarray, "state_to state_from"]
) -> dict[str, tuple[float, float, float]]:
    """Returns how often the last label is right from the mean of the tokens before it.

    Args:
        subject: Its evaluation batch is what is predicted.
        population: Predicted instead where it is exact.
        first_step: The exact first gradient of V: row y over its sum is `E[token mean | label = y]`.

    Returns:
        `token_mean_accuracy`: by the nearest of these class means; `one_step_accuracy`: by the largest score
        of `V m` after one step from zero. m tied states count as 1/m each. Both with the ends of their 95 %
        intervals (Wilson; a point where it is exact).
    """
    if population.exact:
        history, label = population.history.flatten(0, 1), population.targets.flatten(0, 1)[:, -1]
    else:
        history, label = subject.batch.history, subject.batch.following[:, -1]
    mean = torch.nn.functional.one_hot(history, len(first_step)).double().mean(1).numpy()
    weight = first_step.sum(1, keepdims=True)
    centres = first_step / np.where(weight > 0, weight, 1)
    distance = ((mean[:, None, :] - centres) ** 2).sum(-1)
    distance[:, weight[:, 0] == 0] = np.inf
    scores_of = {"one_step_accuracy": mean @ first_step.T, "token_mean_accuracy": -distance}
    return {name: _accuracy(scores, label.numpy(), population.exact) for name, scores in scores_of.items()}


def _accuracy(
    scores: Float[np.ndarray, "sequence state"], label: Int[np.ndarray, " sequence"], exact: bool
) -> tuple[float, float, float]:
    best = scores.max(1, keepdims=True)
    tied = scores >= best - TIE_SHARE * np.maximum(np.abs(best), 1e-3)
    right = float((tied[np.arange(len(label)), label] / tied.sum(1)).mean())
    low, high = (right, right) if exact else wilson(right, float(len(label)))
    return right, low, high
