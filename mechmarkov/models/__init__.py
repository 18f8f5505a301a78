"""Models: HookedDecoder, its config, starts and constructions."""

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.init import initialise

__all__ = ["DecoderConfig", "HookedDecoder", "initialise"]
