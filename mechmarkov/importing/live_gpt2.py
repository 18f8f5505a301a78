"""Live models with GPT-2's names: nanoGPT's GPT and transformers' GPT2LMHeadModel."""

from collections.abc import Container, Mapping
from typing import Any

from torch import Tensor, nn

from mechmarkov.importing import gpt2
from mechmarkov.importing.layout import tie
from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError


def recognises(model: nn.Module, names: Container[str]) -> bool:
    """Whether it has GPT-2's names and a config beside them."""
    return gpt2.recognises(names) and hasattr(model, "config")


def states_of(model: nn.Module, weights: Mapping[str, Tensor]) -> tuple[DecoderConfig, dict[str, Tensor]]:
    """A live model's config, and its weights with HookedTransformer's names, float32 on the CPU.

    Raises:
        ValueError: For what cannot be expressed or told, naming it.
    """
    config: Any = model.config
    if hasattr(config, "to_dict"):
        fields = gpt2.fields_of_gpt2(config.to_dict())
    else:
        fields = gpt2.fields_of_nanogpt(vars(config), strict=False) | {"act_fn": _activation(model)}
    weights = {name: value.detach().cpu().float() for name, value in weights.items()}
    described = gpt2.describe({name: tuple(value.shape) for name, value in weights.items()}, fields, {})
    states = described.states({name: weights[name] for name in described.wanted})
    return tie(described.config, states) if described.may_tie else (described.config, states)


def _activation(model: nn.Module) -> str:
    """The one activation of the blocks' modules: nanoGPT's config does not say it."""
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.GELU):
            found.add("gelu" if module.approximate == "none" else "gelu_new")
        elif isinstance(module, nn.ReLU):
            found.add("relu")
        elif ".mlp." in name and not (list(module.children()) or list(module.parameters())):
            found |= set() if isinstance(module, nn.Dropout) else {type(module).__name__}
    if len(found) != 1 or not found <= {"gelu", "gelu_new", "relu"}:
        raise RunFileError(
            f"the activations of its blocks are {sorted(found)}, expected one nn.GELU or nn.ReLU: "
            "save a checkpoint and import it with --set act_fn=…"
        )
    return found.pop()
