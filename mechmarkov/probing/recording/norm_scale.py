"""Recorded: the mean scale of every norm."""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import Arrays, Hook, Quantity, Recorder, Sums, Totals

NormScale = dict[str, Float[np.ndarray, " member"]]


class _ScaleSums(Sums):
    def __init__(self, model: HookedDecoder, batch: Batch) -> None:
        self.points = [name for name in model.hook_dict if name.endswith("hook_scale")]
        self.read, self.sequences = batch.read, len(batch.tokens)
        self.totals = Totals()

    def hooks(self, batch: Batch, sequences: slice) -> list[Hook]:
        del batch, sequences
        return [(point, lambda x, hook, at=point: self._add(at, x)) for point in self.points]

    def _add(self, point: str, scale: Float[Tensor, "model batch position 1"]) -> None:
        name = point.removesuffix(".hook_scale")
        # A value circuit is read where its keys are; the final norm where the prediction is.
        rows = scale[..., self.read, :] if name == "ln_final" else scale
        self.totals.add(name, rows.double().mean((2, 3)).sum(1))

    def finish(self) -> Arrays:
        return {name: total.numpy() / self.sequences for name, total in self.totals.items()}


def _begin(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[NormScale]:
    del stack, n_states
    return Recorder(lambda model: _ScaleSums(model, batch), dict)


# By norm ("blocks.0.ln1", …, "ln_final"), at all positions; of the final norm at those that are read.
NORM_SCALE: Quantity[NormScale] = Quantity("norm_scale", _begin)
