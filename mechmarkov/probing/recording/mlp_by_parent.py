"""Recorded: the mean output of every MLP, given the parent state."""

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import Arrays, Hook, Quantity, Recorder, Sums, Totals

MlpByParent = Float[np.ndarray, "member layer state d_model"]


class _MlpSums(Sums):
    def __init__(self, model: HookedDecoder, batch: Batch, n_states: int) -> None:
        self.model, self.n_states, self.read = model, n_states, batch.read
        count = torch.bincount(batch.parents.flatten(), minlength=n_states)[:, None]
        self.count = torch.where(count > 0, count, torch.nan)
        self.totals = Totals()

    def hooks(self, batch: Batch, sequences: slice) -> list[Hook]:
        del sequences
        points = [
            f"blocks.{i}.hook_mlp_out" for i, block in enumerate(self.model.blocks) if block.mlp is not None
        ]
        return [(point, lambda x, hook, at=point: self._add(at, x, batch.parents)) for point in points]

    def _add(self, point: str, out: Float[Tensor, "model batch position d_model"], parents: Tensor) -> None:
        parent = torch.nn.functional.one_hot(parents, self.n_states).to(out.dtype)
        self.totals.add(
            point, einsum(out[..., self.read, :], parent, "m b read d, b read state -> m state d")
        )

    def finish(self) -> Arrays:
        empty = torch.zeros(len(self.model), 0, self.n_states, self.model.config.d_model, dtype=torch.float64)
        means = [total / self.count for total in self.totals.values()]
        return {"mean": (torch.stack(means, dim=1) if means else empty).numpy()}


def _begin(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[MlpByParent]:
    del stack
    return Recorder(lambda model: _MlpSums(model, batch, n_states), lambda mean: mean)


# NaN for a parent that is never seen; no layers where no layer has an MLP.
MLP_BY_PARENT: Quantity[MlpByParent] = Quantity("mlp_by_parent", _begin)
