"""Layouts as tables: what a program calls the weights of a decoder whose layers are linear ones.

A table gives TransformerLens 4's names of a bridge's layers: `embed`, `blocks.N.ln1`, `blocks.N.attn.q`,
`blocks.N.mlp.in`, `unembed` and the like, or `blocks.N.attn.qkv` for what holds three. How axes lie follows
from what a weight is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from mechmarkov.importing.layout import (
    Called,
    ImportPlan,
    Shapes,
    UnknownWeightError,
    check_shapes,
    count_layers,
    shape_of,
)
from mechmarkov.importing.names.folding import FOLDS, LINEAR, Folds, kind_of
from mechmarkov.importing.names.weights import PAGE
from mechmarkov.models import DecoderConfig
from mechmarkov.models.decoder import parameter_shapes
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import quoted

# By the last part of HookedTransformer's name of a weight, what a bridge calls it after its stem.
ROLES = {
    **dict.fromkeys(("W_E", "W_pos", "W_U", "w"), "weight"),
    **dict.fromkeys(("b", "b_U"), "bias"),
    **{f"W_{x}": f"{x.lower()}.weight" for x in ("Q", "K", "V", "O", "G", "in", "gate", "out", "rel")},
    **{f"b_{x}": f"{x.lower()}.bias" for x in ("Q", "K", "V", "O", "G", "in", "out", "dt")},
    # Of state spaces.
    **{f"conv_{x}": f"conv_{x}.weight" for x in "QKV"},
    **{f"b_conv_{x}": f"conv_{x}.bias" for x in "QKV"},
    **dict.fromkeys(("W_dt", "W_dt_out"), "dt.weight"),
    **{f"W_{x}": f"{x}.weight" for x in ("dt_in", "B", "C")},
    "A_log": "A_log",
    "D": "D",
}
AS_GPT2 = ("W_O", "W_in", "W_gate", "W_out")  # what is not transposed where layers lie as GPT-2's do
# What one weight holds, one after the other, as rows.
FUSED = {
    "qkv": ("q", "k", "v"),
    "vg": ("v", "g"),
    "gvkqdt": ("g", "v", "k", "q", "dt"),
    "conv": ("conv_V", "conv_K", "conv_Q"),
    "dtbc": ("dt_in", "B", "C"),
}
LAGS = ".W_rel"  # its last row is for positions that the mask hides


@dataclass(frozen=True)
class Table:
    """Translates the names of some program's weights into those of a TransformerBridge, and back.

    Attributes:
        stems: A bridge's stems by theirs, with N for the number of a layer; two of theirs may be one of a
            bridge's.
        called: A function of one of their names: what a file calls that weight.
        by_head: Whether queries, keys and values in one weight lie head by head.

    Example:
        >>> table = Table({"wte": "embed", "h.N.ln_1": "blocks.N.ln1"})
        >>> table.ours(["wte.weight", "h.3.ln_1.bias"])
        {'wte.weight': 'embed.weight', 'h.3.ln_1.bias': 'blocks.3.ln1.bias'}
    """

    stems: Mapping[str, str]
    called: Called = str
    by_head: bool = False

    def ours(self, weights: Iterable[str]) -> dict[str, str]:
        """Returns a bridge's name of each of their weights.

        Raises:
            RunFileError: Naming a weight of unknown meaning, or one that is there twice.
        """
        names: dict[str, str] = {}
        for name in weights:
            stem, number, kind = _parts(name)
            if stem not in self.stems:
                raise UnknownWeightError(self.called(name))
            ours = f"{self.stems[stem].replace('.N.', f'.{number}.')}.{kind}"
            if ours in names.values():
                name = quoted(self.called(name))
                raise RunFileError(f"it has a weight {name} a second time, as another name")
            names[name] = ours
        return names

    def theirs(self, ours: str) -> str:
        """Returns what a file would call a weight that has this name in a bridge.

        Example:
            >>> table = Table({"wte": "embed", "h.N.attn.c_attn": "blocks.N.attn.qkv"})
            >>> table.theirs("embed.weight"), table.theirs("blocks.1.attn.k.bias"), table.theirs("blocks.N")
            ('wte.weight', 'h.1.attn.k.bias', 'h.N')
        """
        by_ours = {stem: theirs for theirs, stem in self.stems.items()}
        stem, number, kind = _parts(ours)
        if stem in by_ours:
            return self.called(f"{by_ours[stem].replace('.N.', f'.{number}.')}.{kind}")
        layers = next(
            (x.partition(".N.")[0] for y, x in by_ours.items() if y.startswith("blocks.")), "blocks"
        )
        return self.called(ours.replace("blocks", layers, 1))


def _parts(name: str) -> tuple[str, str, str]:
    """Returns the stem of a name with N for the number of its layer, that number, and the last part."""
    stem, _, kind = name.rpartition(".")
    number = next((part for part in stem.split(".")[:-1] if part.isdecimal()), "N")
    return stem.replace(f".{number}.", ".N.", 1), number, kind


def from_shapes(shapes: Shapes, called: Called) -> dict[str, Any]:
    """Returns the fields of a `DecoderConfig` that the shapes of a bridge's weights tell.

    Example:
        >>> from_shapes({"embed.weight": (3, 4), "blocks.0.attn.q.weight": (4, 4)}, str)
        {'n_layers': 1, 'd_model': 4, 'd_vocab': 3, 'attn_only': True}
    """
    d_vocab, d_model = shape_of(shapes, "embed.weight", 2, called)
    fields: dict[str, Any] = {
        "n_layers": count_layers(shapes, called),
        "d_model": d_model,
        "d_vocab": d_vocab,
        "attn_only": not any(".mlp." in name for name in shapes),
    }
    if "pos_embed.weight" in shapes:
        fields["n_ctx"] = shape_of(shapes, "pos_embed.weight", 2, called)[0]
    if "unembed.weight" in shapes:
        fields["d_vocab_out"] = shape_of(shapes, "unembed.weight", 2, called)[0]
    if "blocks.0.ln1.bias" in shapes:
        fields["normalization_type"] = "LN"
    if "ln_final.weight" in shapes:
        fields["final_norm"] = True
    if not fields["attn_only"]:  # whichever way the layer lies
        rows, columns = shape_of(shapes, "blocks.0.mlp.in.weight", 2, called)
        fields["d_mlp"] = rows if columns == d_model else columns
    return fields


def plan(
    shapes: Shapes,
    config: DecoderConfig,
    *,
    table: Table | None = None,
    transposed: bool = True,
    assumed: Mapping[str, Any] | None = None,
    may_tie: bool = False,
    embed_scale: float = 1.0,
    norm_offset: float = 0.0,
    norms_may_lack_bias: bool = False,
    called: Called = str,
) -> ImportPlan:
    """Work out how linear layers become the weights of a HookedDecoder.

    Args:
        shapes: The shape of every weight.
        config: The shape of the model.
        table: Translates their names, where these are not a bridge's.
        transposed: Whether layers are `[d_out, d_in]`; those that read queries, keys and values from a weight
            each always are.
        assumed: The assumptions of `ImportPlan`.
        may_tie: The flag of `ImportPlan`; without it a model without `unembed` has the embedding's transpose.
        embed_scale: What embeddings are multiplied by where they enter the model (Gemma).
        norm_offset: What is added to the gains of norms (Gemma).
        norms_may_lack_bias: Whether a norm's bias that is not there is zero (nanoGPT). Gains that no norm
            has are then one.
        called: A function that gives the file's name of a weight, where there is no table.

    Raises:
        RunFileError: Naming a weight that is missing, unknown or of another shape.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=2, d_vocab=3, attn_only=True)
        >>> shapes = {"embed.weight": (3, 4), "pos_embed.weight": (6, 4), "unembed.weight": (3, 4)}
        >>> shapes |= {f"blocks.0.attn.{letter}.weight": (4, 4) for letter in "qkvo"}
        >>> shapes |= {f"{norm}.weight": (4,) for norm in ("blocks.0.ln1", "ln_final")}
        >>> shapes |= {f"{norm}.bias": (4,) for norm in ("blocks.0.ln1", "ln_final")}
        >>> weights = {name: torch.ones(shape) for name, shape in shapes.items()}
        >>> plan(shapes, config).states(weights)["blocks.0.attn.W_Q"].shape
        torch.Size([2, 4, 2])
    """
    if config.positional_embedding_type == "relative_bias":
        raise RunFileError(
            "positional_embedding_type is 'relative_bias', but no name here is of a number per lag: names= "
            f"or --names has a line for blocks.N.attn.b_rel ({PAGE})"
        )
    names = table.ours(shapes) if table else dict(zip(shapes, shapes, strict=True))
    shapes = {names[name]: shape for name, shape in shapes.items()}
    ours = parameter_shapes(config.model_copy(update={"tied": False}))
    folds = FOLDS[config.mixer]
    roles = {_role(name): name for name in ours}
    parts = {role: _their_shape(name, ours[name], folds, transposed) for role, name in roles.items()}
    if config.gated_mlp:  # ours comes behind the gate
        parts = {role: shape for role, shape in parts.items() if not role.endswith("mlp.in.bias")}
    holders = _holders(parts, shapes) if table else {}
    inside = {part for held in holders.values() for part in held}
    expected = {role: shape for role, shape in parts.items() if role not in inside}
    for role, held in holders.items():
        whole = (sum(parts[part][0] for part in held), *parts[held[0]][1:])
        expected[role] = whole if transposed else whole[::-1]
    # A linear layer may always lack its bias.
    norms = () if norms_may_lack_bias else (".ln1.bias", ".ln2.bias", "ln_final.bias")
    needed = (".attn.dt.bias", *norms)
    optional = {name for name in expected if name.endswith(".bias") and not name.endswith(needed)}
    gains = {role for role, name in roles.items() if name.endswith(".w")}
    if norms_may_lack_bias and not gains & shapes.keys():
        optional |= gains
    check_shapes(shapes, expected, {*optional, "unembed.weight"}, table.theirs if table else called)

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights = {names[name]: value for name, value in weights.items()}
        weights = {"unembed.weight": weights["embed.weight"], **weights}
        for role in holders.keys() & weights.keys():
            rows = weights[role] if transposed else weights[role].t()
            if table and table.by_head:
                by_part = "(head three d_head) ... -> (three head d_head) ..."
                rows = rearrange(rows, by_part, three=3, head=config.n_heads)
            cut = rows.split([parts[part][0] for part in holders[role]])
            weights |= dict(zip(holders[role], cut, strict=True))
        made = {}
        for role, name in roles.items():
            value = weights.get(role)
            shape = ours[name]
            if value is None:
                made[name] = torch.ones(shape) if role in gains else torch.zeros(shape)
            else:
                made[name] = _ours(name, value, shape, folds, transposed) + norm_offset * (role in gains)
        return {**made, "embed.W_E": made["embed.W_E"] * embed_scale}

    return ImportPlan(config, tuple(names), states, dict(assumed or {}), may_tie)


def _role(name: str) -> str:
    """Returns a bridge's name of a weight."""
    stem, _, _ = name.rpartition(".")
    norm = ".norm" * name.endswith(".attn.w")
    return f"{stem}{norm}.{ROLES[kind_of(name)]}"


def _holders(parts: Iterable[str], weights: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of weights that hold several, and of what each holds, for every layer."""
    holders: dict[str, list[str]] = {}
    for side in (side for side in FUSED if any(f".{side}." in name for name in weights)):
        for part in FUSED[side]:
            for role in parts:
                block, _, kind = role.rpartition(f".{part}.")
                if block:
                    holders.setdefault(f"{block}.{side}.{kind}", []).append(role)
    return holders


def _is_turned(name: str, transposed: bool) -> bool:
    return kind_of(name) in LINEAR and (transposed or kind_of(name) not in AS_GPT2)


def _ours(name: str, value: Tensor, shape: tuple[int, ...], folds: Folds, transposed: bool) -> Tensor:
    value = value.t() if _is_turned(name, transposed) else value[: -1 if name.endswith(LAGS) else None]
    fold = folds.get(kind_of(name)) if ".attn." in name else None
    return value if fold is None else rearrange(value, fold[1], head=shape[0])


def _their_shape(name: str, ours: tuple[int, ...], folds: Folds, transposed: bool) -> tuple[int, ...]:
    """Returns the shape of which `_ours` makes this one."""
    if ".attn." in name and kind_of(name) in folds:
        before, after = folds[kind_of(name)][1].split(" -> ")
        ours = tuple(rearrange(torch.empty(ours, device="meta"), f"{after} -> {before}").shape)
    if _is_turned(name, transposed):
        return ours[::-1]
    return (ours[0] + name.endswith(LAGS), *ours[1:])
