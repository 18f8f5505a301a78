"""Models: HookedDecoder, its config, starts and constructions; the first model imports TransformerLens."""

from mechmarkov.utils.modules import loaded_when_used
from mechmarkov.utils.shadowed import explaining

with explaining():  # it imports what a file next to a script may hide
    from pydantic import types as types

from mechmarkov.models.config import DecoderConfig

__all__ = ["DecoderConfig", "HookedDecoder", "initialise"]
__getattr__ = loaded_when_used(
    __name__, {"HookedDecoder": "mechmarkov.models.decoder", "initialise": "mechmarkov.models.init"}
)
