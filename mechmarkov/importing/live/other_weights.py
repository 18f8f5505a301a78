"""Compare a model with its conversion for other weights too, at two lengths: a reading is of code.

A start or a short training may hide what code does: a cap on logits that are small, a part whose last weights
are zero, a norm whose epsilon is far below its variance.
"""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mechmarkov.importing.live.difference import MAX_LOGIT_DIFFERENCE, Asked, nearest_form
from mechmarkov.importing.live.forward_pass import draw
from mechmarkov.importing.live.inside import Inside
from mechmarkov.importing.live.logits import Tokens
from mechmarkov.importing.live.name_table import UnclearError
from mechmarkov.importing.live.reading import Read
from mechmarkov.importing.live.untouched import borrowed, our_own_numbers
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.decoder import is_derived
from mechmarkov.safe.plain_data import RunFileError

# A model is compared once for each config: a recorder meets the same code at every step.
_compared: WeakKeyDictionary[nn.Module, DecoderConfig] = WeakKeyDictionary()

SMALL, LARGE = 0.1, 3.0  # of weights drawn: the first shows an epsilon, the second a cap
CHAOS = 100.0  # as much as rounding makes of the model's own logits, or more, is not a difference


def check_other_weights(live: Inside, config: DecoderConfig, read: Read, tokens: Tokens, advice: str) -> None:
    """Compare a model with its conversion after drawing weights; it is left as it was.

    Args:
        live: The model.
        config: That of its conversion.
        read: Reads it, with the weights that it has then.
        tokens: What both read: whole sequences, then the first half of each.
        advice: The end of the sentence about a difference.

    Raises:
        RunFileError: Logits differ.
    """
    if _compared.get(live.model) == config:
        return
    half = max(1, tokens.shape[1] // 2)
    for size in (SMALL, LARGE):
        with borrowed(live.model, torch.float32):
            draw(live.model, size=size)
            try:
                decoder = _decoder(*read({}))
            except UnclearError as error:
                raise RunFileError(f"of other weights, {error}{advice}") from None
            for length in (tokens.shape[1], half):
                way = nearest_form(live.model, decoder, tokens[:, :length])
                if way is not None and _is_far(way):
                    where = "larger" if size == LARGE else "smaller"
                    raise RunFileError(
                        f"{live.kind()} and its conversion agree with these weights, yet with {where} ones "
                        f"logits of {length} tokens differ by {way.apart.scaled:.1g} of their size: is there "
                        f"a cap, an epsilon or a scale by length that no weight shows?{advice}"
                    )
    _compared[live.model] = config


def _is_far(way: Asked) -> bool:
    return not way.apart.is_below(max(MAX_LOGIT_DIFFERENCE, CHAOS * way.rounding))


def _decoder(config: DecoderConfig, weights: Mapping[str, Tensor]) -> HookedDecoder:
    with our_own_numbers():
        decoder = HookedDecoder(config)
        decoder.load_state_dict({k: x for k, x in weights.items() if not is_derived(k, config)})
        return decoder
