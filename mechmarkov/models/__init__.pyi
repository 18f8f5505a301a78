from mechmarkov.models.config import DecoderConfig as DecoderConfig
from mechmarkov.models.decoder import HookedDecoder as HookedDecoder
from mechmarkov.models.init import initialise as initialise
