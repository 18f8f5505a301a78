"""Recorded: the models' outputs, the mean scale of every norm, the mean output of every MLP."""

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import Arrays, HookSums, PerSequence, Quantity, Recorder, Sums

Scores = Float[np.ndarray, "member batch read d_vocab_out"]
NormScale = dict[str, Float[np.ndarray, " member"]]
MlpByParent = Float[np.ndarray, "member layer state d_model"]


class _Outputs(Sums):
    def __init__(self, n_sequences: int) -> None:
        self.scores = PerSequence(n_sequences, dim=1)

    def add(self, batch: Batch, scores: Float[Tensor, "model batch read d_vocab_out"]) -> None:
        del batch
        self.scores.add(scores)

    def finish(self) -> Arrays:
        return {"scores": self.scores.values.cpu().numpy()}


def _scores(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[Scores]:
    del stack, n_states
    return Recorder(lambda _: _Outputs(len(batch.tokens)), lambda scores: scores)


def _norm_scale(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[NormScale]:
    del n_states
    n = len(batch.tokens)

    def everywhere(scale: Tensor, part: Batch, sequences: slice) -> Float[Tensor, " model"]:
        del part, sequences
        return scale[..., batch.first :, :].double().flatten(2).mean(2).sum(1) / n

    def where_read(scale: Tensor, part: Batch, sequences: slice) -> Float[Tensor, " model"]:
        del part, sequences
        return scale[..., batch.read, :].double().flatten(2).mean(2).sum(1) / n

    # A value circuit is read where its keys are; the final norm where the prediction is.
    points = {
        name.removesuffix(".hook_scale"): (name, where_read if name.startswith("ln_final") else everywhere)
        for name in stack.hook_dict
        if name.endswith("hook_scale")
    }
    return Recorder(lambda _: HookSums(points), dict)


def _mlp_by_parent(stack: HookedDecoder, batch: Batch, n_states: int) -> Recorder[MlpByParent]:
    def by_parent(out: Tensor, part: Batch, sequences: slice) -> Float[Tensor, "model state d_model"]:
        del sequences
        parent = torch.nn.functional.one_hot(part.parents, n_states).to(out.dtype)
        return einsum(out[..., batch.read, :], parent, "m b read d, b read state -> m state d")

    count = np.bincount(batch.parents.flatten().cpu().numpy(), minlength=n_states)[:, None]
    seen = np.where(count > 0, count, np.nan)
    empty = np.zeros((len(stack), 0, n_states, stack.config.d_model))
    layers = [i for i, block in enumerate(stack.blocks) if block.mlp is not None]
    points = {f"L{i}": (f"blocks.{i}.hook_mlp_out", by_parent) for i in layers}

    def means(**sums: np.ndarray) -> MlpByParent:
        return np.stack([total / seen for total in sums.values()], axis=1) if sums else empty

    return Recorder(lambda _: HookSums(points), means)


# The outputs at the positions that are read.
SCORES: Quantity[Scores] = Quantity("scores", _scores)

# By norm ("blocks.0.ln1", …, "ln_final"), from the first state on; of the final norm at those that are read.
NORM_SCALE: Quantity[NormScale] = Quantity("norm_scale", _norm_scale)

# Given the parent state; NaN for a parent that is never seen; no layers where no layer has an MLP.
MLP_BY_PARENT: Quantity[MlpByParent] = Quantity("mlp_by_parent", _mlp_by_parent)
