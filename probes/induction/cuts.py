"""One model whose heads can be cut from an input of later heads, and of no other part."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.interventions.intervention import Intervention
from mechmarkov.interventions.paths import replace_path
from mechmarkov.models.components import head_name
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch, batch_of
from mechmarkov.probing.chunking import chunked, substack
from mechmarkov.probing.subject import Subject

from .composition import Input
from .feeding import Head

CUT_SEQUENCES = 128
MAX_REFERENCE, REFERENCE_TOKENS, REFERENCE_SEED = 2048, 1 << 18, 0x4EF

Pair = tuple[Head, Head]  # an earlier head, and the later one that it is cut from


@dataclass(frozen=True, eq=False)
class Cuts:
    """One model of a subject, ready for its paths to be cut.

    Attributes:
        decoder: A stack of that model only; queries, keys and values of each head have inputs of their own.
        batch: The sequences that it reads.
        means: What each earlier head writes on average at each position: it stands in for what is cut.
    """

    decoder: HookedDecoder
    batch: Batch
    means: dict[Head, Float[Tensor, "model=1 batch=1 position d_head"]]

    @staticmethod
    def of(
        subject: Subject, batch: Batch, member: int, last: int, reference: Int[Tensor, "reference position"]
    ) -> "Cuts":
        """The member of a subject's stack, its means taken over other sequences.

        Args:
            subject: The models.
            batch: The sequences that the model will read.
            member: Which model.
            last: The last layer of a head that is fed.
            reference: `reference_tokens(subject)`.
        """
        decoder = substack(subject.decoder, slice(member, member + 1))
        means = _mean_outputs(decoder, reference, last, subject.chunk_elements)
        decoder.set_use_split_qkv_input(True)  # only on the part
        decoder.set_ungroup_grouped_query_attention(True)  # an input for each head
        return Cuts(decoder, batch, means)

    def run(
        self, reader: Head, pairs: Sequence[Pair] = (), into: Input = "K"
    ) -> tuple[Float[Tensor, "batch read key"], Float[Tensor, "batch read d_vocab_out"]]:
        """A head's attention at the positions that are read and the model's output, with paths cut.

        Args:
            reader: The head whose attention is returned.
            pairs: Which heads are cut from which; none by default. Those that are not earlier are left out.
            into: The input that they are cut from.
        """
        with ExitStack() as cuts:
            hooks: list[tuple[str, object]] = []
            for feeder, later in pairs:
                if feeder[0] >= later[0]:
                    continue
                if self.decoder.config.norm_first:
                    hooks += _hooks(self.decoder, feeder, later, into, self.means[feeder])
                else:
                    cuts.enter_context(_behind_norms(self.decoder, feeder, later, into, self.means[feeder]))
            return self._run(reader, hooks)

    def _run(self, reader: Head, hooks: list[tuple[str, object]]) -> tuple[Tensor, Tensor]:
        rows: list[Tensor] = []
        batch, name = self.batch, f"blocks.{reader[0]}.attn.hook_pattern"
        look = (name, lambda x, hook: rows.append(x[0, :, reader[1], batch.read, batch.keys]))
        with torch.no_grad():
            out = self.decoder.run_with_hooks(batch.tokens, fwd_hooks=[*hooks, look])
        return rows[0], out[0, :, batch.read, :]


def reference_tokens(subject: Subject) -> Int[Tensor, "reference position"]:
    """Other sequences of the subject's source, as a model reads them: what is cut is at its mean over these.

    There are 128 to 2048 of them, as a sharp reader amplifies the noise of a mean. A mean over the evaluated
    sequences would hold a part of each. The seed is fixed, and is not the subject's.

    Args:
        subject: Its source and the length of its sequences are taken.
    """
    length = subject.batch.states.shape[1]
    count = max(CUT_SEQUENCES, min(MAX_REFERENCE, REFERENCE_TOKENS // length))
    generator = torch.Generator().manual_seed(REFERENCE_SEED)
    states = subject.source.sample(count, length, generator=generator)
    return batch_of(states, subject.source.n_states, subject.objective, subject.config).tokens


def _mean_outputs(
    decoder: HookedDecoder, tokens: Int[Tensor, "reference position"], n_layers: int, elements: int
) -> dict[Head, Float[Tensor, "model=1 batch=1 position d_head"]]:
    """Returns the mean `z` of each head of the first layers at each position, whatever the sequence is."""
    totals: dict[int, Tensor] = {}

    def add(layer: int, z: Float[Tensor, "model batch position head d_head"]) -> None:
        totals[layer] = totals.get(layer, 0) + z.sum(1)

    hooks = [(f"blocks.{i}.attn.hook_z", lambda z, hook, i=i: add(i, z)) for i in range(n_layers)]
    with torch.no_grad():
        for chunk in chunked(decoder, tokens, elements):
            chunk.model.run_with_hooks(chunk.tokens, return_type=None, fwd_hooks=hooks)
    return {
        (layer, head): (total[..., head, :] / len(tokens))[:, None]
        for layer, total in totals.items()
        for head in range(decoder.config.n_heads)
    }


def _behind_norms(
    decoder: HookedDecoder, feeder: Head, reader: Head, into: Input, mean: Tensor
) -> Intervention[HookedDecoder]:
    """Give one input of the reader what `_hooks` do, where all norms between the two see the change."""
    path = head_name(*feeder), f"{head_name(*reader)}.{into}"
    return replace_path(decoder, *path, lambda z: mean.expand_as(z))


def _hooks(
    decoder: HookedDecoder, feeder: Head, reader: Head, into: Input, mean: Tensor
) -> list[tuple[str, object]]:
    """Hooks that give one input of the reader the feeder's mean output instead of its output.

    The norm in front of the reader sees the change; heads and layers between the two do not.
    """
    W_O = decoder.get_parameter(f"blocks.{feeder[0]}.attn.W_O")[:, feeder[1]]
    change: list[Tensor] = []

    def write(z: Float[Tensor, "model batch position head d_head"]) -> None:
        how = "m b p d_head, m d_head d -> m b p d"
        change.append(einsum(mean, W_O, how) - einsum(z[..., feeder[1], :], W_O, how))

    def cut(x: Float[Tensor, "model batch position head d_model"]) -> Tensor:
        x[..., reader[1], :] += change.pop()
        return x

    return [
        (f"blocks.{feeder[0]}.attn.hook_z", lambda z, hook: write(z)),
        (f"blocks.{reader[0]}.hook_{into.lower()}_input", lambda x, hook: cut(x)),
    ]
