"""Lenses: what the model would predict if it stopped at a layer, read from the stream there.

A lens claims by how much the metric is worse there than at the output.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import EVERY, Method
from mechmarkov.interventions.belief import stream_hook
from mechmarkov.models.decoder import activations

Stream = Float[Tensor, "batch position d_model"]
Lens = Callable[[Stream], Float[Tensor, "batch position state"]]

RIDGE = 1e-6  # on a translator's squared weights, so that its optimum is one
ITERATIONS = 50  # of L-BFGS


def logit_lens(case: Case) -> dict[str, float]:
    """The stream at each layer, through the model's own final norm and unembedding."""
    return _rises(case, lambda layer: lambda x: case.model.unembed(case.model.ln_final(x)))


def tuned_lens(case: Case) -> dict[str, float] | str:
    """Each layer through an affine map of its own, fitted to the model's output on the sequences to tune on.

    Without a final norm, a translator and the unembedding after it are any affine map to the logits: that is
    what is fitted. What it tells is what can be read from a layer, not what the model reads there.
    """
    if case.objective.kind != "cross_entropy" or case.model.config.final_normalization_type:
        return "the output is not a softmax of an affine map of the stream, which a translator is fitted to"
    theirs, output = streams_at(case, case.others.clean), case.others.output

    def translator(layer: str) -> Lens:
        x, widths = theirs[layer][:, case.read], (theirs[layer].shape[-1], output.shape[-1])
        weight = torch.zeros(widths, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(widths[1], dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> float:
            optimiser.zero_grad()
            with torch.enable_grad():
                log = (x @ weight + bias).log_softmax(-1)
                value = -(output * log).sum(-1).mean() + RIDGE * weight.square().sum()
                torch.autograd.backward(value)
            return float(value.detach())

        step: Any = optimiser.step
        step(loss)
        return lambda stream: stream @ weight.detach() + bias.detach()

    return _rises(case, translator)


def streams_at(case: Case, tokens: Int[Tensor, "batch position"]) -> dict[str, Stream]:
    """The stream at each layer of the case."""
    hooks = {layer: stream_hook(number - 1) for number, layer in enumerate(case.layers)}
    seen = activations(case.model, tokens, hooks.values())
    return {layer: seen[hook] for layer, hook in hooks.items()}


def _rises(case: Case, lens: Callable[[str], Lens]) -> dict[str, float]:
    """The metric at each layer less that of the output."""
    with torch.no_grad():
        output = case.loss(case.model(case.clean)).mean()
        rises = {
            layer: case.loss(lens(layer)(x)).mean() - output
            for layer, x in streams_at(case, case.clean).items()
        }
    return {layer: float(rise) for layer, rise in rises.items()}


logit = Method("logit-lens", "layers", logit_lens, "nostalgebraist 2020", EVERY, passes=2)
tuned = Method(
    "tuned-lens",
    "layers",
    tuned_lens,
    "Belrose et al. 2023 (arXiv 2303.08112)",
    EVERY,
    tunes="a translator for each layer",
    passes=3,
)
