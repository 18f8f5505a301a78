"""Layouts of saved weights: what each tells of its model, and what is asked of shapes and names.

A layout's `plan_import` takes the shape of every weight by its name, the fields that the file's config says,
those of a `DecoderConfig` that the caller says, and what the file calls a weight, for messages.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import quoted

Shapes = Mapping[str, tuple[int, ...]]
# What tells a layout: one of these groups of names is there as a whole, and the first of it is its mark.
Marks = tuple[tuple[str, ...], ...]
Called = Callable[[str], str]  # what a file calls a weight that has this name here
BY_SHAPES = "by the shapes"
NO_LAST_NORM = ": a model without a last norm needs --set final_norm=false, or `given=` in Python"
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


def shortened(plan: ImportPlan, n_ctx: int) -> ImportPlan:
    """Returns the plan of the same model for shorter sequences: what it computes on them stays.

    Args:
        plan: A model whose tables of positions are longer.
        n_ctx: The new length of the context.
    """

    def states(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: first_positions(name, value, n_ctx) for name, value in plan.states(weights).items()}

    return replace(plan, config=plan.config.model_copy(update={"n_ctx": n_ctx}), states=states)


def first_positions(name: str, value: Tensor, n_ctx: int) -> Tensor:
    """Returns a table of positions, or of the lags of all heads, cut to `n_ctx`; another weight as it is.

    Example:
        >>> import torch
        >>> first_positions("pos_embed.W_pos", torch.ones(6, 2), 4).shape
        torch.Size([4, 2])
    """
    if name == "pos_embed.W_pos":
        return value[:n_ctx]
    return value[:, :n_ctx] if name.endswith((".W_rel", ".b_rel")) and value.ndim > 1 else value


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every weight, by its name."""
    return {name: tuple(value.shape) for name, value in weights.items()}


def in_float32(value: Tensor) -> Tensor:
    """Returns a tensor on the CPU, in float32 where it is of floating point numbers.

    Example:
        >>> import torch
        >>> in_float32(torch.ones(1, dtype=torch.float64)).dtype, in_float32(torch.tensor([1])).dtype
        (torch.float32, torch.int64)
    """
    value = value.detach().cpu()
    return value.float() if value.is_floating_point() else value


def count_layers(shapes: Shapes, called: Called = str) -> int:
    """Returns how many layers there are, `blocks.N`, numbered from 0 without a gap.

    Args:
        shapes: Weights by their names.
        called: What the file calls a weight, for messages.

    Raises:
        RunFileError: If one is missing.

    Example:
        >>> count_layers({"blocks.0.ln1.w": (4,), "blocks.1.ln1.w": (4,), "embed.W_E": (3, 4)})
        2
    """
    inside = (name.split(".")[1] for name in shapes if name.startswith("blocks."))
    layers = {int(part) for part in inside if part.isdecimal() and len(part) < 5}
    if layers != set(range(len(layers))) or not layers:
        numbers = f"{called('blocks.N')} are numbered {sorted(layers)[:8]}"
        raise RunFileError(f"its layers {numbers}, expected 0, 1, …")
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
            hint = NO_LAST_NORM if name.startswith("ln_final.") else ""
            raise RunFileError(f"it has no {called(name)}{hint}")
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
        >>> from mechmarkov.importing.config_fields import make_config
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
