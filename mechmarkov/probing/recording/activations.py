"""Recorded: the models' outputs, the mean scale of every norm, the mean output of every MLP."""

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import HookSums, PerSequence, Quantity, Read, Recording, Scope

Outputs = Float[np.ndarray, "member batch read d_vocab_out"]
NormScale = dict[str, Float[np.ndarray, " member"]]
WHERE_READ = ".where_read"  # behind a norm's name
MlpByParent = Float[np.ndarray, "member layer state d_model"]


class _Outputs(Recording[Outputs]):
    def __init__(self, scope: Scope) -> None:
        self.scores = PerSequence(len(scope.batch.tokens), dim=1)

    def update(self, _: Batch, scores: Float[Tensor, "model batch read d_vocab_out"], /) -> None:
        self.scores.add(scores)

    def compute(self) -> Outputs:
        return self.scores.values.cpu().numpy()


def _norm_scale(scope: Scope) -> HookSums[NormScale]:
    batch = scope.batch

    def mean_at(positions: slice | Tensor) -> Read:
        return lambda scale, *_: (
            scale[..., positions, :].double().flatten(2).mean(2).sum(1) / len(batch.tokens)
        )

    # A value circuit is read where its keys are; the final norm where the prediction is.
    everywhere, where_read = mean_at(slice(batch.first, None)), mean_at(batch.read)
    points = {
        name.removesuffix(".hook_scale"): (name, where_read if name.startswith("ln_final") else everywhere)
        for name in scope.model.hook_dict
        if name.endswith("hook_scale")
    }
    if not scope.model.config.norm_first:  # what passes a norm behind a sum may end in the logits, too
        points |= {name + WHERE_READ: (hook, where_read) for name, (hook, _) in points.items()}
    return HookSums(points, dict)


def _mlp_by_parent(scope: Scope) -> HookSums[MlpByParent]:
    model, batch, n_states = scope.model, scope.batch, scope.n_states

    def by_parent(out: Tensor, part: Batch, _: slice) -> Float[Tensor, "model state d_model"]:
        parent = torch.nn.functional.one_hot(part.parents, n_states).to(out.dtype)
        return einsum(out[..., batch.rows, :], parent, "m b read d, b read state -> m state d")

    def means(**sums: np.ndarray) -> MlpByParent:
        count = np.bincount(batch.parents.flatten().cpu().numpy(), minlength=n_states)[:, None]
        seen = np.where(count > 0, count, np.nan)
        empty = np.zeros((len(model), 0, n_states, model.config.d_model))
        return np.stack([total / seen for total in sums.values()], axis=1) if sums else empty

    layers = [i for i, block in enumerate(model.blocks) if block.mlp is not None]
    return HookSums({f"L{i}": (f"blocks.{i}.hook_mlp_out", by_parent) for i in layers}, means)


# The outputs at the positions that are read.
SCORES: Quantity[Outputs] = Quantity("scores", _Outputs)

# By norm ("blocks.0.ln1", …, "ln_final"), from the first state on; of the final norm at those that are read.
# Where norms stand behind the sums, each is there at those that are read, too: "blocks.0.ln1.where_read".
NORM_SCALE: Quantity[NormScale] = Quantity("norm_scale", _norm_scale)

# Given the parent state; NaN for a parent that is never seen; no layers where no layer has an MLP.
MLP_BY_PARENT: Quantity[MlpByParent] = Quantity("mlp_by_parent", _mlp_by_parent)
