"""Weights by HookedTransformer's names: each turned, cut and folded as a table says."""

import re
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import EinopsError, rearrange
from torch import Tensor

from mechmarkov.importing.names.table import Line, Table
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, counted, printable, quoted, shown

PAGE = "https://github.com/mechmarkov/mechmarkov/blob/main/docs/my-model-has-names-of-its-own.md"
WANTED = (
    "embed.W_E, pos_embed.W_pos, blocks.N.ln1.w (b), blocks.N.attn.W_Q (W_K, W_V, W_O, b_Q, b_K, b_V, b_O), "
    "blocks.N.ln2.w (b), blocks.N.mlp.W_in (b_in, W_out, b_out), ln_final.w (b), unembed.W_U (b_U)"
)
NAMES_SHOWN = 14
# The axis that is `d_model`, of `[d_in, d_out]`.
LINEAR = {"W_Q": 0, "W_K": 0, "W_V": 0, "W_O": 1, "W_in": 0, "W_gate": 0, "W_out": 1, "W_U": 0}
FOLDS = {
    **dict.fromkeys(("W_Q", "W_K", "W_V"), (2, "d_in (head d_head) -> head d_in d_head")),
    **dict.fromkeys(("b_Q", "b_K", "b_V"), (1, "(head d_head) -> head d_head")),
    "W_O": (2, "(head d_head) d_out -> head d_head d_out"),
}
AXES = {
    **dict.fromkeys(("W_E", "W_pos", *LINEAR), 2),
    **dict.fromkeys(("b_O", "b_in", "b_out", "b_U", "b"), 1),
}
OURS = re.compile(
    r"embed\.W_E|pos_embed\.W_pos|ln_final\.[wb]|unembed\.[Wb]_U|"
    r"blocks\.\d+\.(ln[12]\.[wb]|mlp\.(W_in|W_gate|W_out|b_in|b_out)|attn\.(_?[Wb]_[QKVO]|W_rel|[qk]_norm\.w|"
    r"[Wb]_G|[Wb]_dt|W_dt_in|W_dt_out|W_B|W_C|A_log|D|w|(b_)?conv_[QKV]))"  # the last of state spaces
)


@dataclass
class Renamed:
    """Weights by HookedTransformer's names.

    Attributes:
        states: The weights.
        origin: The model's own names of each.
        by_name: Names of square weights whose order only their name tells: `[d_out, d_in]` for `weight`.
    """

    states: dict[str, Tensor] = field(default_factory=dict)
    origin: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    by_name: list[str] = field(default_factory=list)


def renamed(
    weights: Mapping[str, Tensor], table: Table, given: Mapping[str, Any], optional: Container[str] = ()
) -> Renamed:
    """Weights by HookedTransformer's names, in its order of axes.

    A weight that no line matches keeps its name where that is one of HookedTransformer's.

    Args:
        weights: By their own names.
        table: Which is which.
        given: Fields of the config; `n_heads` and `n_key_value_heads` fold matrices of two axes.
        optional: Weights that no line need name.

    Raises:
        RunFileError: One line that names a weight without a line, two for one, or one that does not fit.
    """
    found = Renamed()
    given = {"n_heads": _counted_heads(weights, table), **given}
    heads: dict[str, dict[int, Tensor]] = defaultdict(dict)
    unnamed = []
    width = _width(weights, table)
    for name, value in weights.items():
        entry = table.of(name)
        if entry is None:
            if OURS.fullmatch(name):
                _put(found, name, value, name)
            elif name not in optional:
                unnamed.append(name)
            continue
        line, match = entry
        targets = [_expanded(match, text, line) for text in line.to]
        for target, part in _parts(name, value, line, targets, width, given, found).items():
            if line.head is None:
                _put(found, target, part, name)
            else:
                _put_head(heads[target], _expanded(match, line.head, line), part, name)
                found.origin[target].append(name)
    if unnamed:
        raise nothing_fits(unnamed, f"the table of names has no line for {quoted(unnamed[0])}")
    for target, parts in heads.items():
        if sorted(parts) != list(range(len(parts))) or len({part.shape for part in parts.values()}) > 1:
            raise RunFileError(
                f"names: {target} has the heads {sorted(parts)}, expected 0, 1, … of one shape"
            )
        stacked = torch.stack([parts[index] for index in range(len(parts))])
        if target in found.states:
            raise _twice(target, found.origin[target])
        found.states[target] = stacked
    return found


def nothing_fits(weights: Mapping[str, Any] | list[str], begin: str) -> RunFileError:
    """Returns what is said of weights of unknown meaning: their names beside those that are wanted."""
    stems = list(dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".N", name) for name in weights))
    shown_stems = ", ".join(printable(name, NAME_CHARACTERS) for name in stems[:NAMES_SHOWN])
    more = f", … ({counted(len(stems) - NAMES_SHOWN, 'name')} more)" if len(stems) > NAMES_SHOWN else ""
    return RunFileError(
        f'{begin}: say which weight is which with names={{"…": "embed.W_E", …}} or --names FILE ({PAGE}). '
        f"It has {shown_stems}{more}; wanted are {WANTED}"
    )


def kind_of(target: str) -> str:
    """The last part of a name of HookedTransformer's, without the mark of what groups of heads share."""
    return target.rpartition(".")[2].removeprefix("_")


def _width(weights: Mapping[str, Tensor], table: Table) -> int | None:
    """`d_model`, from the weight that is the embedding."""
    for name, value in weights.items():
        entry = table.of(name)
        targets = [name] if entry is None else [_expanded(entry[1], text, entry[0]) for text in entry[0].to]
        if "embed.W_E" in targets and value.ndim >= 2:
            return value.shape[-2 if entry is not None and entry[0].transpose else -1]
    return None


def _counted_heads(weights: Mapping[str, Tensor], table: Table) -> int | None:
    """How many heads have weights of their own, or None."""
    entries = [entry for name in weights if (entry := table.of(name)) and entry[0].head]
    return len({_expanded(match, line.head or "", line) for line, match in entries}) or None


def _expanded(match: re.Match[str], text: str, line: Line) -> str:
    try:
        return match.expand(text)
    except (re.error, IndexError) as error:
        raise RunFileError(f"names[{shown(line.pattern)}] is {shown(text)}: {error}") from None


def _put(found: Renamed, target: str, value: Tensor, name: str) -> None:
    found.origin[target].append(name)
    if target in found.states:
        raise _twice(target, found.origin[target])
    found.states[target] = value


def _put_head(parts: dict[int, Tensor], index: str, value: Tensor, name: str) -> None:
    if not index.isdecimal() or len(index) > 4 or int(index) in parts:
        raise RunFileError(f"names: {quoted(name)} is head {shown(index)}, expected a number, each once")
    parts[int(index)] = value


def _twice(target: str, names: list[str]) -> RunFileError:
    both = " and ".join(quoted(name) for name in names[-2:])
    return RunFileError(f"names: {both} are both {target}, expected one weight")


def _parts(
    name: str,
    value: Tensor,
    line: Line,
    targets: list[str],
    width: int | None,
    given: Mapping[str, Any],
    found: Renamed,
) -> dict[str, Tensor]:
    """What one weight gives, by HookedTransformer's names."""
    if line.scale != 1 or line.add:
        value = value * line.scale + line.add
    turned = {target: _turned(name, value, line.transpose, target, width, found) for target in targets}
    if line.split is not None:
        turned = dict(zip(targets, _cut(name, turned[targets[0]], line.split, targets, given), strict=True))
    folded = {}
    for target, part in turned.items():
        shared = _shares(target, given)
        stored = f"{target.rpartition('.')[0]}._{kind_of(target)}" if shared else target
        folded[stored] = part if line.head is not None else _folded(name, part, target, shared, given)
    return folded


def _shares(target: str, given: Mapping[str, Any]) -> bool:
    """Whether groups of heads share a weight (`n_key_value_heads`)."""
    return given.get("n_key_value_heads") is not None and kind_of(target) in ("W_K", "b_K", "W_V", "b_V")


def _turned(
    name: str, value: Tensor, transpose: bool | None, target: str, width: int | None, found: Renamed
) -> Tensor:
    """A weight with its axes in HookedTransformer's order, and no more than it has there."""
    kind = kind_of(target)
    most = FOLDS[kind][0] + 1 if kind in FOLDS else AXES.get(kind, value.ndim)
    if value.ndim > most:  # `[1, n_ctx, d_model]`, or a convolution of width 1
        value = value.squeeze()
    if value.ndim == 2 and transpose is None and kind in LINEAR:
        side = LINEAR[kind]
        as_it_is, exchanged = value.shape[side] == width, value.shape[1 - side] == width
        transpose = exchanged if as_it_is != exchanged else name.endswith("weight")
        if as_it_is and exchanged:
            found.by_name.append(name)
    return value.mT if transpose and value.ndim >= 2 else value


def _cut(name: str, value: Tensor, split: str, targets: list[str], given: Mapping[str, Any]) -> list[Tensor]:
    """A weight that holds several, along its last axis: one after the other, or head by head."""
    n_heads, n_shared = given.get("n_heads"), given.get("n_key_value_heads")
    groups = (n_shared or n_heads) if split == "heads" else 1
    sizes = [n_shared if _shares(target, given) else n_heads for target in targets]
    if len(set(sizes)) == 1:  # equal parts
        sizes = [groups] * len(targets)
    if groups is None or None in sizes:
        raise _heads_wanted(name, value)
    per_group = [(size or groups) // groups for size in sizes]
    if value.shape[-1] % (groups * sum(per_group)):
        raise RunFileError(
            f"names: {quoted(name)} has {value.shape[-1]} columns, expected a multiple of "
            f"{groups * sum(per_group)} for {len(targets)} parts"
        )
    unit = value.shape[-1] // (groups * sum(per_group))
    blocks = value.unflatten(-1, (groups, -1)).split([unit * size for size in per_group], -1)
    return [block.flatten(-2) for block in blocks]


def _folded(name: str, value: Tensor, target: str, shared: bool, given: Mapping[str, Any]) -> Tensor:
    """A weight of all heads with an axis of heads."""
    axes, pattern = FOLDS.get(kind_of(target), (-1, ""))
    if value.ndim != axes:
        return value
    n_heads = given.get("n_key_value_heads" if shared else "n_heads")
    if n_heads is None:
        raise _heads_wanted(name, value)
    try:
        return rearrange(value, pattern, head=n_heads)
    except (EinopsError, TypeError):
        raise RunFileError(
            f"n_heads is {shown(n_heads)}, expected a divisor: {quoted(name)} has shape {list(value.shape)}"
        ) from None


def _heads_wanted(name: str, value: Tensor) -> RunFileError:
    return RunFileError(
        f"{quoted(name)} has shape {list(value.shape)}, all heads in one: say how many, "
        'given={"n_heads": 2} or --set n_heads=2'
    )
