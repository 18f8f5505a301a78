"""What every path adds to the logits, prediction by prediction, with the residual stream it really sees.

The logits are a sum over paths: the embedding straight to the unembedding (`direct`), each head and each
MLP, and what is left (positions and biases). A final norm's scale is taken as it is at each prediction, so
that the sum is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.models.components import head_name, layer_components, mlp_name
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch

# Logits that are kept of all models, paths and predictions together: 32 MB in float32.
KEPT_ELEMENTS = 1 << 23


@dataclass(frozen=True, eq=False)
class PathOutputs:
    """What each path adds to the logits, in score units.

    Attributes:
        names: The paths: "direct" (where a state is at the position that is read), "L0H0", "L0.mlp", ….
        kept: Which of the positions that are read are kept in `logits`, evenly spaced.
        logits: What each path adds at each prediction that is kept.
        mean: Its mean over all predictions.
        table: Its mean given the parent state; NaN for a parent never seen.
    """

    names: tuple[str, ...]
    kept: Int[np.ndarray, " kept"]
    logits: Float[np.ndarray, "member path batch kept d_vocab_out"]
    mean: Float[np.ndarray, "member path d_vocab_out"]
    table: Float[np.ndarray, "member path state d_vocab_out"]


def path_names(config: DecoderConfig, batch: Batch) -> tuple[str, ...]:
    """The paths to the logits; behind a query token no state is on the direct one."""
    return (*["direct"] * (batch.parent_lag == 0), *layer_components(config))


class PathSums:
    """What a chunk of models adds along every path, over chunks of sequences.

    Args:
        decoder: The chunk of models.
        batch: All sequences.
        n_states: Of the source.
        members: How many models there are in all chunks, as memory is shared by them.
    """

    def __init__(self, decoder: HookedDecoder, batch: Batch, n_states: int, members: int) -> None:
        self.n_states, self.read = n_states, batch.read
        self.names = path_names(decoder.config, batch)
        self.heads = decoder.config.n_heads
        each = members * len(self.names) * len(batch.tokens) * decoder.config.d_vocab_out
        n_kept = max(1, min(len(batch.read), KEPT_ELEMENTS // each))
        self.kept = ((torch.arange(n_kept) + 0.5) * len(batch.read) / n_kept).long()
        self.fold = decoder.folded_unembedding()
        blocks: list[Any] = list(decoder.blocks)
        self.out = [
            einsum(block.attn.W_O.detach(), self.fold, "m head d_head d, m d s -> m head d_head s")
            for block in blocks
        ]
        self.scale: Tensor | None = None
        self.now: dict[str, Tensor] = {}
        self.logits: list[Tensor] = []
        self.total: Tensor | float = 0.0
        self.by_parent: Tensor | float = 0.0
        self.count = torch.zeros(n_states, dtype=torch.float64)

    def hooks(self, decoder: HookedDecoder) -> list[tuple[str, Callable[..., None]]]:
        """Hooks that note what every path adds in a forward pass; `close` then adds it up."""
        hooks: list[tuple[str, Callable[..., None]]] = []
        if "direct" in self.names:
            hooks.append(("hook_embed", lambda x, hook: self._add("direct", x)))
        for layer, block in enumerate(decoder.blocks):
            hooks.append((f"blocks.{layer}.attn.hook_z", lambda x, hook, i=layer: self._add_heads(i, x)))
            if block.mlp is not None:
                name = mlp_name(layer)
                hooks.append((f"blocks.{layer}.hook_mlp_out", lambda x, hook, n=name: self._add(n, x)))
        if decoder.config.normalization_type is not None:
            hooks.append(
                ("ln_final.hook_scale", lambda x, hook: setattr(self, "scale", x[..., self.read, :]))
            )
        return hooks

    def _add(self, name: str, x: Float[Tensor, "model batch position d_model"]) -> None:
        self.now[name] = einsum(x[..., self.read, :], self.fold, "m b read d, m d s -> m b read s")

    def _set_scale(self, x: Float[Tensor, "model batch position 1"]) -> None:
        self.scale = x[..., self.read, :]

    def _add_heads(self, layer: int, z: Float[Tensor, "model batch position head d_head"]) -> None:
        added = einsum(z[..., self.read, :, :], self.out[layer], "m b read h d, m h d s -> h m b read s")
        self.now |= {head_name(layer, head): added[head] for head in range(self.heads)}

    def close(self, part: Batch) -> None:
        """Add up what the forward pass on these sequences has shown."""
        logits = torch.stack([self.now[name] for name in self.names], dim=1)
        if self.scale is not None:
            logits = logits / self.scale[:, None]
        self.now = {}
        self.logits.append(logits[..., self.kept, :])
        parent = torch.nn.functional.one_hot(part.parents, self.n_states).to(logits.dtype)
        how = "m path b read state_to, b read state -> m path state state_to"
        self.by_parent = self.by_parent + einsum(logits, parent, how).double()
        self.total = self.total + rearrange(logits, "m path b read s -> m path (b read) s").double().sum(2)
        self.count += parent.sum((0, 1))

    def outputs(self) -> dict[str, np.ndarray]:
        """`logits`, `mean` and `table` of this chunk of models, as in `PathOutputs`."""
        assert isinstance(self.total, Tensor)
        assert isinstance(self.by_parent, Tensor)
        seen = torch.where(self.count > 0, self.count, torch.nan)[:, None]
        return {
            "logits": torch.cat(self.logits, dim=2).numpy(),
            "mean": (self.total / self.count.sum()).numpy(),
            "table": (self.by_parent / seen).numpy(),
        }


def joined(passes: list[PathSums]) -> PathOutputs:
    """The chunks of models as one."""
    found = [one.outputs() for one in passes]
    return PathOutputs(
        names=passes[0].names,
        kept=passes[0].kept.numpy(),
        **{name: np.concatenate([one[name] for one in found]) for name in found[0]},
    )
