"""Devinterp's estimate of the learning coefficient; the library is an extra, `mechmarkov[devinterp]`."""

import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.sources import FixedChain

MISSING = "devinterp is not installed: pip install 'mechmarkov[devinterp]'"
# It has no default step; its chains and draws are its defaults.
SEQUENCES, CHAINS, DRAWS, RATE = 2048, 4, 200, 1e-3


class _Bare(nn.Module):
    """A model without its `cfg`, by which devinterp would take it for a HookedTransformer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch position state"]:
        return self.model(tokens)


def devinterp_coefficient(
    model: HookedDecoder, source: FixedChain, masks: Mapping[str, Tensor | None], *, n_beta: float
) -> float | str:
    """λ by stochastic-gradient Langevin chains on sequences of the source, or why there is none.

    The loss is the cross-entropy at every position under the exact law of the next state. Chains, draws and
    their batch are devinterp's defaults.

    Args:
        model: One model, not a stack; it is copied.
        source: What the sequences are drawn from, as long as the model reads.
        masks: The trained parameters by name, with the part of each that is trained; None for all of it.
        n_beta: Predictions times inverse temperature.
    """
    if find_spec("devinterp") is None:
        return MISSING
    llc, datasets = import_module("devinterp.slt.llc").llc, import_module("datasets")
    copied = HookedDecoder(model.config)
    copied.load_state_dict(model.state_dict())
    tokens = source.sample(SEQUENCES, model.config.n_ctx, generator=torch.Generator().manual_seed(0))
    P = torch.tensor(source.P).float()

    def losses(model: nn.Module, tokens: Tensor) -> Float[Tensor, "batch position-1"]:
        return -(P[tokens] * model(tokens).log_softmax(-1)).sum(-1)[:, :-1]  # devinterp has no last law

    data = datasets.Dataset.from_dict({"input_ids": tokens.numpy()}).with_format("torch")
    chosen = {f"model.{name}": mask for name, mask in masks.items()}
    options: dict[str, Any] = {"num_chains": CHAINS, "num_draws": DRAWS, "batch_size": 256, "device": "cpu"}
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains that diverge: their mean is refused below
        options |= {"lr": RATE, "n_beta": n_beta, "output_path": Path(folder) / "samples.zarr"}
        found = llc(_Bare(copied), data, {}, param_masks=chosen, loss_fn=losses, **options).load()
    size = sum(
        copied.get_parameter(name).numel() if mask is None else int(mask.sum())
        for name, mask in masks.items()
    )
    return possible(float(np.mean(found["llc_mean"])), size)


def possible(estimate: float, parameters: int) -> float | str:
    """The estimate, or one line where it is above the number of parameters: no coefficient is above half.

    Example:
        >>> possible(3.0, parameters=8), possible(9.0, parameters=8)
        (3.0, 'the chains diverged: more than a coefficient can be')
    """
    if abs(estimate) <= parameters:
        return estimate
    return "the chains diverged: more than a coefficient can be"
