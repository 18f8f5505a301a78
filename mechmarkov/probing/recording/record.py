"""Record once: one pass over the evaluation batch that keeps what the probes measure from."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import chunk_elements
from mechmarkov.probing.recording.attention import AttentionStats, AttentionSums
from mechmarkov.probing.recording.induction import (
    InductionReference,
    InductionStats,
    InductionSums,
    reference,
)
from mechmarkov.probing.recording.paths import PathOutputs, PathSums, joined

# Elements of one layer's largest activation per chunk: 8 MB in float32, and a chunk holds a few of them.
# Larger chunks leave the last level of the cache, and are slower (benchmarks/trajectory.py).
CHUNK_ELEMENTS = 1 << 21

# The same of one model, whose matrix products then find their operands in the core's own cache.
MODEL_ELEMENTS = 1 << 18


@dataclass(frozen=True, eq=False)
class Recording:
    """What one pass leaves behind; the leading axis `member` runs over the models of the stack.

    Attributes:
        scores: The outputs at the positions that are read.
        attention: Attention statistics, over layers and heads.
        norm_scale: Mean norm scale by norm ("blocks.0.ln1", …, "ln_final") at the positions that matter.
        mlp_by_parent: Mean of each MLP's output, given the parent state; NaN for a parent never seen.
        induction: Attention to keys whose predecessors match, over layers and heads.
        induction_reference: The same of an ideal head and by chance.
        paths: What every path adds to the logits.
    """

    scores: Float[np.ndarray, "member batch read d_vocab_out"]
    attention: AttentionStats
    norm_scale: dict[str, Float[np.ndarray, " member"]]
    mlp_by_parent: Float[np.ndarray, "member layer state d_model"]
    induction: InductionStats
    induction_reference: InductionReference
    paths: PathOutputs


def chunks(decoder: HookedDecoder, batch: Batch) -> tuple[int, int]:
    """How many models and how many sequences go through at once, for activations of `CHUNK_ELEMENTS`."""
    config, length = decoder.config, batch.tokens.shape[1]
    one = length * max(config.n_heads * length, config.d_model, 0 if config.attn_only else config.d_mlp or 0)
    room = chunk_elements(CHUNK_ELEMENTS)
    sequences = max(1, min(batch.tokens.shape[0], min(room, MODEL_ELEMENTS) // one))
    models = max(1, min(decoder.n_models or 1, room // (one * sequences)))
    return models, sequences


def part_of(stack: HookedDecoder, start: int, stop: int) -> HookedDecoder:
    """Models start..stop of a stack, sharing its memory."""
    with torch.device("meta"):
        part = HookedDecoder(stack.config, n_models=stop - start)
    part.load_state_dict({name: value[start:stop] for name, value in stack.state_dict().items()}, assign=True)
    return part


class _Pass:
    """The sums of one chunk of models."""

    def __init__(
        self, batch: Batch, n_states: int, config: DecoderConfig, found: InductionReference, paths: PathSums
    ) -> None:
        self.batch = batch
        self.paths = paths
        self.n_states = n_states
        self.part, self.first = batch, 0
        self.scores: list[Tensor] = []
        self.attention = [AttentionSums(batch, n_states, config.window) for _ in range(config.n_layers)]
        self.induction = [InductionSums(batch, found) for _ in range(config.n_layers)]
        self.norms: dict[str, Tensor] = {}
        self.mlp: dict[int, Tensor] = {}
        self.parent_count = torch.zeros(n_states, dtype=torch.float64)

    def hooks(self, decoder: HookedDecoder) -> list[tuple[str, Callable[..., None]]]:
        hooks: list[tuple[str, Callable[..., None]]] = []
        for layer, block in enumerate(decoder.blocks):
            sums, prefix = self.attention[layer], f"blocks.{layer}"
            hooks += [
                (f"{prefix}.attn.hook_attn_scores", lambda x, hook, s=sums: s.add_scores(x, self.part)),
                (f"{prefix}.attn.hook_pattern", lambda x, hook, i=layer: self._add_pattern(i, x)),
            ]
            if block.mlp is not None:
                hooks.append((f"{prefix}.hook_mlp_out", lambda x, hook, i=layer: self._add_mlp(i, x)))
        for name in decoder.hook_dict:
            if name.endswith("hook_scale"):
                hooks.append((name, self._add_norm))
        return hooks

    def _add_pattern(self, layer: int, pattern: Float[Tensor, "model batch head query key"]) -> None:
        self.attention[layer].add_pattern(pattern, self.part)
        self.induction[layer].add_pattern(pattern, self.part, self.first)

    def _add_mlp(self, layer: int, out: Float[Tensor, "model batch position d_model"]) -> None:
        parent = torch.nn.functional.one_hot(self.part.parents, self.n_states).to(out.dtype)
        rows = einsum(out[..., self.batch.read, :], parent, "m b read d, b read state -> m state d").double()
        self.mlp[layer] = self.mlp.get(layer, 0) + rows

    def _add_norm(self, scale: Tensor, hook: object) -> None:
        name = str(getattr(hook, "name", "")).removesuffix(".hook_scale")
        # A value circuit is read where its keys are; the final norm where the prediction is.
        rows = scale[..., self.batch.read, :] if name == "ln_final" else scale
        mean = rows.double().mean((2, 3)).sum(1)
        self.norms[name] = self.norms.get(name, 0) + mean

    def run(self, decoder: HookedDecoder, sequences: int) -> None:
        for start in range(0, self.batch.tokens.shape[0], sequences):
            window = slice(start, start + sequences)
            whole, self.first = self.batch, start
            self.part = Batch(
                whole.tokens[window], whole.history[window], whole.following[window], whole.read, whole.known
            )
            parent = torch.nn.functional.one_hot(self.part.parents, self.n_states)
            self.parent_count += parent.sum((0, 1))
            with torch.no_grad():
                hooks = self.hooks(decoder) + self.paths.hooks(decoder)
                out = decoder.run_with_hooks(self.part.tokens, fwd_hooks=hooks)
            self.paths.close(self.part)
            self.scores.append(out[..., self.batch.read, :])


def record(decoder: HookedDecoder, batch: Batch, n_states: int) -> Recording:
    """Run every model of a stack over a batch, in chunks of bounded memory.

    Args:
        decoder: A stack.
        batch: The evaluation batch.
        n_states: Of the source.
    """
    models, sequences = chunks(decoder, batch)
    found = reference(batch, n_states, decoder.config.window)
    passes = []
    for start in range(0, len(decoder), models):
        part = part_of(decoder, start, min(start + models, len(decoder)))
        paths = PathSums(part, batch, n_states, members=len(decoder))
        one = _Pass(batch, n_states, decoder.config, found, paths)
        one.run(part, sequences)
        passes.append(one)
    attention = [[sums.stats() for sums in one.attention] for one in passes]
    induction = [[sums.stats() for sums in one.induction] for one in passes]
    count = batch.tokens.shape[0]
    norms = {name: torch.cat([one.norms[name] for one in passes]).numpy() / count for name in passes[0].norms}
    seen = passes[0].parent_count[:, None]
    mlp = [
        torch.cat([one.mlp[layer] for one in passes]) / torch.where(seen > 0, seen, torch.nan)
        for layer in passes[0].mlp
    ]
    empty = torch.zeros(len(decoder), 0, n_states, decoder.config.d_model, dtype=torch.float64)
    return Recording(
        scores=torch.cat([torch.cat(one.scores, dim=1) for one in passes]).numpy(),
        attention=AttentionStats(**_joined(attention)),
        norm_scale=norms,
        mlp_by_parent=(torch.stack(mlp, dim=1) if mlp else empty).numpy(),
        induction=InductionStats(**_joined(induction)),
        induction_reference=found,
        paths=joined([one.paths for one in passes]),
    )


def _joined(stats: list[list[dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Statistics by chunk of models and layer, `[model, head, ...]`, as `[member, layer, head, ...]`."""
    return {
        name: np.concatenate([np.stack([layer[name] for layer in one], axis=1) for one in stats])
        for name in stats[0][0]
    }
