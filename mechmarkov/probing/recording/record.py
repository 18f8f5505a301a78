"""Record once: one pass over the evaluation batch for all quantities that the probes measure from."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import CHUNK_ELEMENTS, chunked, substack
from mechmarkov.probing.recording.activations import MLP_BY_PARENT, NORM_SCALE, SCORES
from mechmarkov.probing.recording.attention import ATTENTION
from mechmarkov.probing.recording.paths import PATHS
from mechmarkov.probing.recording.quantity import Quantity, Recording, Scope

# What more than one probe measures from. A quantity of one probe is named in its `Probe.records`.
STANDARD: tuple[Quantity[Any], ...] = (SCORES, ATTENTION, NORM_SCALE, MLP_BY_PARENT, PATHS)


@torch.no_grad()
def record(
    stack: HookedDecoder,
    batch: Batch,
    n_states: int,
    quantities: Sequence[Quantity[Any]] = STANDARD,
    elements: int = CHUNK_ELEMENTS,
    device: torch.device | None = None,
) -> dict[Quantity[Any], Any]:
    """Run every model of a stack over a batch, in chunks of bounded memory.

    Args:
        stack: The models.
        batch: The evaluation batch.
        n_states: The number of states of the source.
        quantities: What is recorded.
        elements: The number of elements of a chunk's largest activation.
        device: Where the models run, by default where they are. Values come to the host when all sequences
            of a chunk of models have gone through.

    Returns:
        The values by quantity. Where no layer has attention weights, what is read from them is left out.
    """
    if device is not None and device != stack.embed.W_E.device:
        stack, batch = substack(stack, slice(None)).to(device), batch.to(device)
    blocks: list[Any] = list(stack.blocks)
    if not any(block.attn.has_attention_weights for block in blocks):
        quantities = [quantity for quantity in quantities if not quantity.reads_attention]
    values: list[list[Any]] = []  # of each group of models, by quantity
    recordings: list[Recording[Any]] = []
    for chunk in chunked(stack, batch.tokens, elements):
        if chunk.sequences.start == 0:
            scope = Scope(chunk.model, batch, n_states, len(stack))
            recordings = [quantity.start(scope) for quantity in quantities]
        part = batch.part(chunk.sequences)
        hooks = [hook for recording in recordings for hook in recording.hooks(part, chunk.sequences)]
        scores = chunk.model.run_with_hooks(chunk.tokens, fwd_hooks=hooks)[..., batch.rows, :]
        for recording in recordings:
            recording.update(part, scores)
        if chunk.sequences.stop == len(batch.tokens):
            values.append([recording.compute() for recording in recordings])
    return dict(zip(quantities, map(_joined, zip(*values, strict=True)), strict=True))


def _joined(values: Sequence[Any]) -> Any:
    """The value of all models, from those of each group: arrays run over models, all else is the same."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(values)
    if isinstance(first, dict):
        return {name: np.concatenate([value[name] for value in values]) for name in first}
    names = [each.name for each in fields(first) if isinstance(getattr(first, each.name), np.ndarray)]
    return replace(
        first, **{name: np.concatenate([getattr(value, name) for value in values]) for name in names}
    )
