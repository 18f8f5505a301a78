"""One weight in HookedTransformer's order of axes: turned, cut into those it holds, folded by heads."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from einops import EinopsError, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.importing.names.table import Line
from mechmarkov.models.config import MAX_LENGTH, STATE_SPACES
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import quoted, shown

# Of matrices `[d_in, d_out]`, the axis that is `d_model`; None where neither is.
LINEAR: dict[str, int | None] = {
    **dict.fromkeys(("W_Q", "W_K", "W_V", "W_in", "W_gate", "W_U", "W_G", "W_dt"), 0),
    **dict.fromkeys(("W_O", "W_out"), 1),
    **dict.fromkeys(("W_dt_in", "W_dt_out", "W_B", "W_C"), None),
}
MATRIX, BIAS = "d_in (head d_head) -> head d_in d_head", "(head d_head) -> head d_head"
# Axes of a weight of all heads in one, and how these get an axis of their own.
Folds = Mapping[str, tuple[int, str]]
ATTENTION: Folds = {
    **dict.fromkeys(("W_Q", "W_K", "W_V"), (2, MATRIX)),
    **dict.fromkeys(("b_Q", "b_K", "b_V"), (1, BIAS)),
    "W_O": (2, "(head d_head) d_out -> head d_head d_out"),
    "W_rel": (2, "lag (head d_head) -> head lag d_head"),
}
STATE_SPACE: Folds = {
    **ATTENTION,
    "W_G": (2, MATRIX),
    "b_G": (1, BIAS),
    **dict.fromkeys(("conv_Q", "conv_K", "conv_V"), (3, "(head d_head) 1 window -> head d_head window")),
    **dict.fromkeys(("b_conv_Q", "b_conv_K", "b_conv_V"), (1, BIAS)),
}
ONE_DECAY_A_HEAD: Folds = {"W_dt": (2, MATRIX), "b_dt": (1, BIAS), "A_log": (1, BIAS), "w": (1, BIAS)}
FOLDS: dict[str, Folds] = {
    "attention": ATTENTION,
    "mamba": {**STATE_SPACE, **ONE_DECAY_A_HEAD},
    "mamba1": STATE_SPACE,
}
# Axes of weights that have no heads: what has more, such as `[1, n_ctx, d_model]`, loses those of length 1.
AXES = {
    **dict.fromkeys(("W_E", "W_pos", "W_in", "W_gate", "W_out", "W_U"), 2),
    **dict.fromkeys(("b_O", "b_in", "b_out", "b_U", "b"), 1),
}


def by_lag(name: str, value: Tensor, line: Line, given: Mapping[str, Any]) -> Float[Tensor, "head lag"]:
    """Returns `b_rel` of a weight or buffer, by what its line says of it and by its shape.

    It may be `[head, lag]` or `[lag, head]`, `[lag]` for all heads, or `[head, query, key]`. With `slopes` it
    is `[head]`, with `buckets` `[bucket, head]`. Axes of length 1 count only where nothing else fits.

    Args:
        name: Its own name, for messages.
        value: The weight, or a tensor without memory.
        line: What the table says of it.
        given: Fields of the config: `n_heads`, and `n_ctx` where the weight does not tell it.

    Raises:
        RunFileError: Naming the weight and what was expected.

    Example:
        >>> by_lag("m", torch.tensor([1.0, 0.5]), Line("m", (), slopes=True), {"n_heads": 2, "n_ctx": 3})
        tensor([[-0.0000, -1.0000, -2.0000],
                [-0.0000, -0.5000, -1.0000]])
    """
    heads = given.get("n_heads")
    if heads is None:
        raise RunFileError(f"{quoted(name)} is of heads: say how many, n_heads=2")
    if line.slopes or line.buckets:
        n_ctx = given.get("n_ctx")
        if type(n_ctx) is not int or not 1 <= n_ctx <= MAX_LENGTH:
            raise RunFileError(f"n_ctx is {shown(n_ctx)}, expected how many lags {quoted(name)} stands for")
        lag = torch.arange(n_ctx, device=value.device)
        if line.slopes:
            return -_of_heads(name, value.flatten(), heads, "a slope a head")[:, None] * lag
        n_buckets = len(_of_heads(name, value.mT, heads, "[bucket, head]").mT)
        if not (line.buckets or 0) > n_buckets // 2 > 0:
            raise RunFileError(
                f"buckets is {line.buckets} for {n_buckets} of them, expected more than half as many"
            )
        return value[buckets(n_ctx, n_buckets, line.buckets or 0).to(value.device)].mT
    value = value if value.ndim < 3 else value.squeeze()
    if value.ndim == 1:
        return value.expand(heads, -1)
    if value.ndim == 2 and value.shape[0] == value.shape[1] and heads == 1:
        value = value[None]
    if value.ndim == 3:
        return _of_pairs(name, value)
    turn = line.transpose is None and value.shape[0] != heads == value.shape[-1]
    return value.mT if turn else value


def buckets(n_lags: int, n_buckets: int, farthest: int) -> Int[Tensor, " lag"]:
    """Returns the bucket of each lag: one for each of the first half, then ever wider ones (T5).

    Raffel et al. 2020 (arXiv 1910.10683), causal, as transformers and x-transformers have it.

    Args:
        n_lags: How many lags; 0 is the query's own position.
        n_buckets: How many buckets.
        farthest: The lag from which all share the last bucket.

    Example:
        >>> buckets(10, n_buckets=4, farthest=8).tolist()
        [0, 1, 2, 2, 3, 3, 3, 3, 3, 3]
    """
    exact, lag = n_buckets // 2, torch.arange(n_lags)
    # In float32, as theirs: at a bucket's end another precision may round to the next.
    ratio = torch.log(lag.clamp_min(1).float() / exact) / math.log(farthest / exact)
    wide = exact + (ratio * (n_buckets - exact)).long()
    return torch.where(lag < exact, lag, wide.clamp(max=n_buckets - 1))


def _of_heads(name: str, value: Tensor, heads: int, words: str) -> Tensor:
    if value.ndim == 0 or value.ndim > 2 or len(value) != heads:
        raise RunFileError(
            f"{quoted(name)} has shape {list(value.shape)}, expected {words} for {heads} heads"
        )
    return value


def _of_pairs(name: str, value: Float[Tensor, "head query key"]) -> Float[Tensor, "head lag"]:
    """The last query's numbers, by lag, where each other query has the same."""
    n = value.shape[-1]
    if value.shape[-2] != n:
        raise RunFileError(f"{quoted(name)} has shape {list(value.shape)}, expected a number a head and lag")
    of_last = value[:, -1].flip(-1)
    if not value.is_meta:
        position = torch.arange(n, device=value.device)
        lag = position[:, None] - position
        seen = lag >= 0
        other = (value - of_last[:, lag.clamp_min(0)])[:, seen].abs().max()
        if not other <= 1e-4 * of_last.abs().max():
            raise RunFileError(
                f"{quoted(name)} differs by {shown(float(other))} among pairs of one lag, expected one number"
            )
    return of_last


def kind_of(target: str) -> str:
    """Returns the last part of a weight's name, without the mark of what groups of heads share.

    Example:
        >>> kind_of("blocks.0.attn._W_K")
        'W_K'
    """
    return target.rpartition(".")[2].removeprefix("_")


def unmarked(name: str) -> str:
    """Returns a name of HookedTransformer's as people write it, `W_K` where the parameter is `_W_K`.

    Example:
        >>> unmarked("blocks.0.attn._W_K")
        'blocks.0.attn.W_K'
    """
    return f"{name.rpartition('.')[0]}.{kind_of(name)}"


def stored(target: str, given: Mapping[str, Any]) -> str:
    """Returns the name of the parameter: what groups of heads share is marked, `_W_K` for `W_K`.

    Args:
        target: The name as people write it.
        given: Fields of the config; `n_key_value_heads`, or of a state space `n_groups`, say what is shared.

    Example:
        >>> stored("blocks.0.attn.W_K", {"n_heads": 4, "n_key_value_heads": 2})
        'blocks.0.attn._W_K'
    """
    kind = kind_of(target)
    shared = ("W_Q", "b_Q", "W_K", "b_K") if _is_state_space(given) else ("W_K", "b_K", "W_V", "b_V")
    is_grouped = given.get("n_key_value_heads") is not None and not _is_state_space(given)
    marked = kind in shared and (is_grouped or _heads_of(kind, given) != given.get("n_heads"))
    return f"{target.rpartition('.')[0]}._{kind}" if marked else target


def parts(
    name: str, value: Tensor, line: Line, targets: list[str], width: int | None, given: Mapping[str, Any]
) -> tuple[dict[str, Tensor], bool]:
    """Turn, cut and fold one weight into those of HookedTransformer's that it holds.

    Args:
        name: Its own name.
        value: The weight.
        line: What the table says of it.
        targets: HookedTransformer's names.
        width: The size `d_model`, where it is known.
        given: Fields of the config, `n_heads` among them.

    Returns:
        Its parts by HookedTransformer's names, and whether only its name told the order of its axes.

    Raises:
        RunFileError: Naming the weight, its shape and what was expected.

    Example:
        >>> import torch
        >>> line = Line("qkv", ("W_Q", "W_K", "W_V"), split="parts")
        >>> names = [f"blocks.0.attn.{side}" for side in line.to]
        >>> made, _ = parts("qkv.weight", torch.ones(12, 4), line, names, 4, {"n_heads": 2})
        >>> {name: tuple(part.shape) for name, part in made.items()}["blocks.0.attn.W_Q"]
        (2, 4, 2)
    """
    if value.ndim == 0 and (line.rows or line.split):
        raise RunFileError(f"names: {quoted(name)} is one number, expected a weight with axes")
    if line.axes is not None:
        if value.ndim != 3:
            raise RunFileError(f"names: {quoted(name)} has {value.ndim} axes, expected 3 for axes")
        value = value.permute(*line.axes)
    if line.rows is not None:
        value = value[slice(*line.rows)]
    if line.scale != 1 or line.add:
        value = value * line.scale + line.add
    turned = {target: _turned(name, value, line.transpose, target, width) for target in targets}
    by_name = any(guessed for _, guessed in turned.values())
    whole = {target: part for target, (part, _) in turned.items()}
    if line.split is not None:
        whole = dict(zip(targets, cut(name, whole[targets[0]], line.split, targets, given), strict=True))
    if line.head is None:
        whole = {
            target: by_lag(name, part, line, given)
            if kind_of(target) == "b_rel"
            else _folded(name, part, target, given)
            for target, part in whole.items()
        }
    return {stored(target, given): part for target, part in whole.items()}, by_name


def _turned(
    name: str, value: Tensor, transpose: bool | None, target: str, width: int | None
) -> tuple[Tensor, bool]:
    """A weight as `[d_in, d_out]`, and whether only its name tells that."""
    kind, guessed = kind_of(target), False
    if value.ndim > AXES.get(kind, value.ndim):
        value = value.squeeze()
    if value.ndim == 2 and transpose is None and kind in LINEAR:
        fits = [LINEAR[kind] is not None and size == width for size in value.shape]
        as_it_is, exchanged = fits[:: -1 if LINEAR[kind] else 1]
        guessed = as_it_is == exchanged
        transpose = name.endswith("weight") if guessed else exchanged
        guessed = guessed and value.shape[0] == value.shape[1]
    return (value.mT if transpose and value.ndim > 1 else value), guessed


def _is_state_space(given: Mapping[str, Any]) -> bool:
    return given.get("mixer") in STATE_SPACES


def _heads_of(kind: str, given: Mapping[str, Any]) -> int | None:
    """Returns how many heads, or groups of them, a weight has."""
    n_heads = given.get("n_heads")
    if not _is_state_space(given):
        shared = given.get("n_key_value_heads")
        return shared if shared is not None and kind[-2:] in ("_K", "_V") else n_heads
    groups = given.get("n_groups", n_heads if given["mixer"] == "mamba1" else 1)
    return groups if kind[-2:] in ("_Q", "_K") else n_heads


def _columns(kind: str, given: Mapping[str, Any]) -> int | None:
    """Returns how many columns a weight has among several in one: of attention in units of `d_head`."""
    heads = _heads_of(kind, given)
    if not _is_state_space(given) or heads is None:
        return heads
    side = kind.partition("_")[2].removeprefix("conv_")
    per_head = {"dt": 1, "V": given.get("d_head", 1), "G": given.get("d_head", 1)}
    whole = {"dt_in": given.get("dt_rank"), "B": given.get("d_state"), "C": given.get("d_state")}
    return whole[side] if side in whole else heads * per_head.get(side, given.get("d_state") or 1)


def cut(name: str, value: Tensor, split: str, targets: list[str], given: Mapping[str, Any]) -> list[Tensor]:
    """A weight that holds several in its columns (in its channels, of a convolution)."""
    sizes = [_columns(kind_of(target), given) for target in targets]
    if split != "heads" and len(set(sizes)) == 1:
        sizes = [1] * len(targets)
    known = [size for size in sizes if size]
    if len(known) < len(sizes):
        raise _heads_wanted(name, value)
    axis = 0 if "conv_" in kind_of(targets[0]) else -1
    columns, total = value.shape[axis], sum(known)
    if columns % total:
        raise RunFileError(
            f"names: {quoted(name)} has {columns} columns, expected a multiple of {total} for {len(known)}"
        )
    groups = {"parts": 1, "heads": min(known), "interleaved": columns // total * min(known)}[split]
    blocks = value.movedim(axis, -1).unflatten(-1, (groups, -1))
    cut = blocks.split([columns // total * size // groups for size in known], -1)
    return [block.flatten(-2).movedim(-1, axis) for block in cut]


def _folded(name: str, value: Tensor, target: str, given: Mapping[str, Any]) -> Tensor:
    """A weight of all heads with an axis of heads."""
    kind = kind_of(target)
    axes, pattern = FOLDS.get(given.get("mixer", "attention"), ATTENTION).get(kind, (-1, ""))
    if value.ndim != axes or ".attn." not in target:
        return value
    heads = _heads_of(kind, given)
    if heads is None:
        raise _heads_wanted(name, value)
    try:
        return rearrange(value, pattern, head=heads)
    except (EinopsError, TypeError):
        raise RunFileError(
            f"n_heads is {shown(heads)}, expected a divisor: {quoted(name)} has shape {list(value.shape)}"
        ) from None


def _heads_wanted(name: str, value: Tensor) -> RunFileError:
    """Returns what is said where nothing tells how many heads a weight holds."""
    return RunFileError(
        f"{quoted(name)} has shape {list(value.shape)}, all heads in one: say how many, "
        'given={"n_heads": 2} or --set n_heads=2 (of a state space d_head, d_state and dt_rank too)'
    )
