"""Interventions behind the induction score: edit one predecessor, and repeat random sequences."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from scipy.special import stdtrit
from torch import Tensor
from transformer_lens.head_detector import get_induction_head_detection_pattern

from mechmarkov.models.attention import Attention
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.kernels import fast_attention
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import CHUNK_ELEMENTS, Chunk, chunked, width

EDITED_SEQUENCES = 64  # four edits of each
EDIT_DRAWS = 8  # of a query and a key in each sequence, until one will do
# Positions a group of edited sequences: a pass ends at the last query of its group, as nothing behind a query
# changes its attention.
QUERIES_TOGETHER = 64
REPEATED_SEQUENCES = 32
CHECK_SEED = 0x1D


@dataclass(frozen=True, eq=False)
class PredecessorEffect:
    """The effect of only a key's predecessor on attention to it: 1 for an ideal induction head, else 0.

    Attributes:
        effect: Sum of moved shares of attention over the sum of what uniform-on-matches would move.
        low: The lower end of its 95 % interval over sequences.
        high: The upper end.
    """

    effect: Float[np.ndarray, "member layer head"]
    low: Float[np.ndarray, "member layer head"]
    high: Float[np.ndarray, "member layer head"]


@torch.no_grad()
def by_layer(
    decoder: HookedDecoder,
    tokens: Int[Tensor, "batch position"],
    read: Callable[[Tensor, slice], Tensor],
    elements: int,
    query: Int[Tensor, " batch"] | None = None,
    first_query: int = 0,
) -> Float[Tensor, "member layer batch head"]:
    """Run a stack, in chunks, and keep what `read` makes of each layer's pattern, or of one query's logits.

    Args:
        decoder: A stack.
        tokens: Its input.
        read: Given the pattern `[model, batch, head, query, key]`, or the logits of `query`
            `[model, batch, head, key]`, and the slice of the sequences.
        elements: The number of elements of the largest activation of a forward pass.
        query: One query of each sequence, whose attention logits are read in place of the pattern.
        first_query: The last layer has no queries before this position.

    Returns:
        NaN for layers without attention weights.
    """
    queries = torch.arange(first_query, tokens.shape[1]) if first_query else None
    config, blocks = decoder.config, cast("list[Any]", decoder.blocks)
    layers = [layer for layer, block in enumerate(blocks) if block.attn.has_attention_weights]
    shape = (len(decoder), config.n_layers, len(tokens), config.n_heads)
    values = torch.full(shape, torch.nan, dtype=torch.float64)
    per_token = None if query is None else width(config)  # the pattern is not spelled out for one query
    for chunk in chunked(decoder, tokens, elements, per_token=per_token):

        def keep(x: Tensor, layer: int, at: Chunk = chunk) -> None:
            values[at.members, layer, at.sequences] = read(x, at.sequences).double()

        asked = None if query is None else query[chunk.sequences]
        hooks = [
            (f"blocks.{i}.attn.{point}", lambda x, hook, look=look: look(x))
            for i in layers
            for point, look in _looks(blocks[i].attn, partial(keep, layer=i), asked).items()
        ]
        with fast_attention(chunk.model, tokens):
            chunk.model.run_with_hooks(chunk.tokens, return_type=None, read=queries, fwd_hooks=hooks)
    return values


def _looks(
    mixer: Any, keep: Callable[[Tensor], None], query: Int[Tensor, " batch"] | None
) -> dict[str, Callable[[Tensor], None]]:
    """Returns hooks by a mixer's hook points, which give `keep` the pattern or one query's logits.

    Logits of one query are products with all keys: nothing is spelled out for the other queries.
    """
    if query is None:
        return {"hook_pattern": keep}
    config, every = mixer.config, torch.arange(len(query))
    queries: list[Tensor] = []

    def of_scores(scores: Float[Tensor, "model batch head query key"]) -> None:
        at = query - (scores.shape[-1] - scores.shape[-2])  # the last layer may lack the first queries
        keep(rearrange(scores[:, every, :, at], "batch model head key -> model batch head key"))

    def of_keys(k: Float[Tensor, "model batch key head d_head"]) -> None:
        q, k = queries.pop(), mixer.per_head(k)
        own = q[:, every, query - (k.shape[2] - q.shape[2])]
        logits = einsum(own, k, "m b head d, m b key head d -> m b head key") / config.score_scale
        lag = query[:, None] - torch.arange(k.shape[2])
        unseen = (lag < 0) | (lag > (k.shape[2] if config.window is None else config.window))
        keep(logits.masked_fill_(unseen[:, None], -torch.inf))

    if not isinstance(mixer, Attention) or config.scores_lags or config.use_qk_norm:
        return {"hook_attn_scores": of_scores}
    turned = "rot_" * (config.positional_embedding_type == "rotary")
    return {f"hook_{turned}q": queries.append, f"hook_{turned}k": of_keys}


@dataclass(frozen=True, eq=False)
class _Edits:
    """A query and a key behind it in each sequence, with either of two states as token and predecessor."""

    tokens: Int[Tensor, "batch query_state predecessor_state position"]
    query: Int[Tensor, " batch"]
    key: Int[Tensor, " batch"]
    ideal: Float[Tensor, " batch"]
    first_query: int = 0

    def part(self, some: Int[Tensor, " some"], *, cut: bool) -> "_Edits":
        """Some sequences; if `cut`, up to the last of their queries."""
        query = self.query[some]
        tokens, first = self.tokens[some], int(query.min()) if cut else 0
        tokens = tokens[..., : int(query.max()) + 1] if cut else tokens
        return _Edits(tokens, query, self.key[some], self.ideal[some], first)


def _edits(batch: Batch, window: int | None) -> _Edits:
    """Draw queries, keys and a second state, from the sequence itself: names of states do not matter."""
    generator = torch.Generator().manual_seed(CHECK_SEED)
    x, (n, real) = batch.history, batch.history.shape
    rows = (batch.known >= 2).nonzero().flatten().tolist() or [0]
    edits: list[tuple[Tensor, int, int, float]] = []
    seen, begins = batch.visible(window), batch.first
    for sequence in range(n):
        u, order = torch.rand(EDIT_DRAWS, 2, generator=generator), torch.randperm(real, generator=generator)
        for a, b in u.tolist():
            row = rows[int(a * len(rows))]
            t, query = int(batch.known[row]), int(batch.read[row])
            first = 3 if window is None else max(3, query - begins - window)
            differs = x[sequence, order] != x[sequence, t]
            if first >= t or not differs.any():
                continue
            s = first + int(b * (t - first))
            states = torch.stack([x[sequence, t], x[sequence, order][differs][0]])
            alike = x[sequence, : s - 2] == states[:, None]  # predecessors of the keys from 1 to s - 2
            matches = (alike & seen[row, 1 : s - 1]).sum(-1)
            if matches.min() > 0:  # there is a match to share attention with
                tokens = batch.tokens[sequence].repeat(2, 2, 1)
                tokens[:, :, begins + t] = states[:, None]
                tokens[:, :, begins + s - 1] = states
                edits.append((tokens, query, begins + s, float((1 / (1 + matches)).mean())))
                break
    tokens = torch.stack([edit[0] for edit in edits]) if edits else batch.tokens.new_zeros(0, 2, 2, 1)
    query_at, key = (torch.tensor([edit[i] for edit in edits], dtype=torch.long) for i in (1, 2))
    return _Edits(tokens, query_at, key, torch.tensor([edit[3] for edit in edits], dtype=torch.float64))


def _attention_to_keys(
    decoder: HookedDecoder, edits: _Edits, elements: int
) -> Float[Tensor, "member layer batch query_state predecessor_state head"]:
    """Returns each edited key's share of the attention to it and to all keys before the edit."""
    query, key = (index.repeat_interleave(4) for index in (edits.query, edits.key))

    def read(logits: Float[Tensor, "model batch head key"], part: slice) -> Tensor:
        row, edited, position = logits.double(), key[part, None, None], torch.arange(logits.shape[-1])
        to_key = row.masked_fill(position != edited, -torch.inf).logsumexp(-1)
        # Of logits: attention that a neighbour draws to itself would leave nothing to take a share of.
        return (to_key - row.masked_fill(position >= edited - 1, -torch.inf).logsumexp(-1)).sigmoid()

    tokens = rearrange(edits.tokens, "b token before position -> (b token before) position")
    seen = by_layer(decoder, tokens, read, elements, query, edits.first_query)
    return rearrange(seen, "m layer (b token before) h -> m layer b token before h", token=2, before=2)


def predecessor_effect(
    decoder: HookedDecoder, batch: Batch, elements: int = CHUNK_ELEMENTS
) -> PredecessorEffect:
    """Returns how far editing only the predecessor of a key moves the attention to that key.

    Per sequence one query and one key s behind it. The query's token and the key's predecessor are each set
    to either of two states v and w; what counts is the interaction `(f[v,v] - f[v,w] + f[w,w] - f[w,v]) / 2`
    of `f[token, predecessor]`, in which a preference for only a token or only a predecessor cancels. Here f
    is the attention to the key as a share of that and of the attention to all keys before the edit: those
    the edit cannot reach, so f moves only if the key itself does, and not because a neighbour drew attention.
    A head that is uniform on matches moves `1 / (1 + matches before)`.

    Args:
        decoder: A stack.
        batch: Sequences to edit; at most 64 are used.
        elements: The number of elements of the largest activation of a forward pass.

    Returns:
        NaN where fewer than two sequences have a query and a key to edit.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> predecessor_effect(subject.decoder, subject.batch).effect.round(1).tolist()
        [[[0.0, 0.0], [0.8, 0.3]]]
    """
    edits = _edits(batch.head(EDITED_SEQUENCES), decoder.config.window)
    n, shape = len(edits.key), (len(decoder), decoder.config.n_layers, decoder.config.n_heads)
    if n < 2:
        return PredecessorEffect(*(np.full(shape, np.nan) for _ in range(3)))
    if decoder.config.n_layers == 1 and decoder.config.mixer == "attention":
        # No layer before has told a key its predecessor.
        return PredecessorEffect(*(np.zeros(shape) for _ in range(3)))
    seen = torch.empty(len(decoder), shape[1], n, 2, 2, shape[2], dtype=torch.float64)
    groups = max(1, edits.tokens.shape[-1] // QUERIES_TOGETHER)
    for some in edits.query.argsort(stable=True).chunk(groups) if groups > 1 else [torch.arange(n)]:
        seen[:, :, some] = _attention_to_keys(decoder, edits.part(some, cut=groups > 1), elements)
    seen = rearrange(seen, "m layer b token before h -> m layer h b token before")
    moved = (seen[..., 0, 0] - seen[..., 0, 1] + seen[..., 1, 1] - seen[..., 1, 0]) / 2
    effect = moved.sum(-1) / edits.ideal.sum()
    off = moved - effect[..., None] * edits.ideal
    error = float(stdtrit(n - 1, 0.975)) * (off.square().sum(-1) * n / (n - 1)).sqrt() / edits.ideal.sum()
    return PredecessorEffect(effect.numpy(), (effect - error).numpy(), (effect + error).numpy())


def repeated_sequences(batch: Batch) -> Int[Tensor, "sequence known_position"]:
    """Random sequences whose second half repeats the first, made of a batch's states at their positions.

    States are shuffled over sequences, position by position, so that neighbours know nothing of each other.

    Args:
        batch: The sequences that states are taken from.

    Example:
        >>> import mechmarkov as mm
        >>> batch = mm.Subject.of(mm.example("induction"), sequences=8).batch
        >>> repeated = repeated_sequences(batch)
        >>> bool((repeated[:, 32:] == repeated[:, :32]).all())
        True
    """
    generator = torch.Generator().manual_seed(CHECK_SEED)
    n, real = batch.history.shape
    half = (real + 1) // 2
    order = torch.rand(n, half, generator=generator).argsort(0)[:REPEATED_SEQUENCES]
    states = batch.history.gather(0, order)
    return torch.cat([states, states], dim=1)[:, :real]


def repeated_score(
    decoder: HookedDecoder, batch: Batch, elements: int = CHUNK_ELEMENTS
) -> tuple[Float[np.ndarray, "member layer head"], float]:
    """TransformerLens' induction score on random sequences repeated once, less that of uniform attention.

    The share of attention on TransformerLens' induction detection pattern (what `detect_head` measures by
    default), at the positions that are read.

    Args:
        decoder: A stack.
        batch: The sequences that `repeated_sequences` is made of.
        elements: The number of elements of the largest activation of a forward pass.

    Returns:
        The score of each head less chance, and that chance: what uniform attention scores, exactly.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> score, chance = repeated_score(subject.decoder, subject.batch)
        >>> score.round(1).tolist(), round(chance, 3)
        ([[[0.0, 0.0], [0.5, 0.1]]], 0.351)
    """
    states = repeated_sequences(batch)
    tokens = batch.head(len(states)).with_history(states)
    seen = batch.visible(decoder.config.window)
    patterns = (get_induction_head_detection_pattern(one[None]).bool() for one in states)
    wanted = torch.stack([pattern[batch.known] & seen for pattern in patterns])
    uniform = 1 / (seen.sum(-1) + batch.extra_visible(decoder.config.window)).clamp_min(1)
    chance = float(np.mean([float((one.sum(-1) * uniform).double().mean()) for one in wanted]))

    def read(pattern: Tensor, part: slice) -> Tensor:
        rows, asked = pattern[..., batch.rows, batch.keys].flatten(-2), wanted[part].flatten(1)
        cells = asked.any(0).nonzero()[:, 0]  # a few of all
        on_pattern = einsum(rows[..., cells], asked[:, cells].to(rows.dtype), "m b h cell, b cell -> m b h")
        return on_pattern / len(batch.read)

    score = by_layer(decoder, tokens, read, elements).mean(2)
    return (score - chance).numpy(), chance
