"""Record once: one pass over the evaluation batch for all quantities that the probes measure from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import CHUNK_ELEMENTS, chunked
from mechmarkov.probing.recording.activations import MLP_BY_PARENT, NORM_SCALE, SCORES
from mechmarkov.probing.recording.attention import ATTENTION
from mechmarkov.probing.recording.paths import PATHS
from mechmarkov.probing.recording.quantity import Quantity, Sums

# What more than one probe measures from. A quantity of one probe is named in its `Probe.records`.
STANDARD: tuple[Quantity[Any], ...] = (SCORES, ATTENTION, NORM_SCALE, MLP_BY_PARENT, PATHS)


@torch.no_grad()
def record(
    stack: HookedDecoder,
    batch: Batch,
    n_states: int,
    quantities: Sequence[Quantity[Any]] = STANDARD,
    elements: int = CHUNK_ELEMENTS,
) -> dict[Quantity[Any], Any]:
    """Run every model of a stack over a batch, in chunks of bounded memory.

    Args:
        stack: The models.
        batch: The evaluation batch.
        n_states: Of the source.
        quantities: What is recorded.
        elements: Of a chunk's largest activation.

    Returns:
        What was found, by quantity. Where no layer has attention weights, what is read from them is left out.
    """
    blocks: list[Any] = list(stack.blocks)
    if not any(block.attn.has_attention_weights for block in blocks):
        quantities = [quantity for quantity in quantities if not quantity.reads_attention]
    recorders = [quantity.begin(stack, batch, n_states) for quantity in quantities]
    passes: list[list[Sums]] = []
    for chunk in chunked(stack, batch.tokens, elements):
        if chunk.sequences.start == 0:
            passes.append([recorder.sums(chunk.model) for recorder in recorders])
        part = batch.part(chunk.sequences)
        hooks = [hook for sums in passes[-1] for hook in sums.hooks(part, chunk.sequences)]
        scores = chunk.model.run_with_hooks(chunk.tokens, fwd_hooks=hooks)[..., batch.read, :]
        for sums in passes[-1]:
            sums.add(part, scores)
    found = {}
    for quantity, recorder, chunks in zip(quantities, recorders, zip(*passes, strict=True), strict=True):
        arrays = [sums.finish() for sums in chunks]
        found[quantity] = recorder.found(
            **{name: np.concatenate([one[name] for one in arrays]) for name in arrays[0]}
        )
    return found
