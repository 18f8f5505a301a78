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
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import quoted


@dataclass(frozen=True)
class Names:
    """Translates the names of some program's weights into those of a TransformerBridge, and back.

    Attributes:
        table: Stems of their names, and beginnings of those of layers (which end in a dot), by a bridge's.
        called: A function of one of their names: what a file calls that weight.

    Example:
        >>> names = Names({"wte": "embed", "h.": "blocks.", "ln_1": "ln1"})
        >>> names.ours(["wte.weight", "h.3.ln_1.bias"])
        {'wte.weight': 'embed.weight', 'h.3.ln_1.bias': 'blocks.3.ln1.bias'}
    """

    table: Mapping[str, str]
    called: Called = str

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
    """Returns the plan for weights of which some have more rows than are used; `rows` says how many are."""

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
    expected = _expected(config, transposed)
    # A linear layer may always lack its bias.
    norms = () if norms_may_lack_bias else (".ln1.bias", ".ln2.bias", "ln_final.bias")
    biases = {name for name in expected if name.endswith(".bias") and not name.endswith(norms)}
    check_shapes(shapes, expected, {*biases, "unembed.weight"}, called)

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        ours = _states(weights, config, transposed)
        for name, value in list(ours.items()):
            if name.endswith(".w"):
                ours[name] = value + norm_offset
                if norms_may_lack_bias and config.normalization_type == "LN":
                    ours.setdefault(f"{name[:-1]}b", torch.zeros_like(value))
        ours["embed.W_E"] = ours["embed.W_E"] * embed_scale
        return ours

    return ImportPlan(
        config, tuple(name for name in expected if name in shapes), states, dict(assumed or {}), may_tie
    )


def _expected(config: DecoderConfig, transposed: bool) -> dict[str, tuple[int, ...]]:
    d, hidden, mlp = config.d_model, config.d_mlp or 0, not config.attn_only
    width = {"q": config.n_heads * config.d_head}
    width |= dict.fromkeys("kv", (config.n_key_value_heads or config.n_heads) * config.d_head)
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (config.d_vocab, d)}
    if config.positional_embedding_type in ("standard", "shortformer"):
        shapes["pos_embed.weight"] = (config.n_ctx, d)
    norms = ["ln_final"]
    for layer in range(config.n_layers):
        block = f"blocks.{layer}"
        norms += [f"{block}.ln1"] + [f"{block}.ln2"] * mlp
        for letter, d_out in width.items():
            shapes |= {f"{block}.attn.{letter}.weight": (d_out, d), f"{block}.attn.{letter}.bias": (d_out,)}
        if config.positional_embedding_type == "relative":
            shapes[f"{block}.attn.rel.weight"] = (config.n_ctx, width["q"])
        for letter in "qk" * config.use_qk_norm:
            shapes[f"{block}.attn.{letter}_norm.weight"] = (config.d_head,)
        linear = {"attn.o": (width["q"], d)}
        if mlp:
            linear |= {"mlp.in": (d, hidden), "mlp.out": (hidden, d)}
            linear |= {"mlp.gate": (d, hidden)} if config.gated_mlp else {}
        for name, (d_in, d_out) in linear.items():
            shapes[f"{block}.{name}.weight"] = (d_out, d_in) if transposed else (d_in, d_out)
            if not (config.gated_mlp and name in ("mlp.in", "mlp.gate")):  # ours come behind the gate
                shapes[f"{block}.{name}.bias"] = (d_out,)
    if config.normalization_type in ("LN", "RMS"):
        shapes |= {f"{norm}.weight": (d,) for norm in norms}
    if config.normalization_type == "LN":
        shapes |= {f"{norm}.bias": (d,) for norm in norms}
    return {**shapes, "unembed.weight": (config.d_vocab_out, d), "unembed.bias": (config.d_vocab_out,)}


def _states(weights: Mapping[str, Tensor], config: DecoderConfig, transposed: bool) -> dict[str, Tensor]:
    """HookedTransformer's tensors; a bias that is not there is zero."""

    def linear(name: str, transposed: bool) -> tuple[Tensor, Tensor]:
        weight = weights[f"{name}.weight"]
        weight = weight.mT if transposed else weight
        return weight, weights.get(f"{name}.bias", weight.new_zeros(weight.shape[1]))

    states = {"embed.W_E": weights["embed.weight"]}
    if "pos_embed.weight" in weights:
        states["pos_embed.W_pos"] = weights["pos_embed.weight"]
    width = config.d_head
    for layer in range(config.n_layers):
        attn, mlp = f"blocks.{layer}.attn", f"blocks.{layer}.mlp"
        for letter in "qkv":
            weight, bias = linear(f"{attn}.{letter}", True)
            mark = "_" * (config.n_key_value_heads is not None and letter in "kv")
            W, b = f"{attn}.{mark}W_{letter.upper()}", f"{attn}.{mark}b_{letter.upper()}"
            states[W] = rearrange(weight, "d_in (head d_head) -> head d_in d_head", d_head=width)
            states[b] = rearrange(bias, "(head d_head) -> head d_head", d_head=width)
        weight, states[f"{attn}.b_O"] = linear(f"{attn}.o", transposed)
        states[f"{attn}.W_O"] = rearrange(weight, "(head d_head) d_out -> head d_head d_out", d_head=width)
        if f"{attn}.rel.weight" in weights:
            states[f"{attn}.W_rel"] = rearrange(
                weights[f"{attn}.rel.weight"], "lag (head d_head) -> head lag d_head", d_head=width
            )
        for part in () if config.attn_only else ("in", "out"):
            states[f"{mlp}.W_{part}"], states[f"{mlp}.b_{part}"] = linear(f"{mlp}.{part}", transposed)
        if config.gated_mlp:
            states[f"{mlp}.W_gate"], _ = linear(f"{mlp}.gate", transposed)
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        if stem.split(".")[-1] in ("ln1", "ln2", "ln_final", "q_norm", "k_norm"):
            states[f"{stem}.{'w' if kind == 'weight' else 'b'}"] = value
    output = "unembed" if "unembed.weight" in weights else "embed"
    states["unembed.W_U"], zero = linear(output, True)
    states["unembed.b_U"] = weights.get("unembed.bias", zero)
    return states
