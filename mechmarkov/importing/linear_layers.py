"""Weights that lie as linear layers with one name each: those of TransformerLens 4's bridges.

They are `embed`, `blocks.N.ln1`, `blocks.N.attn.q`, `blocks.N.mlp.in`, `unembed` and the like. Transformers'
decoders are read by these names too (`hugging_face`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from mechmarkov.models import DecoderConfig
from mechmarkov.models.decoder import parameter_shapes
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import quoted

LAYER, AS_IT_IS = "d_out d_in -> d_in d_out", "... -> ..."
# By the last part of HookedTransformer's name of a weight, that of a bridge's, and how its axes become ours.
ORIGINS = {
    **dict.fromkeys(("W_E", "W_pos", "w"), ("weight", AS_IT_IS)),
    "b": ("bias", AS_IT_IS),
    **{f"W_{x.upper()}": (f"{x}.weight", "(head d_head) d_in -> head d_in d_head") for x in "qkv"},
    **{f"b_{x.upper()}": (f"{x}.bias", "(head d_head) -> head d_head") for x in "qkv"},
    "W_rel": ("rel.weight", "lag (head d_head) -> head lag d_head"),
    "W_O": ("o.weight", "d_out (head d_head) -> head d_head d_out"),
    "b_O": ("o.bias", AS_IT_IS),
    **{f"W_{x}": (f"{x}.weight", LAYER) for x in ("in", "gate", "out")},
    **{f"b_{x}": (f"{x}.bias", AS_IT_IS) for x in ("in", "out")},
    "W_U": ("weight", LAYER),
    "b_U": ("bias", AS_IT_IS),
}
NOT_TRANSPOSED = {  # where layers lie as GPT-2's do
    "W_O": "(head d_head) d_out -> head d_head d_out",
    **dict.fromkeys(("W_in", "W_gate", "W_out"), AS_IT_IS),
}


@dataclass(frozen=True)
class Names:
    """Translates the names of some program's weights into those of a TransformerBridge, and back.

    Example:
        >>> names = Names({"wte": "embed", "h.": "blocks.", "ln_1": "ln1"})
        >>> names.ours(["wte.weight", "h.3.ln_1.bias"])
        {'wte.weight': 'embed.weight', 'h.3.ln_1.bias': 'blocks.3.ln1.bias'}
    """

    # Stems of their names, and beginnings of those of layers (which end in a dot), by a bridge's.
    table: Mapping[str, str]
    called: Called = str  # a function of one of their names: what a file calls that weight

    def ours(self, weights: Iterable[str]) -> dict[str, str]:
        """Returns a bridge's name of each of their weights.

        Raises:
            RunFileError: Naming a weight of unknown meaning, or one that is there twice.
        """
        names: dict[str, str] = {}
        for name in weights:
            stem, _, kind = name.rpartition(".")
            prefix = next((x for x in self.table if x.endswith(".") and stem.startswith(x)), "")
            layer, _, inner = stem.removeprefix(prefix).partition(".")
            if prefix and layer.isdecimal() and inner in self.table:
                ours = f"{self.table[prefix]}{layer}.{self.table[inner]}.{kind}"
            elif stem in self.table:
                ours = f"{self.table[stem]}.{kind}"
            else:
                raise UnknownWeightError(self.called(name))
            if ours in names.values():
                name = quoted(self.called(name))
                raise RunFileError(f"it has a weight {name} a second time, as another name")
            names[name] = ours
        return names

    def theirs(self, ours: str) -> str:
        """Returns what a file would call a weight that has this name in a bridge.

        Example:
            >>> names = Names({"wte": "embed", "h.": "blocks.", "attn.c_attn": "attn.qkv"})
            >>> names.theirs("embed.weight"), names.theirs("blocks.1.attn.k.bias"), names.theirs("blocks.N")
            ('wte.weight', 'h.1.attn.c_attn.bias', 'h.N')
        """
        by_ours = {name: theirs for theirs, name in self.table.items()}
        if "attn.qkv" in by_ours:
            by_ours |= {f"attn.{letter}": by_ours["attn.qkv"] for letter in "qkv"}
        stem, _, kind = ours.rpartition(".")
        if stem in by_ours:
            return self.called(f"{by_ours[stem]}.{kind}")
        blocks, _, rest = ours.partition(".")
        layer, _, rest = rest.partition(".")
        inner, _, kind = rest.rpartition(".")
        outer = by_ours.get(f"{blocks}.", f"{blocks}.")
        return self.called(f"{outer}{layer}" + (f".{by_ours.get(inner, inner)}.{kind}" if rest else ""))


def from_shapes(shapes: Shapes, called: Called) -> dict[str, Any]:
    """Returns the fields of a `DecoderConfig` that the shapes of a bridge's weights tell.

    They are those that do not depend on which way the layers of an MLP lie.

    Example:
        >>> from_shapes({"embed.weight": (3, 4), "blocks.0.attn.q.weight": (4, 4)}, str)
        {'n_layers': 1, 'd_model': 4, 'd_vocab': 3, 'attn_only': True}
    """
    d_vocab, d_model = shape_of(shapes, "embed.weight", 2, called)
    fields: dict[str, Any] = {
        "n_layers": count_layers(shapes, "blocks.", called),
        "d_model": d_model,
        "d_vocab": d_vocab,
        "attn_only": not any(".mlp." in name for name in shapes),
    }
    if "pos_embed.weight" in shapes:
        fields["n_ctx"] = shape_of(shapes, "pos_embed.weight", 2, called)[0]
    if "unembed.weight" in shapes:
        fields["d_vocab_out"] = shape_of(shapes, "unembed.weight", 2, called)[0]
    return fields


def split_shapes(shapes: Shapes, transposed: bool = True, called: Called = str) -> Shapes:
    """Returns shapes in which a weight that holds queries, keys and values is split in three.

    Args:
        shapes: The shapes by a bridge's names; `attn.qkv` holds the three.
        transposed: Whether that weight is `[d_out, d_in]`.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: Naming a weight that cannot be split.

    Example:
        >>> split_shapes({"blocks.0.attn.qkv.bias": (6,)})
        {'blocks.0.attn.q.bias': (2,), 'blocks.0.attn.k.bias': (2,), 'blocks.0.attn.v.bias': (2,)}
    """
    split: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if ".qkv." not in name:
            split[name] = shape
            continue
        three = shape if transposed else shape[::-1]
        if not three or three[0] % 3:
            raise RunFileError(f"{called(name)} has shape {list(shape)}, expected queries, keys and values")
        split |= {name.replace("qkv", letter): (three[0] // 3, *three[1:]) for letter in "qkv"}
    return split


def check_fused(shapes: Shapes, config: DecoderConfig, transposed: bool, called: Called) -> None:
    """Compare weights that hold queries, keys and values with those that the config describes.

    Args:
        shapes: The shapes by a bridge's names.
        config: The shape of the model.
        transposed: Whether such a weight is `[d_out, d_in]`.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: Naming one of another shape.
    """
    rows = 3 * config.n_heads * config.d_head
    for name, shape in shapes.items():
        weight = (rows, config.d_model) if transposed else (config.d_model, rows)
        expected = weight if name.endswith(".weight") else (rows,)
        if ".qkv." in name and shape != expected:
            raise RunFileError(f"{called(name)} has shape {list(shape)}, expected {list(expected)}")


def by_other_names(
    plan: ImportPlan, names: Mapping[str, str], split: Callable[[Tensor], Sequence[Tensor]]
) -> ImportPlan:
    """The plan for weights with other names (`Names.ours`).

    Args:
        plan: By a bridge's names.
        names: A bridge's name of each weight.
        split: Makes queries, keys and values, `[d_out, ...]` each, of a weight that holds the three.
    """

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        parts: dict[str, Tensor] = {}
        for name, value in weights.items():
            ours = names[name]
            if ".qkv." in ours:
                parts |= {ours.replace("qkv", x): y for x, y in zip("qkv", split(value), strict=True)}
            else:
                parts[ours] = value
        return plan.states(parts)

    return replace(plan, wanted=tuple(names), states=states)


def with_first_rows(plan: ImportPlan, rows: Mapping[str, int]) -> ImportPlan:
    """Returns the plan for weights of which some have more rows than are used.

    Args:
        plan: For weights without the further rows.
        rows: How many rows are used, by the name of each such weight.
    """

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return plan.states({name: value[: rows.get(name)] for name, value in weights.items()})

    return replace(plan, states=states)


def plan(
    shapes: Shapes,
    config: DecoderConfig,
    *,
    transposed: bool = True,
    assumed: Mapping[str, Any] | None = None,
    may_tie: bool = False,
    embed_scale: float = 1.0,
    norm_offset: float = 0.0,
    norms_may_lack_bias: bool = False,
    called: Called = str,
) -> ImportPlan:
    """Work out how the linear layers of a bridge become the weights of a HookedDecoder.

    Args:
        shapes: The shape of every weight, by a bridge's names.
        config: The shape of the model.
        transposed: Whether `attn.o` and the layers of an MLP are `[d_out, d_in]`, as all others are.
        assumed: The assumptions of `ImportPlan`.
        may_tie: The flag of `ImportPlan`; without it a model without `unembed` has the embedding's transpose.
        embed_scale: What embeddings are multiplied by where they enter the model (Gemma).
        norm_offset: What is added to the gains of norms (Gemma).
        norms_may_lack_bias: Whether a bias that a norm lacks is zero (nanoGPT).
        called: What the file calls a weight.

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
    ours = parameter_shapes(config.model_copy(update={"tied": False}))
    origins = {name: _origin(name, transposed) for name in ours}
    expected = {
        theirs: _their_shape(ours[name], axes)
        for name, (theirs, axes) in origins.items()
        if not (config.gated_mlp and theirs.endswith("mlp.in.bias"))  # ours comes behind the gate
    }
    # A linear layer may always lack its bias.
    norms = () if norms_may_lack_bias else (".ln1.bias", ".ln2.bias", "ln_final.bias")
    biases = {name for name in expected if name.endswith(".bias") and not name.endswith(norms)}
    check_shapes(shapes, expected, {*biases, "unembed.weight"}, called)

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights = {"unembed.weight": weights["embed.weight"], **weights}
        made = {}
        for name, (theirs, axes) in origins.items():
            value = weights.get(theirs)
            made[name] = torch.zeros(ours[name]) if value is None else _turned(value, axes, config.d_head)
            if name.endswith(".w"):
                made[name] = made[name] + norm_offset
        return {**made, "embed.W_E": made["embed.W_E"] * embed_scale}

    wanted = tuple(name for name in expected if name in shapes)
    return ImportPlan(config, wanted, states, dict(assumed or {}), may_tie)


def _origin(name: str, transposed: bool) -> tuple[str, str]:
    """A bridge's name of a weight, and how its axes become HookedTransformer's."""
    stem, _, kind = name.rpartition(".")
    kind = kind.removeprefix("_")  # which marks what heads share
    theirs, axes = ORIGINS[kind]
    return f"{stem}.{theirs}", axes if transposed else NOT_TRANSPOSED.get(kind, axes)


def _turned(value: Tensor, axes: str, d_head: int) -> Tensor:
    return rearrange(value, axes, d_head=d_head) if "d_head" in axes else rearrange(value, axes)


def _their_shape(ours: tuple[int, ...], axes: str) -> tuple[int, ...]:
    before, after = axes.split(" -> ")
    return tuple(rearrange(torch.empty(ours, device="meta"), f"{after} -> {before}").shape)
