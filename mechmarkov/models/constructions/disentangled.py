"""The disentangled two-layer transformer: every layer's output is put next to the stream, not added to it.

Nichani, Damian & Lee (2024, arXiv 2402.14735; public code). A token is `[one-hot state; one-hot position]`. A
head scores `x_q^T A x_k` with one matrix `A`, and its attention-weighted mean of whole streams is appended.
Here `A` is `W_Q`, with `W_K` the identity, and values and outputs copy a stream to the head's own block; all
of these are fixed. `A` and the unembedding are trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mechmarkov.models.config import DecoderConfig, Slices
from mechmarkov.models.constructions.lookup_tables import SHARP, handset_config
from mechmarkov.models.decoder import HookedDecoder

DisentangledForm = Literal["full", "reduced"]


@dataclass(frozen=True)
class DisentangledShape:
    """The sizes of a disentangled transformer of two layers.

    Attributes:
        n_states: Number of states, K.
        n_ctx: Length of the input, N.
        heads: The number of heads in each layer.
        form: `full` trains all of both layers' `A` and the unembedding. `reduced` trains, of the first layer,
            the scores of pairs of positions and, of the second, those of the query's state against the state
            that the first head has put next to a key; it outputs the attention-weighted frequency of each
            state, to be read by `objective.kind = "raw_log"`. It has one head a layer.
        key_start: In the reduced form, the second layer's scores start at this times the identity.
    """

    n_states: int
    n_ctx: int
    heads: tuple[int, int] = (1, 1)
    form: DisentangledForm = "full"
    key_start: float = 1.0

    def __post_init__(self) -> None:
        if min(self.heads) < 1:
            raise ValueError(f"heads are {list(self.heads)}, expected at least 1 in each layer")
        if self.form == "reduced" and self.heads != (1, 1):
            raise ValueError(f"heads are {list(self.heads)}, expected [1, 1] where form is 'reduced'")

    @property
    def widths(self) -> tuple[int, int, int]:
        """Returns widths of the stream that the first layer, the second layer and the unembedding read."""
        first = self.n_states + self.n_ctx
        second = first * (1 + self.heads[0])
        return first, second, second * (1 + self.heads[1])


def disentangled_config(shape: DisentangledShape) -> DecoderConfig:
    """Returns the shape of the decoder that a disentangled transformer is.

    Where a layer has fewer heads than the other, the further heads are zero.

    Example:
        >>> disentangled_config(DisentangledShape(n_states=3, n_ctx=5)).d_model  # (3 + 5) * 2 * 2
        32
    """
    _, second, width = shape.widths
    return handset_config(
        shape.n_states, shape.n_ctx, n_layers=2, n_heads=max(shape.heads), d_model=width, d_head=second
    )


def disentangled_trainable(shape: DisentangledShape) -> Slices:
    """Returns the decoder's parameters that are trained, with `[start, stop]` per axis of each."""
    n, first, second = shape.n_states, *shape.widths[:2]
    A1, A2 = "blocks.0.attn.W_Q", "blocks.1.attn.W_Q"
    if shape.form == "reduced":
        return {A1: [[0, 1], [n, first], [n, first]], A2: [[0, 1], [0, n], [first, first + n]]}
    return {
        A1: [[0, shape.heads[0]], [0, first], [0, first]],
        A2: [[0, shape.heads[1]], [0, second], [0, second]],
        "unembed.W_U": None,
    }


@torch.no_grad()
def disentangled_decoder(shape: DisentangledShape) -> HookedDecoder:
    """Build the decoder with its fixed parts set; what is trained is zero, or as `key_start` says."""
    n, (first, second, _) = shape.n_states, shape.widths
    decoder = HookedDecoder(disentangled_config(shape))
    decoder.embed.W_E[:, :n] = torch.eye(n)
    decoder.get_parameter("pos_embed.W_pos")[:, n:first] = torch.eye(shape.n_ctx)
    mixers: list[Any] = [block.attn for block in decoder.blocks]
    for mixer, heads, width in zip(mixers, shape.heads, (first, second), strict=True):
        read = torch.arange(width)
        for head in range(heads):
            mixer.W_K[head, read, read] = 1.0
            mixer.W_V[head, read, read] = 1.0
            mixer.W_O[head, read, width * (1 + head) + read] = 1.0
    if shape.form == "reduced":
        state = torch.arange(n)
        mixers[1].W_Q[0, state, first + state] = shape.key_start
        decoder.get_parameter("unembed.W_U")[second + state, state] = 1.0
    return decoder


@torch.no_grad()
def graph_heads(n_states: int, parents: Sequence[Sequence[int]]) -> HookedDecoder:
    """The reduced form set by hand: the first layer attends to each position's parent, the second counts.

    The second layer attends to the keys whose parent has the query's state. Roots attend to all before them;
    the first position sees only itself, and is counted as its own child. Each position that the model reads
    has at most one of `parents`.

    Raises:
        ValueError: A position has several parents.

    Example:
        >>> model = graph_heads(2, [[], [0], [0], []])
        >>> model(torch.tensor([[0, 1, 1, 0]]))[0, -1].detach()
        tensor([0.3333, 0.6667])
    """
    shape = DisentangledShape(n_states, len(parents), form="reduced", key_start=SHARP)
    decoder = disentangled_decoder(shape)
    mixer: Any = decoder.blocks[0].attn
    for i, each in enumerate(parents):
        if len(each) > 1:
            raise ValueError(f"parents of position {i} are {list(each)}, expected at most one")
        for parent in each:
            mixer.W_Q[0, n_states + i, n_states + parent] = SHARP
    return decoder
