"""Layouts of saved weights: what each tells of its model, and the checks that all share."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import NAME_CHARACTERS, listed, printable, quoted, shown

Shapes = Mapping[str, tuple[int, ...]]
# What stands before a field of a config of transformers in a file; of a live model it is `config.`.
FILE = "config.json: "
# What no shape tells: HookedTransformer's defaults, named to the user wherever they are assumed.
ASSUMED: dict[str, Any] = {"eps": 1e-5, "use_attn_scale": True, "window": None}
# What tells a layout: one of these groups of names is there as a whole, and the first of it is its mark.
Marks = tuple[tuple[str, ...], ...]
Called = Callable[[str], str]  # what a file calls a weight that has this name here
NORMS = "before attention and MLP"
BY_SHAPES = "by the shapes"
EXAMPLES = {
    "n_heads": "2",
    "act_fn": "gelu|gelu_new|relu|silu",
    "normalization_type": "LN|LNPre|RMS|RMSPre|none",
    "positional_embedding_type": "standard|shortformer|rotary|relative|none",
    "n_ctx": "32",
    "rotary_adjacent_pairs": "false",
    "rotary_base": "10000",
    "window": "3 (a query sees itself and 3 tokens before it)",
    "attn_scale": "4.0 (what scores are divided by)",
    "parallel_attn_mlp": "true",
    "use_qk_norm": "true",
    "n_key_value_heads": "1",
}
# Fields of transformers' configs that do not change what a loaded model computes, or that shapes tell too.
HARMLESS = {
    "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label",
    "initializer_range", "label2id", "model_type", "pad_token_id", "return_dict", "tie_word_embeddings",
    "torch_dtype", "transformers_version", "use_cache", "_name_or_path",
}  # fmt: skip


# Parts of names that `torch.compile`, FSDP and activation checkpointing put in, wherever they wrap a module.
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def plain_name(name: str) -> str:
    """Returns a name without the parts that wrappers such as `torch.compile` put in.

    Example:
        >>> plain_name("h.0._orig_mod.mlp.c_fc.weight")
        'h.0.mlp.c_fc.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def recognises(marks: Marks, names: Container[str]) -> bool:
    """Returns whether weights with these names are of the layout that has the marks.

    >>> recognises((("embed.weight", "unembed.weight"),), {"embed.weight"})
    False
    """
    return any(all(name in names for name in group) for group in marks)


class UnknownWeightError(RunFileError):
    """A weight that no part of the model has a place for.

    Attributes:
        name: What the file calls it.
    """

    def __init__(self, name: str, advice: str = "") -> None:
        super().__init__(f"it has a weight {quoted(name)} that a HookedDecoder lacks{advice}")
        self.name = name


class DisagreementError(RunFileError):
    """A field of the config that has two values.

    Attributes:
        name: The field.
        found: Its value.
        where: Where that is found.
        given: The other value.
    """

    def __init__(self, name: str, found: Any, where: str, given: Any) -> None:
        super().__init__(f"{name} is {shown(found)} {where}, but {shown(given)} was given")
        self.name, self.found, self.where, self.given = name, found, where, given


@dataclass(frozen=True)
class ImportPlan:
    """A model as its file describes it, before any weight is read.

    Attributes:
        config: The shape of the model; whether it is tied is decided by its weights.
        wanted: The names of the weights to read; the rest follows from the config.
        states: The weights, by their own names, as HookedTransformer's.
        assumed: What neither the file nor the caller says and no weight shows, with what is taken.
        may_tie: Whether equal embedding and unembedding mean one parameter.
        masks: Those of `wanted` that are masks: of any type, and not always finite.
    """

    config: DecoderConfig
    wanted: tuple[str, ...]
    states: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    assumed: dict[str, Any] = field(default_factory=dict)
    may_tie: bool = False
    masks: frozenset[str] = frozenset()

    def of_live_model(self, weights: Mapping[str, Tensor]) -> tuple[DecoderConfig, dict[str, Tensor]]:
        """Returns the config, and weights by HookedTransformer's names, of a model in memory."""
        states = self.states({name: weights[name] for name in self.wanted})
        return tie(self.config, states) if self.may_tie else (self.config, states)


def assumptions(config: DecoderConfig, known: Container[str]) -> dict[str, Any]:
    """Returns what no weight of such a model shows and nobody says, with what is taken.

    Soft caps and the place of the norms are not fields of a config: a HookedDecoder has one way for each.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> assumptions(config, ("eps", "window", "attn_scale", "norms"))
        {'attn_scores_soft_cap': None, 'output_logits_soft_cap': None, 'use_qk_norm': False}
    """
    if config.mixer != "attention":
        return {}
    rotary, mlp = config.positional_embedding_type == "rotary", not config.attn_only
    norm = config.normalization_type is not None
    settings: dict[str, Any] = {"eps": config.eps} if norm else {}
    if "attn_scale" not in known:
        settings["use_attn_scale"] = config.use_attn_scale
        if config.use_attn_scale and "use_attn_scale" not in known:
            settings["attn_scale"] = config.attn_scale
    settings |= {"window": config.window, "attn_scores_soft_cap": None, "output_logits_soft_cap": None}
    settings |= {} if config.use_qk_norm else {"use_qk_norm": False}  # one without gains has no weight
    settings |= {"parallel_attn_mlp": config.parallel_attn_mlp} if mlp else {}
    settings |= {"rotary_base": config.rotary_base, "rotary_dim": config.rotary_dim} if rotary else {}
    settings |= {"norms": NORMS if mlp else "before attention"} if norm else {}
    return {name: value for name, value in settings.items() if name not in known}


def shortened(plan: ImportPlan, n_ctx: int) -> ImportPlan:
    """Returns the plan of the same model for shorter sequences: what it computes on them stays.

    Args:
        plan: A model whose tables of positions are longer.
        n_ctx: The new length of the context.
    """
    axes = {"pos_embed.W_pos": (slice(n_ctx),), "W_rel": (slice(None), slice(n_ctx))}

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        whole = plan.states(weights)
        rows = {name: axes.get(name, axes.get(name.rpartition(".")[2], ())) for name in whole}
        return {name: value[rows[name]] if rows[name] else value for name, value in whole.items()}

    return replace(plan, config=plan.config.model_copy(update={"n_ctx": n_ctx}), states=states)


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every weight, by its name."""
    return {name: tuple(value.shape) for name, value in weights.items()}


def count_layers(shapes: Shapes, prefix: str, called: Called = str) -> int:
    """Returns how many layers there are, numbered from 0 without a gap.

    Args:
        shapes: Weights by their names.
        prefix: What stands before the number.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: If one is missing.

    Example:
        >>> count_layers({"h.0.ln.weight": (4,), "h.1.ln.weight": (4,), "wte.weight": (3, 4)}, "h.")
        2
    """
    inside = (name.removeprefix(prefix).split(".")[0] for name in shapes if name.startswith(prefix))
    layers = {int(part) for part in inside if part.isdecimal() and len(part) < 5}
    if layers != set(range(len(layers))) or not layers:
        where = called(f"{prefix}N")
        raise RunFileError(f"its layers {where} are numbered {sorted(layers)[:8]}, expected 0, 1, …")
    return len(layers)


def shape_of(shapes: Shapes, name: str, n_axes: int, called: Called = str) -> tuple[int, ...]:
    """Returns the shape of a weight that must be there, with that many axes.

    Raises:
        RunFileError: If it is missing, empty or has another number of axes.

    Example:
        >>> shape_of({"wte.weight": (3, 4)}, "wte.weight", 2)
        (3, 4)
    """
    if name not in shapes:
        raise RunFileError(f"it has no {called(name)}")
    if len(shapes[name]) != n_axes or min(shapes[name]) < 1:
        raise RunFileError(
            f"{called(name)} has shape {list(shapes[name])}, expected {n_axes} axes, none empty"
        )
    return shapes[name]


def agree(known: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns both mappings as one; where both name a field they must agree.

    Args:
        known: Fields that are found.
        given: Others; they win over a None.
        where: Where those are found, for the message.

    Raises:
        DisagreementError: Naming the field and both values.

    Example:
        >>> agree({"n_heads": 2}, {"n_heads": 4}, "by the shapes")
        Traceback (most recent call last):
        mechmarkov.importing.layout.DisagreementError: n_heads is 2 by the shapes, but 4 was given
    """
    for name, value in given.items():
        if known.get(name) is not None and known[name] != value:
            raise DisagreementError(name, known[name], where, value)
    return {**known, **given}


def needed_parts(fields: Mapping[str, Any]) -> list[str]:
    """Returns the fields that no shape tells and that an MLP and rotary positions need, if there are any.

    Example:
        >>> needed_parts({"attn_only": False, "positional_embedding_type": "rotary"})
        ['act_fn', 'rotary_adjacent_pairs']
    """
    mlp = [] if fields.get("attn_only") else ["act_fn"]
    rotary = fields.get("positional_embedding_type") == "rotary"
    return mlp + ["rotary_adjacent_pairs"] * rotary


def require(fields: Mapping[str, Any], names: Iterable[str], why: str) -> None:
    """Refuse to guess a field of the config.

    Args:
        fields: Those that are known.
        names: Those that are needed.
        why: The beginning of the message, what does not tell them.

    Raises:
        RunFileError: Naming every field that is not given.

    Example:
        >>> require({}, ["n_heads"], "a state dict")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: a state dict does not determine n_heads: give --set ...
    """
    missing = [name for name in names if name not in fields]
    if missing:
        given = " ".join(f"--set {name}={EXAMPLES.get(name, 'VALUE')}" for name in missing)
        raise RunFileError(f"{why} does not determine {listed(missing)}: give {given}, or `given=` in Python")


def cannot_express(name: str, value: Any, where: str = FILE) -> RunFileError:
    """Returns the error about a field of a config that no `HookedDecoder` has.

    Example:
        >>> str(cannot_express("rope_scaling", 2.0))
        'config.json: rope_scaling is 2.0: a HookedDecoder cannot express it'
    """
    return RunFileError(f"{where}{name} is {shown(value)}: a HookedDecoder cannot express it")


def check_fields(
    config: Mapping[str, Any], needed: Collection[str], others: Container[str], where: str = FILE
) -> None:
    """Compare the names in a config of transformers with those that are read and those that may be there.

    Args:
        config: Its fields; one that is None or False is off.
        needed: Names that must be there.
        others: Names that may be there.
        where: What stands before a field's name in a message.

    Raises:
        RunFileError: Naming a field that cannot be expressed, or else one that is missing.

    Example:
        >>> check_fields({"n_layer": 2, "alibi": True}, ["n_layer"], set())
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: config.json: alibi is True: a HookedDecoder cannot express it
    """
    for name, value in config.items():
        known = name in needed or name in others or name in HARMLESS
        if not known and value not in (None, False):
            raise cannot_express(printable(name, NAME_CHARACTERS), value, where)
    for name in needed:
        if name not in config:
            raise RunFileError(f"{where}{name} is missing")


def one_of(value: Any, known: Collection[str], where: str) -> str:
    """Returns the value of a field that takes a few texts only.

    Raises:
        RunFileError: Naming the field (`where`) and what it takes.

    Example:
        >>> one_of("relu", ("relu", "gelu"), "act_fn")
        'relu'
    """
    if type(value) is not str or value not in known:
        raise RunFileError(f"{where} is {shown(value)}, expected {', '.join(known)}")
    return value


def head_size(n_heads: Any, width: int, called: str) -> int:
    """Returns the width of each head, where `n_heads` share a width that the file calls `called`.

    Raises:
        RunFileError: If that many heads cannot share it.

    Example:
        >>> head_size(2, 8, "d_model 8")
        4
    """
    if type(n_heads) is not int or n_heads < 1 or width % n_heads:
        raise RunFileError(f"n_heads is {shown(n_heads)}, expected a divisor of {called}")
    return width // n_heads


def make_config(fields: Mapping[str, Any]) -> DecoderConfig:
    """Make a `DecoderConfig` from fields of the file and of the caller.

    Raises:
        RunFileError: Naming the field that is wrong.

    Example:
        >>> make_config({"n_layers": 1, "d_model": 4, "n_ctx": 6, "d_head": 2, "d_vocab": 3}).n_heads
        2
    """
    try:
        return DecoderConfig.model_validate(dict(fields))
    except ValidationError as error:
        raise RunFileError(one_line(error, DecoderConfig, name="model")) from error


def check_shapes(
    shapes: Shapes, expected: Shapes, optional: Container[str] = (), called: Called = str
) -> None:
    """Compare weights with those that a config describes.

    Args:
        shapes: The shape of every weight, by its name.
        expected: What these should be.
        optional: Names that need not be there.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: Naming a weight that is unknown, missing (and not optional) or of another shape.

    Example:
        >>> check_shapes({"W": (2, 3)}, {"W": (3, 2)})
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: W has shape [2, 3], expected [3, 2]
    """
    for name in shapes:
        if name not in expected:
            raise UnknownWeightError(called(name))
    for name, shape in expected.items():
        if name not in shapes and name not in optional:
            raise RunFileError(f"it has no {called(name)}")
        if shapes.get(name, shape) != shape:
            raise RunFileError(f"{called(name)} has shape {list(shapes[name])}, expected {list(shape)}")


def tie(config: DecoderConfig, states: dict[str, Tensor]) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """Drop an unembedding that is its embedding's transpose: the model is then a tied one.

    Args:
        config: The shape of the model.
        states: Its weights by HookedTransformer's names, with further axes in front or without.

    Returns:
        The config, `tied` where that is so, and the weights.

    Raises:
        RunFileError: If the config is tied and the weights are not.

    Example:
        >>> import torch
        >>> config = make_config({"n_layers": 1, "d_model": 2, "n_ctx": 6, "d_head": 2, "d_vocab": 2})
        >>> tied, states = tie(config, {"embed.W_E": torch.eye(2), "unembed.W_U": torch.eye(2)})
        >>> tied.tied, list(states)
        (True, ['embed.W_E'])
    """
    unembed = states.get("unembed.W_U")
    if unembed is None:
        return config, states
    if unembed.equal(states["embed.W_E"][..., : config.d_vocab_out, :].mT):
        rest = {name: value for name, value in states.items() if name != "unembed.W_U"}
        return config.model_copy(update={"tied": True}), rest
    if config.tied:
        raise RunFileError("the model is tied, but its unembedding is not its embedding's transpose")
    return config, states
