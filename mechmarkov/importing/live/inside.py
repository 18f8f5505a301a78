"""The model inside what training puts around it: `torch.compile`, parallel wrappers, a LightningModule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mechmarkov.importing.files.recognise import MARKS
from mechmarkov.importing.layout import in_float32, plain_name, recognises
from mechmarkov.importing.names.weights import PAGE
from mechmarkov.importing.reparametrized import with_made_weights
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.utils.text import counted, listed, quoted, shown

LENS = "transformer_lens."
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
SHARDED = "FullyShardedDataParallel"  # importing the class takes longer than all else here


@dataclass(frozen=True)
class Inside:
    """A model whose names are known, and what stands around it.

    Attributes:
        model: The model whose names are known.
        holder: What was given, without wrappers that compute nothing of their own; often the model itself.
        path: The attribute of the holder that the model is; "" where it is the holder.
    """

    model: nn.Module
    holder: nn.Module
    path: str

    def kind(self) -> str:
        """Returns the name of the model's class."""
        return type(self.model).__name__


def inside(model: nn.Module, whole: bool = False) -> Inside:
    """Find the one model in a module whose weights have known names, which may be the module itself.

    Args:
        model: A module: a model, `torch.compile` or a parallel wrapper around one, a LightningModule.
        whole: Whether it is the module itself, without wrappers: a table of names says what its weights are.

    Raises:
        ValueError: Not a module, or one without weights, or one whose weights are spread over processes.
            It holds several models, or other weights next to one: the attribute to pass is named, or the
            table of names where that one has no logits.

    Example:
        >>> from mechmarkov.models import DecoderConfig
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> holder = nn.Module()
        >>> holder.net = HookedDecoder(config)
        >>> live = inside(holder)
        >>> live.path, live.kind()
        ('net', 'HookedDecoder')
    """
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        file = "; a file of one comes in by mm.import_run([path], source=source)"
        advice = "" if isinstance(model, nn.Module | type) else file
        raise ValueError(f"model is {shown(model)}, expected a torch module with parameters{advice}")
    if next(model.parameters()).is_meta:
        raise ValueError("model is on the device meta, expected one with weights")
    _check_whole(model)
    _check_tree(model, "", [])
    _check_data(model)
    if not whole:
        _check_real(model)
    holder = _without_wrappers(model)
    if whole or _is_known(holder):
        return Inside(holder, holder, "")
    parts = dict(_known_parts(holder))
    if not parts:
        return Inside(holder, holder, "")
    kind, attributes = type(holder).__name__, [attribute(path) for path in parts]
    if len(parts) > 1:
        raise ValueError(f"{kind} holds {counted(len(parts), 'model')}: pass one, {' or '.join(attributes)}")
    ((path, part),) = parts.items()
    inner = {id(parameter) for parameter in part.parameters()}
    others = [name for name, parameter in holder.named_parameters() if id(parameter) not in inner]
    if others:
        named = listed([*others[:2], *(["others"] if len(others) > 2 else [])])
        held = type(part).__name__
        if is_of(part, "transformers.") and cast(Any, part).get_output_embeddings() is None:  # as GPT2Model
            raise ValueError(
                f"{kind} holds a {held}, which has no logits, and weights of its own, {named}: where {kind} "
                f'makes logits of tokens, say which weight is which, names={{"…": "embed.W_E", …}} ({PAGE})'
            )
        raise ValueError(f"{kind} holds a {held} and weights of its own, {named}: pass {attributes[0]}")
    return Inside(part, holder, plain_name(path))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns a model's weights and buffers as `in_float32`, by names without those of wrappers."""
    state = with_made_weights(model, model.state_dict()).items()
    return {plain_name(name): in_float32(value) for name, value in state if isinstance(value, Tensor)}


def is_of(thing: object, package: str) -> bool:
    """Returns whether an object is of a class of a package, or of one that is derived from it.

    Example:
        >>> is_of(nn.Linear(1, 1), "torch.nn."), is_of(3, "torch.")
        (True, False)
    """
    return any(f"{kind.__module__}.".startswith(package) for kind in type(thing).__mro__)


def is_parallel(model: nn.Module) -> bool:
    """Returns whether calling a model, or what it holds, speaks to other processes."""
    return any(isinstance(part, PARALLEL) or type(part).__name__ == SHARDED for part in model.modules())


def _is_known(model: nn.Module) -> bool:
    if isinstance(model, HookedDecoder):
        return True
    # The state dict of Lightning Fabric's wrapper has the inner model's names, that of a bridge its own.
    is_bridge = is_of(getattr(model, "cfg", None), LENS)
    weights = model.state_dict() if is_bridge else dict(model.named_parameters(remove_duplicate=False))
    names = {plain_name(name) for name in weights}
    return recognises(MARKS, names)


def _known_parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost parts that are known and compute something, by their paths."""
    outer = ""
    for path, part in model.named_modules():
        nested = outer and path.startswith(f"{outer}.")
        if path and not nested and type(part).forward is not nn.Module.forward and _is_known(part):
            outer = path
            yield path, _without_wrappers(part)


def _without_wrappers(model: nn.Module) -> nn.Module:
    inner: Any = model
    if hasattr(model, "_orig_mod"):
        inner = model._orig_mod
    elif isinstance(model, PARALLEL) or type(model).__name__ == SHARDED:
        inner = model.module
    return model if inner is model else _without_wrappers(inner)


def _check_whole(model: nn.Module) -> None:
    """Refuse a model that cannot be called with copies of its weights.

    Reading one of which a process has a part only would wait for the other processes.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise ValueError(
            f"{type(model).__name__} is compiled by torch.jit: pass the module that it was made of"
        )
    is_sharded = any(type(part).__name__ == SHARDED for part in model.modules())
    if is_sharded or any(hasattr(value, "device_mesh") for value in model.parameters()):
        raise ValueError(
            f"the weights of {type(model).__name__} are sharded (FSDP), expected whole ones: load "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)) into a model without FSDP and pass that"
        )


def _check_tree(part: nn.Module, path: str, above: list[nn.Module]) -> None:
    """Refuse a module that is a part of itself: torch goes through its parts without end."""
    above = [*above, part]
    for name, child in part.named_children():
        if any(child is one for one in above):
            held = attribute(f"{path}{name}")
            advice = f"keep it in a list, {held} = [parent]"
            raise ValueError(f"{held} is a part of itself, expected modules in a tree: {advice}")
        _check_tree(child, f"{path}{name}.", above)


def _check_real(model: nn.Module) -> None:
    for name, value in model.named_parameters():
        if value.is_complex():
            table = f'names={{…, {quoted(plain_name(name))}: ""}} leaves it out ({PAGE})'
            unused = f"where the model does not use it, {table}"
            raise ValueError(f"{name} holds complex numbers, expected real ones: {unused}")


def _check_data(model: nn.Module) -> None:
    """Refuse weights without numbers: to read one whose memory was freed would end the process."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_meta or is_lazy(value):
            raise ValueError(
                f"{name} has a shape and no numbers, expected weights: load or initialise them first"
            )
        if value.layout is not torch.strided:
            raise ValueError(
                f"{name} is of layout {value.layout}, expected a dense tensor, {name}.to_dense()"
            )
        if type(value) in (Tensor, nn.Parameter, nn.Buffer) and value.numel():
            last = value.storage_offset() + sum(
                (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
            )
            if (last + 1) * value.element_size() > value.untyped_storage().nbytes():
                raise ValueError(
                    f"the memory of {name} is freed, expected its numbers: gather or load them first"
                )


def attribute(path: str) -> str:
    """Returns how a part is written in Python, from `model` on.

    Example:
        >>> attribute("layers.0.net")
        'model.layers[0].net'
    """
    parts = (f"[{part}]" if part.isdecimal() else f".{part}" for part in path.split("."))
    return "model" + "".join(parts)
