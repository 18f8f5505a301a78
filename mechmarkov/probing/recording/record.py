"""Record once: one pass over the evaluation batch for all quantities that the probes measure from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import CHUNK_ELEMENTS, chunked, substack
from mechmarkov.probing.recording.activations import MLP_BY_PARENT, NORM_SCALE, SCORES
from mechmarkov.probing.recording.attention import ATTENTION
from mechmarkov.probing.recording.paths import PATHS
from mechmarkov.probing.recording.quantity import Arrays, Quantity, Sums

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
        device: Where the models run, by default where they are. What is found comes to the host when all
            sequences of a chunk of models have gone through.

    Returns:
        What was found, by quantity. Where no layer has attention weights, what is read from them is left out.
    """
    if device is not None and device != stack.embed.W_E.device:
        stack, batch = substack(stack, slice(None)).to(device), batch.to(device)
    blocks: list[Any] = list(stack.blocks)
    if not any(block.attn.has_attention_weights for block in blocks):
        quantities = [quantity for quantity in quantities if not quantity.reads_attention]
    recorders = [quantity.begin(stack, batch, n_states) for quantity in quantities]
    arrays: list[list[Arrays]] = []
    sums: list[Sums] = []
    for chunk in chunked(stack, batch.tokens, elements):
        if chunk.sequences.start == 0:
            sums = [recorder.sums(chunk.model) for recorder in recorders]
        part = batch.part(chunk.sequences)
        hooks = [hook for one in sums for hook in one.hooks(part, chunk.sequences)]
        scores = chunk.model.run_with_hooks(chunk.tokens, fwd_hooks=hooks)[..., batch.read, :]
        for one in sums:
            one.add(part, scores)
        if chunk.sequences.stop == len(batch.tokens):
            arrays.append([one.finish() for one in sums])
    found = {}
    for quantity, recorder, chunks in zip(quantities, recorders, zip(*arrays, strict=True), strict=True):
        found[quantity] = recorder.found(
            **{name: np.concatenate([one[name] for one in chunks]) for name in chunks[0]}
        )
    return found
