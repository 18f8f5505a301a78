"""Find the embeddings: the sum that the first layer reads, of rows of tables or of what code makes."""

import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.importing.live.events import CLOSE, Attention, Linear, Lookup, Norm, Pass, normed_as, same
from mechmarkov.importing.live.forward_pass import passes
from mechmarkov.importing.live.inside import Inside
from mechmarkov.importing.live.name_table import NameTable, UnclearError

MAX_CELLS = 1 << 20  # tokens times positions, where embeddings are measured


def put_embeddings(one: Pass, table: NameTable) -> None:
    """Put the tables of tokens and positions; where these are not what the first layer reads, say so.

    Raises:
        UnclearError: Nothing is looked up by its tokens.
    """
    tokens, positions = ([x for x in one.of(Lookup) if x.of == kind] for kind in ("tokens", "positions"))
    if not tokens:
        raise UnclearError("nothing is looked up by its tokens")
    stream = first_stream(one)
    both = [*tokens[:1], *positions[:1]]
    weights = [lookup.weight for lookup in both]
    is_sum = len(tokens) == 1 and len(positions) < 2 and None not in weights
    if is_sum and stream is not None:
        shapes = [lookup.y.shape[-1] == stream.shape[-1] for lookup in both]
        lengths = [lookup.y.shape[-2] == stream.shape[1] for lookup in both]
        is_sum = all(shapes + lengths) and same(sum(x.y for x in both).expand_as(stream), stream)
    if not is_sum:
        sizes = [one.sizes[x.weight][x.transpose] if x.weight else x.y.shape[-1] for x in tokens]
        table.positions, table.d_vocab = "measured", max(sizes)
        table.n_positions = min((one.sizes[x.weight][0] for x in positions if x.weight), default=None)
        return
    if positions and weights[1] not in one.buffers:  # a table that is not trained may be far too long
        table.positions = "named"
    elif positions:
        table.positions = "fixed"
    for lookup, to in zip(both, ("embed.W_E", "pos_embed.W_pos"), strict=False):
        scale = None if lookup.scale == 1 else lookup.scale
        rows = [lookup.first, 1 << 20] if lookup.first else None
        table.put(str(lookup.weight), to, transpose=lookup.transpose, scale=scale, rows=rows)


def measured_embeddings(live: Inside, d_vocab: int, n_ctx: int) -> dict[str, Tensor]:
    """Measure what each token and each position adds to the first stream, whatever code makes it.

    A model of another sum disagrees with its conversion.

    Raises:
        UnclearError: Tokens times positions are too many, or no first stream is seen.
    """
    if d_vocab * n_ctx > MAX_CELLS:
        raise UnclearError(f"its embeddings are computed, of {d_vocab} tokens at {n_ctx} positions")
    tokens = torch.arange(d_vocab)[:, None].repeat(1, n_ctx)
    for one in passes(live.model, tokens, [d_vocab], drawn=False):
        stream = first_stream(one)
        if stream is not None:
            rows = [x.y for x in one.of(Lookup) if x.of == "tokens" and x.y.shape == stream.shape]
            of_tokens, of_positions = _split(stream, rows[0] if len(rows) == 1 else None)
            return {"embed.W_E": of_tokens.float().cpu(), "pos_embed.W_pos": of_positions.float().cpu()}
    raise UnclearError(f"its embeddings cannot be measured with {d_vocab} tokens at {n_ctx} positions")


def _split(
    stream: Float[Tensor, "token position d_model"], rows: Float[Tensor, "token position d_model"] | None
) -> tuple[Float[Tensor, "token d_model"], Float[Tensor, "position d_model"]]:
    """Returns what tokens and what positions add; of a coordinate of both, tokens add zero on average.

    Args:
        stream: Their sum.
        rows: What is looked up for tokens, if that is a part of the sum.
    """
    if rows is not None:
        return rows[:, 0], (stream - rows)[0]
    size = stream.abs().max()
    tells_token = ((stream - stream[:1]).abs() > CLOSE * size).flatten(0, 1).any(0)
    tells_position = ((stream - stream[:, :1]).abs() > CLOSE * size).flatten(0, 1).any(0)
    of_token_only = tells_token & ~tells_position  # of a token next to its position
    of_positions = stream.mean(0) * ~of_token_only
    return stream[:, 0] - of_positions[0], of_positions


def first_stream(one: Pass) -> Tensor | None:
    """Returns what the first layer reads, before its norm; None where that is not seen."""
    first = next((event for event in one.events if isinstance(event, Norm | Linear | Attention)), None)
    if first is None or first.x is None or (not isinstance(first, Norm) and normed_as(first.x)):
        return None
    return first.x
