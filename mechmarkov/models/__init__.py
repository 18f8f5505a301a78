"""Models: HookedDecoder, its config, starts and constructions; the first model imports TransformerLens."""

from importlib import import_module
from typing import Any

from mechmarkov.utils.shadowed import explaining

with explaining():  # it imports what a file next to a script may hide
    from pydantic import types as types

from mechmarkov.models.config import DecoderConfig

__all__ = ["DecoderConfig", "HookedDecoder", "initialise"]
_HOMES = {"HookedDecoder": "mechmarkov.models.decoder", "initialise": "mechmarkov.models.init"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mechmarkov.models' has no attribute {name!r}")
    with explaining():  # TransformerLens imports more of that
        return getattr(import_module(_HOMES[name]), name)
