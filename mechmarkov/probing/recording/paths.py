"""What every path adds to the logits, prediction by prediction, with the residual stream it really sees.

The logits are a sum over paths: the embedding straight to the unembedding (`direct`), each head and each
MLP, and what is left (positions and biases). The scale of each norm that what a path writes passes is taken
as it is at each prediction, so that the sum is exact: that of the final norm, and where norms stand behind
the sums (`norm_first=False`) those of all that come after the part.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.components import head_name, layer_components, mlp_name, norms_between
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording.quantity import Hook, PerSequence, Quantity, Recording, Scope, Totals

# Logits that are kept of all models, paths and predictions together: 32 MB in float32.
KEPT_ELEMENTS = 1 << 23


@dataclass(frozen=True, eq=False)
class PathOutputs:
    """The addition of each path to the logits, in score units.

    Attributes:
        names: The paths: "direct" (where a state is at the position that is read), "L0H0", "L0.mlp", ….
        kept: Which of the positions that are read are kept in `logits`, evenly spaced.
        logits: What each path adds at each prediction that is kept.
        mean: Its mean over all predictions.
        table: Its mean given the parent state; NaN for a parent never seen.
        fixed_names: What no state of a sequence is on: "direct" behind a query token, "pos_embed" where
            positions are added to the residual stream.
        fixed: The mean of what these add.
    """

    names: tuple[str, ...]
    kept: tuple[int, ...]
    logits: Float[np.ndarray, "member path batch kept d_vocab_out"]
    mean: Float[np.ndarray, "member path d_vocab_out"]
    table: Float[np.ndarray, "member path state d_vocab_out"]
    fixed_names: tuple[str, ...]
    fixed: Float[np.ndarray, "member fixed d_vocab_out"]


class _PathSums(Recording[PathOutputs]):
    """The sums of what some models add along every path."""

    def __init__(self, scope: Scope) -> None:
        batch, config = scope.batch, scope.model.config
        self.decoder, self.read, self.n_states = scope.model, batch.rows, scope.n_states
        direct, positions = batch.parent_lag == 0, config.positional_embedding_type == "standard"
        self.names = (*["direct"] * direct, *layer_components(config))
        # They add to the logits without a state: what is direct behind a query token, and positions.
        self.fixed = (*["direct"] * (not direct), *["pos_embed"] * positions)
        n_read = len(batch.read)
        each = scope.n_models * len(self.names) * len(batch.tokens) * config.d_vocab_out
        n_kept = max(1, min(n_read, KEPT_ELEMENTS // each))
        self.kept = ((torch.arange(n_kept, device=batch.read.device) + 0.5) * n_read / n_kept).long()
        self.norms = {name: norms_between(config, name) for name in (*self.names, *self.fixed)}
        folds = {passed: scope.model.folded_unembedding(name) for name, passed in self.norms.items()}
        self.fold = {name: folds[passed] for name, passed in self.norms.items()}
        blocks: list[Any] = list(scope.model.blocks)
        self.out = [
            einsum(
                block.attn.W_O.detach(),
                self.fold[head_name(layer, 0)],
                "m head d_head d, m d s -> m head d_head s",
            )
            for layer, block in enumerate(blocks)
        ]
        self.now: dict[str, Tensor] = {}  # of the pass under way, as are the scales of norms
        self.scales: dict[str, Tensor] = {}
        self.logits = PerSequence(len(batch.tokens), dim=2)
        self.totals = Totals()

    def hooks(self, _: Batch, __: slice, /) -> list[Hook]:
        """Hooks that note what every path adds in a forward pass; `update` then adds it up."""
        hooks: list[Hook] = []
        hooks.append(("hook_embed", lambda x, hook: self._note("direct", x)))
        if "pos_embed" in self.fixed:
            hooks.append(("hook_pos_embed", lambda x, hook: self._note("pos_embed", x)))
        for layer, block in enumerate(self.decoder.blocks):
            hooks.append((f"blocks.{layer}.attn.hook_z", lambda x, hook, i=layer: self._note_heads(i, x)))
            if block.mlp is not None:
                name = mlp_name(layer)
                hooks.append((f"blocks.{layer}.hook_mlp_out", lambda x, hook, n=name: self._note(n, x)))
        for norm in dict.fromkeys(norm for passed in self.norms.values() for norm in passed):
            hooks.append((f"{norm}.hook_scale", lambda x, hook, n=norm: self._note_scale(n, x)))
        return hooks

    def _note_scale(self, norm: str, x: Float[Tensor, "model batch position 1"]) -> None:
        self.scales[norm] = x[..., self.read, :]

    def _scaled(self, name: str) -> Float[Tensor, "model batch read d_vocab_out"]:
        logits = self.now[name]
        for norm in self.norms[name]:
            logits = logits / self.scales[norm]
        return logits

    def _note(self, name: str, x: Float[Tensor, "model batch position d_model"]) -> None:
        self.now[name] = einsum(x[..., self.read, :], self.fold[name], "m b read d, m d s -> m b read s")

    def _note_heads(self, layer: int, z: Float[Tensor, "model batch position head d_head"]) -> None:
        added = einsum(z[..., self.read, :, :], self.out[layer], "m b read h d, m h d s -> h m b read s")
        self.now |= {head_name(layer, head): logits for head, logits in enumerate(added)}

    def update(self, part: Batch, _: Float[Tensor, "model batch read d_vocab_out"], /) -> None:
        """Add up what the forward pass on these sequences has shown."""
        logits = torch.stack([*map(self._scaled, self.names)], dim=1)
        for name in self.fixed:
            self.totals.add(name, self._scaled(name).double().sum((1, 2)))
        self.now, self.scales = {}, {}
        self.logits.add(logits[..., self.kept, :])
        parent = torch.nn.functional.one_hot(part.parents, self.n_states).to(logits.dtype)
        how = "m path b read state_to, b read state -> m path state state_to"
        self.totals.add("by_parent", einsum(logits, parent, how))
        self.totals.add("all", rearrange(logits, "m path b read s -> m path (b read) s").double().sum(2))
        self.totals.add("count", parent.sum((0, 1)))

    def compute(self) -> PathOutputs:
        """The additions of these models along every path."""
        count = self.totals["count"]
        seen = torch.where(count > 0, count, torch.nan)[:, None]
        return PathOutputs(
            names=self.names,
            kept=tuple(self.kept.tolist()),
            logits=self.logits.values.cpu().numpy(),
            mean=(self.totals["all"] / count.sum()).cpu().numpy(),
            table=(self.totals["by_parent"] / seen).cpu().numpy(),
            fixed_names=self.fixed,
            fixed=np.stack([(self.totals[name] / count.sum()).cpu().numpy() for name in self.fixed], axis=1)
            if self.fixed
            else np.zeros((len(self.decoder), 0, self.totals["all"].shape[-1])),
        )


PATHS: Quantity[PathOutputs] = Quantity("paths", _PathSums)
