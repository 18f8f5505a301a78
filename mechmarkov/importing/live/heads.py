"""Which products are queries, keys and values: told by the scores that attention makes of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor

from mechmarkov.importing.live.events import CLOSE, Linear, Norm
from mechmarkov.importing.live.name_table import UnclearError
from mechmarkov.importing.names.folding import cut
from mechmarkov.models import DecoderConfig
from mechmarkov.models.rotary import rotate, rotation

ZERO = 1e-9  # of the largest score: rounding in float64
HIDDEN = -1e4  # scores below this are of positions that a mask hides
ROLE = {"Q": ("q", "query", "queries"), "K": ("k", "key", "keys"), "V": ("v", "value", "values")}
BASES = (1e4, 5e5, 1e6)  # of rotations
ORDERS = [*permutations("QKV")]
Side = Float[Tensor, "batch position _"]  # of heads side by side: keys may have fewer than queries


@dataclass(frozen=True, eq=False)
class Line:
    """A product, which of queries (Q), keys (K) and values (V) it gives, and options of its line of names."""

    linear: Linear
    sides: tuple[str, ...]
    options: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a layer as they are read.

    Attributes:
        lines: Its products with the stream.
        fields: What the config says of them.
        z: What the heads give, side by side.
        norms: The norms of queries and of keys, where there are any.
        bias: What is added to scores, by lag, where anything is.
    """

    lines: list[Line]
    fields: dict[str, Any]
    z: Side
    norms: Sequence[Norm]
    bias: Float[Tensor, "head lag"] | None = None


def heads_of(
    linears: Sequence[Linear],
    norms: Sequence[Norm],
    scores: Float[Tensor, "batch head query key"],
    biased: bool = False,
) -> Heads | None:
    """Returns how a layer's heads are read; None where its scores are not scaled products of two of these.

    Args:
        linears: The products with the stream.
        norms: Norms between these and the scores.
        scores: Scores before the softmax.
        biased: Whether something is known to be added to scores by lag, in this layer or in another.

    Raises:
        UnclearError: Keys and values have different widths.
    """
    n_heads = scores.shape[1]
    for may_differ in (True,) if biased else (False, True):  # such scores may look like several
        for lines, of in _sides(linears, n_heads):
            queries, keys = _normed(of["Q"], of["K"], norms)
            how = _scaled_products(queries, keys, scores, may_differ)
            if how is None:
                continue
            fields, bias = how
            if len(linears) == 3 and of["V"].shape != keys.shape:
                widths = f"{of['V'].shape[-1]} numbers of values, but {keys.shape[-1]} of keys"
                raise UnclearError(f"heads have {widths}, where a HookedDecoder has as many of both")
            if keys.shape[-1] != queries.shape[-1]:
                fields["n_key_value_heads"] = keys.shape[-1] * n_heads // queries.shape[-1]
            fields |= {"n_heads": n_heads, **({"use_qk_norm": True} if norms else {})}
            d_head = of["V"].shape[-1] * queries.shape[-1] // keys.shape[-1] // n_heads
            return Heads(lines, fields, _means(scores, of["V"], d_head), norms, bias)
    return None


def _means(scores: Float[Tensor, "batch head query key"], values: Side, d_head: int) -> Side:
    """Returns what heads give, side by side."""
    before = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    weights = scores.masked_fill(~before, -torch.inf).softmax(-1).to(values)
    of_groups = rearrange(values, "b t (g d) -> b g t d", d=d_head)
    of_heads = repeat(of_groups, "b g t d -> b (g n) t d", n=scores.shape[1] // of_groups.shape[1])
    return rearrange(weights @ of_heads, "b h t d -> b t (h d)")


def _sides(linears: Sequence[Linear], n_heads: int) -> Iterator[tuple[list[Line], dict[str, Side]]]:
    """Yields which products may be queries, keys and values; the likeliest first.

    Args:
        linears: Products that read the same: one for all three, two, three, or three a head.
        n_heads: How many heads the scores have.

    Yields:
        A line of names for each product; and what it gives to the sides "Q", "K" and "V", `[batch, position,
        head d_head]`.
    """
    stream = linears[0].x.flatten(2)
    if len(linears) == 3:
        by_name = _by_name(linears)
        for order in dict.fromkeys((by_name, *ORDERS) if by_name else ORDERS):
            lines = [Line(linear, (side,), {}) for side, linear in zip(order, linears, strict=True)]
            yield lines, {side: linear.y for side, linear in zip(order, linears, strict=True)}
    elif len(linears) == 3 * n_heads:
        head_by_head = [linears[i::3] for i in range(3)]
        side_by_side = [linears[i * n_heads : (i + 1) * n_heads] for i in range(3)]
        for order in ORDERS:
            for grid in (head_by_head, side_by_side):
                own = dict(zip(order, grid, strict=True))
                yield (
                    [
                        Line(x, (side,), {"head": str(number)})
                        for side, all_heads in own.items()
                        for number, x in enumerate(all_heads)
                    ],
                    {side: torch.cat([x.y for x in all_heads], -1) for side, all_heads in own.items()},
                )
    if len(linears) == 1:
        yield from _in_one(linears[0], n_heads)
    if len(linears) == 2:
        for one, both in (linears, linears[::-1]):
            for pair, split in product((("K", "V"), ("V", "K")), ("parts", "heads")):
                if both.y.shape[-1] % (2 * n_heads) == 0:
                    lines = [Line(one, ("Q",), {}), Line(both, pair, {"split": split})]
                    yield lines, {"Q": one.y, **_cut(both, pair, split, {"n_heads": n_heads})}
    if len(linears) < 3 and n_heads == 1:  # one matrix between tokens; values may be the stream itself
        for one in linears:
            values = next((other for other in linears if other is not one), None)
            lines = [Line(one, ("Q",), {})] + ([] if values is None else [Line(values, ("V",), {})])
            if one.y.shape == stream.shape:
                yield lines, {"Q": one.y, "K": stream, "V": stream if values is None else values.y}


def _in_one(whole: Linear, n_heads: int) -> Iterator[tuple[list[Line], dict[str, Side]]]:
    """Yields how one product may hold all three; heads of keys and values may be fewer than of queries."""
    for shared in [n for n in range(n_heads, 0, -1) if n_heads % n == 0]:
        if whole.y.shape[-1] % (n_heads + 2 * shared):
            continue
        given = {"n_heads": n_heads} | ({} if shared == n_heads else {"n_key_value_heads": shared})
        for order in ORDERS:
            for split in ("parts", "heads", "interleaved"):
                yield [Line(whole, order, {"split": split})], _cut(whole, order, split, given)


def _by_name(linears: Sequence[Linear]) -> tuple[str, ...] | None:
    """Returns which product is queries, keys and values, where their names say it."""
    sides = list[str]()
    for linear in linears:
        parts = linear.weight.removesuffix(".weight").split(".")[-1].lower().split("_")
        sides += [side for side, words in ROLE.items() if any(x in words or x[1:] in words for x in parts)]
    return tuple(sides) if sorted(sides) == ["K", "Q", "V"] else None


def _cut(whole: Linear, order: Sequence[str], split: str, given: dict[str, Any]) -> dict[str, Side]:
    targets = [f"blocks.0.attn.W_{side}" for side in order]
    return dict(zip(order, cut(whole.weight, whole.y, split, targets, given), strict=True))


def _normed(queries: Side, keys: Side, norms: Sequence[Norm]) -> tuple[Side, Side]:
    """Returns what norms of queries and keys, in this order, give; queries and keys where there are none."""
    if len(norms) != 2:
        return queries, keys
    of_queries, of_keys = (norm.y.flatten(2) for norm in norms)
    fits = (of_queries.shape, of_keys.shape) == (queries.shape, keys.shape)
    return (of_queries, of_keys) if fits else (queries, keys)


def _scaled_products(
    queries: Side, keys: Side, scores: Float[Tensor, "batch head query key"], may_differ: bool
) -> tuple[dict[str, Any], Tensor | None] | None:
    """Returns how scores are made of queries and keys, as fields of a config, and what is added by lag.

    Args:
        queries: Queries.
        keys: Keys, of as many heads or fewer.
        scores: The scores.
        may_differ: Whether something may be added by lag; else they may be rotated.

    Returns:
        None where they are not made of these.
    """
    n_heads = scores.shape[1]
    d_head, rest = divmod(queries.shape[-1], n_heads)
    if d_head == 0 or rest or keys.shape[-1] % d_head or n_heads % (keys.shape[-1] // d_head):
        return None
    q, k = (rearrange(x, "b t (h d) -> b t h d", d=d_head) for x in (queries, keys))
    before = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    visible = before & scores.isfinite() & (scores > HIDDEN)
    if not visible.any():
        return None
    window = _window(before & ~visible.flatten(0, 1).any(0))
    for one, other, fields in [(q, k, {})] if may_differ else _turned(q, k):
        other = repeat(other, "b t g d -> b t (g n) d", n=n_heads // other.shape[2])
        ours = torch.einsum("bqhd,bkhd->bhqk", one, other)
        theirs = scores.to(ours).masked_fill(~visible, 0)
        ours = ours.masked_fill(~visible, 0)
        mean_ours, mean_theirs = (
            _by_lag(x, visible) if may_differ else x.new_zeros(()) for x in (ours, theirs)
        )
        left, right = ((ours - mean_ours) * visible, (theirs - mean_theirs) * visible)
        if not may_differ and bool((visible.sum(-1) > 1).any()):  # a softmax does not see what it adds to all
            left, right = (_centred(x, visible) for x in (left, right))
        scale = float((left * right).sum() / left.square().sum())
        if not (scale > 0 and bool((scale * left - right).abs().max() <= CLOSE * theirs.abs().max())):
            continue
        bias = (mean_theirs - scale * mean_ours)[0, :, -1].flip(-1) if may_differ else None
        if bias is not None and bool((bias.abs() <= ZERO * theirs.abs().max()).all()):
            bias = None
        return {**fields, **_scale(scale, d_head), **window}, bias
    return None


def _centred(x: Tensor, visible: Bool[Tensor, "batch head query key"]) -> Tensor:
    """Returns scores less the mean of what each query sees."""
    return (x - x.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)) * visible


def _by_lag(
    scores: Float[Tensor, "batch head query key"], visible: Bool[Tensor, "batch head query key"]
) -> Float[Tensor, "1 head query key"]:
    """Returns the mean score of each head and lag, at each query and key."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    lags = (places[:, None] - places).clamp_min(0)
    zeros = scores.new_zeros(scores.shape[1], len(places))
    where = lags.expand_as(scores[0]).flatten(1)
    total = zeros.scatter_add(1, where, (scores * visible).sum(0).flatten(1))
    count = zeros.scatter_add(1, where, visible.to(scores).sum(0).flatten(1))
    return (total / count.clamp_min(1)).gather(1, where).view_as(scores[0])[None]


def _window(hidden: Bool[Tensor, "query key"]) -> dict[str, Any]:
    """Returns the field that says how far back queries see, where they do not see all that is before them."""
    query, key = hidden.nonzero(as_tuple=True)
    return {"window": int((query - key).min()) - 1} if len(query) else {}


Rotated = Float[Tensor, "batch position _ d_head"]


def _turned(q: Rotated, k: Rotated) -> Iterator[tuple[Rotated, Rotated, dict[str, Any]]]:
    """Yields queries and keys as they are, then rotated by their positions in the ways that are in use."""
    yield q, k, {}
    d_head = q.shape[-1]
    for turned, base, adjacent in product(_widths(d_head), BASES, (False, True)):
        config = _rotary(d_head, q.shape[1], turned, base, adjacent)
        sin, cos = rotation(config, q.shape[1], q)
        fields = {"positional_embedding_type": "rotary", "rotary_adjacent_pairs": adjacent}
        fields |= {} if turned == d_head else {"rotary_dim": turned}
        fields |= {} if base == BASES[0] else {"rotary_base": base}
        yield rotate(q, sin, cos, config), rotate(k, sin, cos, config), fields


@lru_cache(maxsize=256)
def _rotary(d_head: int, length: int, turned: int, base: float, adjacent: bool) -> DecoderConfig:
    return DecoderConfig(
        n_layers=1,
        d_model=d_head,
        n_ctx=length,
        d_head=d_head,
        d_vocab=2,
        positional_embedding_type="rotary",
        rotary_dim=turned,
        rotary_base=base,
        rotary_adjacent_pairs=adjacent,
    )


def _widths(d_head: int) -> list[int]:
    """Returns how many coordinates of a head may be rotated: all, a half, a quarter."""
    return [width for width in dict.fromkeys((d_head, d_head // 2, d_head // 4)) if width and width % 2 == 0]


def _scale(scale: float, d_head: int) -> dict[str, Any]:
    """Returns the fields that say what scores are multiplied by."""
    if abs(scale - 1) <= CLOSE:
        return {"use_attn_scale": False}
    return {} if abs(scale * d_head**0.5 - 1) <= CLOSE else {"attn_scale": round(1 / scale, 5)}
