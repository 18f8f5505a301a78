"""Forward passes of bounded memory: some models of a stack over some sequences at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.utils.memory import with_less_memory

Returned = TypeVar("Returned")

# Elements of one layer's largest activation per chunk: 8 MB in float32, and a chunk holds a few of them.
# Larger chunks leave the last level of the cache, and are slower (benchmarks/trajectory.py).
CHUNK_ELEMENTS = 1 << 21

# The same of one model, whose matrix products then find their operands in the core's own cache.
MODEL_ELEMENTS = 1 << 18

MIN_CHUNK_ELEMENTS = 1 << 11  # smaller chunks free nothing more


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some models of a stack and the sequences that they run on together.

    Attributes:
        members: The models' places in the stack.
        model: These models, as a stack.
        sequences: The sequences' places in the batch.
        tokens: These sequences.
    """

    members: slice
    model: HookedDecoder
    sequences: slice
    tokens: Int[Tensor, "batch position"]


def substack(stack: HookedDecoder, members: slice) -> HookedDecoder:
    """Some models of a stack, as a stack that shares its memory.

    Example:
        >>> import mechmarkov as mm
        >>> len(substack(mm.example("walk").model(steps="all"), slice(0, 2)))
        2
    """
    with torch.device("meta"):
        part = HookedDecoder(stack.config, n_models=len(range(len(stack))[members]))
    part.load_state_dict({name: value[members] for name, value in stack.state_dict().items()}, assign=True)
    return part


def chunked(
    stack: HookedDecoder,
    tokens: Int[Tensor, "batch position"],
    elements: int = CHUNK_ELEMENTS,
    *,
    per_token: int | None = None,
    sequences: int | None = None,
) -> Iterator[Chunk]:
    """Yields a stack and a batch in chunks: all sequences of some models, then those of the next models.

    Args:
        stack: The models.
        tokens: The sequences.
        elements: The size of a layer's largest activation in a chunk; one model and one sequence always go.
        per_token: Elements of that activation for one token of one model; by default those of attention
            weights, the residual stream or an MLP.
        sequences: How many go at once; on a CPU by default as many as keep one model's operands in its cache.

    Example:
        >>> import mechmarkov as mm
        >>> stack, tokens = mm.example("walk").model(steps="all"), torch.zeros(4, 97, dtype=torch.long)
        >>> sum(len(chunk.model) * len(chunk.tokens) for chunk in chunked(stack, tokens)) == 4 * len(stack)
        True
    """
    config, (n, length) = stack.config, tokens.shape
    one = length * (per_token or max(config.n_heads * length, width(config)))
    if sequences is None:
        sequences = (min(elements, MODEL_ELEMENTS) if tokens.device.type == "cpu" else elements) // one
    sequences = max(1, min(sequences, n))
    models = max(1, elements // (one * sequences))
    for first in range(0, len(stack), models):
        members = slice(first, min(first + models, len(stack)))
        model = stack if models >= len(stack) else substack(stack, members)
        for start in range(0, n, sequences):
            some = slice(start, min(start + sequences, n))
            yield Chunk(members, model, some, tokens[some])


def width(config: DecoderConfig) -> int:
    """Returns elements of a layer's largest activation a token where no attention weights are spelled out.

    As `per_token` of `chunked` it lets more sequences through at once: a product of few rows takes longer.

    Example:
        >>> width(DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=2, d_vocab=2, attn_only=True))
        4
    """
    return max(config.d_model, config.d_mlp or 0)


def in_chunks_that_fit(work: Callable[[int], Returned], what: str, elements: int) -> Returned:
    """Returns `work(elements)`; each time that memory runs out, it is tried again in chunks of a quarter.

    Args:
        work: What cuts its passes into chunks of that many elements (`chunked`).
        what: Its name, for people, in what is printed to stderr.
        elements: The number of elements of the first chunks.

    Raises:
        MemoryError, RuntimeError: If memory is out with the smallest chunks too.

    Example:
        >>> in_chunks_that_fit(lambda elements: elements, "counting", 1 << 20)
        1048576
    """
    return with_less_memory(
        work,
        elements,
        smaller=lambda now: now // 4 if now // 4 >= MIN_CHUNK_ELEMENTS else None,
        message=lambda now: f", {what}: again in chunks of 1/{elements // now} of the size",
    )
