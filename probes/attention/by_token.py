"""What tokens say of attention: the QK table of the weights, and what tokens explain of the logits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from mechmarkov.claims.claim import Claim, Condition
from mechmarkov.models.components import norms_between
from mechmarkov.models.decoder import activations
from mechmarkov.probing.dataset import best_heads, head_name
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.subject import Subject
from mechmarkov.report.figures import heatmap

SEQUENCES = 16
PAIRS = 1 << 18  # of query and key, over all models, layers and heads of a pass

# Rows and cells are centred in turn: what one takes the other puts back, less each time.
ROUNDS = 6

# A head looks by tokens if these explain more than this share of the variance of its logits.
MIN_VARIANCE_SHARE = 0.5
# Logits that vary by less leave attention nearly uniform: what explains them does not matter.
MIN_LOGIT_SPREAD = 0.5
ALIKE = np.log(2)  # of two logits: one key gets less than twice what the other gets


@torch.no_grad()
def qk_tables(subject: Subject) -> Float[np.ndarray, "member layer head state_from state_to"]:
    """Attention logits only by the embeddings: `(W_E W_Q + b_Q) (W_E W_K + b_K)^T / scale`.

    The QK circuit of Elhage et al. (2021), without what positions and earlier layers add; norms take each
    embedding as it is. Rows are the query's token, columns the key's; each row less its mean, which a softmax
    does not see. NaN for layers whose attention weights are not a softmax of products.

    Example:
        >>> import mechmarkov as mm
        >>> qk_tables(mm.Subject.of(mm.example("walk"), sequences=8)).shape
        (1, 1, 1, 6, 6)
    """
    decoder, n = subject.decoder, subject.source.n_states
    config = subject.config
    tables = np.full((len(decoder), config.n_layers, config.n_heads, n, n), np.nan)
    blocks: list[Any] = list(decoder.blocks)
    for layer, block in enumerate(blocks):
        if not (block.attn.has_attention_weights and block.attn.is_linear):
            continue
        read = decoder.embed.W_E[:, :n]
        for norm in norms_between(config, "embed", head_name({"layer": layer, "head": 0})):
            read = decoder.get_submodule(norm)(read)
        read = block.ln1(read) if config.norm_first else read
        q, k = (block.attn.read_by(side, read) for side in "QK")
        scores = (q @ k.mT / config.score_scale).double().numpy()
        tables[:, layer] = scores - scores.mean(-1, keepdims=True)
    return tables


@torch.no_grad()
def explained_by_tokens(
    subject: Subject,
) -> tuple[
    Float[np.ndarray, "member layer head state_from state_to"], Float[np.ndarray, "member layer head"]
]:
    """The table of query and key tokens that fits each head's attention logits best, and its share.

    Least squares over the recorded pairs of a query and a key: the table's entry is the mean logit of a pair.

    Returns:
        `token_scores` (score units), NaN for pairs never seen, and the share of the variance of a query's
        logits over its keys that the table explains; NaN where logits do not vary.

    Example:
        >>> import mechmarkov as mm
        >>> table, share = explained_by_tokens(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> table.shape, share.shape
        ((1, 1, 1, 6, 6), (1, 1, 1))
    """
    decoder, config, n = subject.decoder, subject.config, subject.source.n_states
    length = subject.batch.tokens.shape[1]
    count = max(2, min(SEQUENCES, PAIRS // (len(decoder) * config.n_layers * config.n_heads * length)))
    batch = subject.batch.head(count)
    shape = (len(decoder), config.n_layers, config.n_heads)
    table, share = np.full((*shape, n, n), np.nan), np.full(shape, np.nan)
    allowed = batch.visible(config.window)
    query = batch.history[:, batch.known]
    key = one_hot(batch.history, n).double()
    blocks: list[Any] = list(decoder.blocks)
    layers = [i for i, block in enumerate(blocks) if block.attn.has_attention_weights]
    names = {f"blocks.{i}.attn.hook_attn_scores": i for i in layers}
    for member in range(len(decoder)):
        model = decoder[member]
        sums: list[list[Tensor]] = []  # of each sequence: of all at once the scores would be much memory
        for one, states in zip(batch.tokens, key, strict=True):
            seen = activations(model, one[None], names)
            scores = torch.stack([seen[name][0] for name in names])[:, :, batch.read, batch.keys].double()
            scores = scores.masked_fill_(~allowed, 0)
            sums.append([scores.square().sum((-2, -1)), scores @ states])
        square, total = (torch.stack(some) for some in zip(*sums, strict=True))
        for place, layer in enumerate(layers):
            for head in range(config.n_heads):
                at = (member, layer, head)
                table[at], share[at] = _fit(
                    float(square[:, place, head].sum()), total[:, place, head], query, key, allowed
                )
    return table, share


def _fit(
    square: float,
    total: Float[Tensor, "batch read state"],
    query: Int[Tensor, "batch read"],
    key: Float[Tensor, "batch key state"],
    allowed: Bool[Tensor, "read key"],
) -> tuple[Float[np.ndarray, "state_from state_to"], float]:
    """The table of one head and its share.

    Args:
        square: The sum of the squares of its logits.
        total: The sum of a query's logits over the keys of each token.
        query: Tokens at the queries.
        key: Tokens at the keys, one-hot.
        allowed: Which keys a query may attend to.
    """
    n = key.shape[-1]
    count = allowed.double() @ key  # [batch, read, state of the key]
    keys = count.sum(-1, keepdim=True).clamp_min(1)
    row = total.sum(-1, keepdim=True) / keys  # a query's own mean, which a softmax does not see
    whole = square - float((row.square() * keys).sum())
    of_state = one_hot(query, n).double().flatten(0, 1).T
    pairs = of_state @ count.flatten(0, 1)
    table = torch.zeros(n, n, dtype=torch.float64)
    for _ in range(ROUNDS):
        table += of_state @ (total - count * (table[query] + row)).flatten(0, 1) / pairs.clamp_min(1)
        row = (total - count * table[query]).sum(-1, keepdim=True) / keys
    fit = table[query] + row
    left = square + float((fit * (count * fit - 2 * total)).sum())
    cells = table.masked_fill(pairs == 0, torch.nan).numpy()
    return cells, 1 - left / whole if whole > 1e-10 * square else np.nan


def by_token(last: xr.Dataset, heads: list[dict[str, int]]) -> Iterator[Claim]:
    """A claim for each head whose attention the tokens of query and key explain, and one for each query.

    Args:
        last: What `measure` returned, of one model: `data.isel(step=-1)`.
        heads: The heads to judge, such as `{"layer": 0, "head": 1}`.
    """
    labels = [str(label) for label in last.attrs["labels"]]
    for head in heads:
        one, name = last.isel(head), (head_name(head),)
        share, table = float(one["token_pair_share"]), one["token_scores"].values
        if not share > MIN_VARIANCE_SHARE or np.nanstd(table) < MIN_LOGIT_SPREAD:
            continue
        most = tuple(
            Condition("most attended after", words=(labels[i], *_most_attended(row, labels)))
            for i, row in enumerate(table)
            if np.isfinite(row).any()
        )
        yield Claim(name, "attends_by", ("tokens",), share, unit="share of variance", because=most)


def _most_attended(logits: Float[np.ndarray, " state"], labels: list[str]) -> tuple[str, ...]:
    """The key tokens of one query token that get the most attention, or nearly; empty where all do."""
    alike = np.flatnonzero(logits > np.nanmax(logits) - ALIKE)
    if len(alike) == np.isfinite(logits).sum() > 1:
        return ()
    return tuple(labels[j] for j in alike)


def token_figure(last: xr.Dataset) -> list[Figure]:
    """The token table of the head whose logits tokens explain best, if they explain most of them."""
    best = best_heads(last["token_pair_share"])
    if not last["token_pair_share"].isel(best) > MIN_VARIANCE_SHARE:
        return []
    table = np.nan_to_num(last["token_scores"].isel(best).values)
    labels = [str(label) for label in last.attrs["labels"]]
    figure = heatmap(
        table,
        labels,
        labels,
        row_title="query token",
        column_title="key token",
        value_title="logit",
        diverging=True,
    )
    caption = "Attention logits by the tokens of query (rows) and key (columns), as they fit best."
    return [Figure(f"Which token {head_name(best)} looks for", caption, "plotly", figure, key="token table")]
