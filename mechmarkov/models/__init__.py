"""Models: HookedDecoder, its config, starts and constructions."""

from mechmarkov.utils.shadowed import explaining

with explaining():  # it imports most of what a file next to a script may hide
    import transformer_lens as transformer_lens

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise

__all__ = ["DecoderConfig", "HookedDecoder", "initialise"]
