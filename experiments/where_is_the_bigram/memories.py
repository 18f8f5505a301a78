"""Associative memories: what heads copy, match and remember, by their weights (Bietti et al. 2023).

And one by its data: what the model makes of a trigger met before, where the source has such.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Source, TriggerBigram
from mechmarkov.theory.kernel import argmax_sets, kernel_kl, recall


@torch.no_grad()
def copies(subject: Subject) -> Float[np.ndarray, "member layer head"]:
    """How often a head writes the token it reads: `argmax_j (W_E W_OV W_U)[k, j] = k`, over tokens k.

    NaN for mixers that are not linear. Over tokens that can be an output, where the source has triggers:
    nothing else is there to be copied. Ties count by their share, so that a constant table scores 1/K.
    """
    decoder, n, found = subject.decoder, subject.source.n_states, _unknown(subject)
    copied = _outputs(subject.source)
    embedded: Float[Tensor, "member state d_model"] = decoder.embed.W_E[:, :n]
    for layer, block in enumerate(_blocks(decoder)):
        if block.attn.is_linear:
            written = block.attn.value_circuit(block.ln1(embedded))
            table = written @ decoder.folded_unembedding()[:, None, :, :n]
            found[:, layer] = recall(table[..., copied, :].double().numpy(), np.eye(n)[copied])
    return found


@torch.no_grad()
def previous(subject: Subject) -> Float[np.ndarray, "member layer head"] | None:
    """How often positions alone point one back: `argmax_{s<=t} <W_Q p_t, W_K p_s> = t - 1`, over t >= 1.

    None for models whose positions are not vectors, and where there is but one. NaN for layers without
    queries and keys.
    """
    decoder, found = subject.decoder, _unknown(subject)
    if decoder.pos_embed is None or subject.config.n_ctx < 2:
        return None
    positions = decoder.pos_embed.W_pos
    shortformer = subject.config.positional_embedding_type == "shortformer"
    for layer, block in enumerate(_blocks(decoder)):
        if _has_keys(block):
            read = positions if shortformer else block.ln1(positions)
            q, k = (block.attn.read_by(side, read) for side in "QK")
            for i in range(len(q)):  # one by one: a table per position pair
                found[i, layer] = _one_back(q[i], k[i])
    return found


@torch.no_grad()
def matches(subject: Subject) -> Float[np.ndarray, "member layer head layer_to head_to"]:
    """How often what a head wrote of a token is what a later head's query for that token looks for.

    `argmax_j <W_Q W_E[k], W_K W_OV W_E[j]> = k`, over tokens k (Bietti et al. 2023, section 4; for later
    heads of layers above one the same pair by pair); over triggers k, where the source has such: no other
    token has to be looked for. NaN where the second head is not in a later layer, or has no queries and keys.
    """
    decoder, n, config = subject.decoder, subject.source.n_states, subject.config
    embedded = decoder.embed.W_E[:, :n]
    sought = _triggers(subject.source)
    layers, heads = config.n_layers, config.n_heads
    found = np.full((len(decoder), layers, heads, layers, heads), np.nan)
    for i, first in enumerate(_blocks(decoder)):
        if not first.attn.is_linear:
            continue
        written = first.attn.value_circuit(first.ln1(embedded))
        for j, later in enumerate(_blocks(decoder)):
            if j <= i or not _has_keys(later):
                continue
            q = later.attn.read_by("Q", later.ln1(embedded[:, sought]))
            k = later.attn.read_by("K", later.ln1(written))
            scores = q[:, None] @ k.mT  # member, head, later head, token sought, token written
            found[:, i, :, j] = recall(scores.double().numpy(), np.eye(n)[sought])
    return found


@torch.no_grad()
def mlp_kl(subject: Subject) -> Float[np.ndarray, "member layer"]:
    """`sum_k pi_k KL(P_k ‖ predict(W_U MLP(W_E[k])))`, in nats; no columns for a model without MLPs.

    The bigram in an MLP that sees a token's embedding and nothing else (Bietti et al. 2023). Without the
    triggers, where the source has such, as in their code: what follows them is not a matter of the bigram.
    """
    decoder, source, n = subject.decoder, subject.source, subject.source.n_states
    P, pi = (np.array(getattr(source, name)) for name in ("P", "pi"))
    if isinstance(source, TriggerBigram):
        pi[list(source.triggers)] = 0
        pi /= pi.sum()
    blocks = [block for block in _blocks(decoder) if block.mlp is not None]
    found = np.zeros((len(decoder), len(blocks)))
    for i, block in enumerate(blocks):
        out = block.mlp(block.ln2(decoder.embed.W_E[:, None, :n]))
        scores = decoder.unembed(decoder.ln_final(out))[:, 0]
        found[:, i] = kernel_kl(subject.objective.predict(scores.double()).numpy(), P, pi)
    return found


def outputs(subject: Subject) -> Float[np.ndarray, " member"] | None:
    """How often the likeliest token after a trigger met before is the one that followed it then.

    The in-context accuracy of Bietti et al. 2023, on the evaluation sequences; ties count by their share.
    None for a source without triggers, and NaN where no trigger is met again.
    """
    source, batch = subject.source, subject.batch
    if not isinstance(source, TriggerBigram):
        return None
    known = source.in_context_mask(batch.history.numpy())[:, batch.known.numpy()]
    if not known.any():
        return np.full(len(subject.decoder), np.nan)
    probability = subject.probabilities[:, known]
    top = probability >= probability.max(-1, keepdims=True)
    right = batch.targets.numpy()[known]
    return (top / top.sum(-1, keepdims=True))[:, np.arange(len(right)), right].mean(-1)


def _outputs(source: Source) -> list[int]:
    """The tokens that can follow a trigger; all where there are no triggers."""
    if isinstance(source, TriggerBigram):
        return [int(state) for state in np.flatnonzero(source.output_law)]
    return list(range(source.n_states))


def _triggers(source: Source) -> list[int]:
    """The triggers; all tokens where there are none."""
    return list(source.triggers) if isinstance(source, TriggerBigram) else list(range(source.n_states))


def _one_back(q: Float[Tensor, "head query d"], k: Float[Tensor, "head key d"]) -> Float[np.ndarray, " head"]:
    """Share of queries whose largest score is on the key before them; ties count by their share."""
    scores = (q @ k.mT).double().numpy()
    ahead = np.triu(np.ones(scores.shape[-2:], dtype=bool), 1)
    hits = argmax_sets(np.where(ahead, scores.min((-2, -1), keepdims=True), scores)) & ~ahead
    back = np.arange(1, scores.shape[-1])
    return (hits[:, back, back - 1] / hits[:, back].sum(-1)).mean(-1)


def _unknown(subject: Subject) -> Float[np.ndarray, "member layer head"]:
    return np.full((len(subject.decoder), subject.config.n_layers, subject.config.n_heads), np.nan)


def _has_keys(block: Any) -> bool:
    return block.attn.is_linear and {"Q", "K"} <= set(block.attn.inputs)


def _blocks(decoder: HookedDecoder) -> list[Any]:
    return list(decoder.blocks)
