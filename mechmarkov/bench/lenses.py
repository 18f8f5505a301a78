"""Lenses: by how much the loss falls, if the stream is read as the output before and after a node writes.

Nodes write in the model's order, the heads of a layer one after the other.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method

Stream = Float[Tensor, "batch position d_model"]
Lens = Callable[[Stream], Float[Tensor, "batch position state"]]

RIDGE = 1e-6  # on a translator's squared weights, so that its optimum is one
ITERATIONS = 50  # of L-BFGS


def logit_lens(case: Case) -> dict[str, float]:
    """Every prefix of the stream, through the model's own final norm and unembedding."""
    return _falls(case, lambda name: lambda x: case.model.unembed(case.model.ln_final(x)))


def tuned_lens(case: Case) -> dict[str, float] | str:
    """Each prefix through an affine map of its own, fitted to the model's output on the corrupt sequences.

    Without a final norm, a translator and the unembedding after it are any affine map to the logits: that is
    what is fitted. What it tells is what can be read from a prefix, not what the model reads there.
    """
    if case.objective.kind != "cross_entropy" or case.model.config.normalization_type is not None:
        return "the output is not a softmax of an affine map of the stream, which a translator is fitted to"
    theirs = prefixes(case, case.corrupt)
    output = case.predicted(case.corrupt)

    def translator(name: str) -> Lens:
        x, widths = theirs[name][:, case.read], (theirs[name].shape[-1], output.shape[-1])
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

    return _falls(case, translator)


def prefixes(case: Case, tokens: Int[Tensor, "batch position"]) -> dict[str, Stream]:
    """The stream after each node, from TransformerLens's decomposition; "" is that before the first one."""
    with torch.no_grad():
        _, cache = case.model.run_with_cache(tokens)
        stack, labels = cache.get_full_resid_decomposition(expand_neurons=False, return_labels=True)
    names = [re.sub(r"^(\d+)_mlp_out$", r"L\1.mlp", label) for label in labels]
    written = dict(zip(names, stack, strict=True))
    stream = torch.stack([x for name, x in written.items() if name not in case.nodes]).sum(0)
    streams = {"": stream}
    for name in case.nodes:
        stream = stream + written[name]
        streams[name] = stream
    return streams


def _falls(case: Case, lens: Callable[[str], Lens]) -> dict[str, float]:
    """The loss of each prefix less that of the one before."""
    with torch.no_grad():
        losses = {name: case.loss(lens(name)(x)).mean() for name, x in prefixes(case, case.clean).items()}
    return {name: float(losses[before] - losses[name]) for before, name in pairwise(losses)}


logit = Method("logit-lens", "nodes", logit_lens, "nostalgebraist 2020; TransformerLens's decomposition")
tuned = Method("tuned-lens", "nodes", tuned_lens, "Belrose et al. 2023 (arXiv 2303.08112)")
