"""Why a live model and its conversion have other logits: a setting that no weight shows, or rounding."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from mechmarkov.importing.live.inside import is_of
from mechmarkov.importing.live.logits import Answer
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.decoder import is_derived
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.utils.text import listed

MAX_WINDOW = 16  # of those that are tried


def agreeing(decoder: HookedDecoder, agrees: Callable[[HookedDecoder], bool]) -> dict[str, Any] | None:
    """Search for one field of the config, of those that no weight shows, whose change makes the logits agree.

    Args:
        decoder: The conversion that does not agree.
        agrees: Whether another one does.

    Returns:
        The field and its value, or None where no single change is enough.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> agreeing(HookedDecoder(config), lambda other: other.config.window == 3)
        {'window': 3}
    """
    weights = decoder.state_dict()
    for name, value in _others(decoder.config):
        with our_own_numbers(), suppress(ValueError, RuntimeError):  # not all fields fit together
            config = DecoderConfig(**{**decoder.config.model_dump(), name: value})
            other = HookedDecoder(config)
            kept = {key: x for key, x in weights.items() if not is_derived(key, config)}
            if not other.load_state_dict(kept, strict=False).unexpected_keys and agrees(other):
                return {name: value}
    return None


def _others(config: DecoderConfig) -> Iterator[tuple[str, Any]]:
    """Yields fields that change what is computed and no shape, each with another value."""
    if config.normalization_type is not None:
        yield "norm_first", not config.norm_first
    if not config.attn_only:
        yield "parallel_attn_mlp", not config.parallel_attn_mlp
        yield from (("act_fn", name) for name in ACTIVATIONS if name != config.act_fn)
    if config.positional_embedding_type == "rotary":
        yield "rotary_adjacent_pairs", not config.rotary_adjacent_pairs
    if config.positional_embedding_type == "none":
        yield "positional_embedding_type", "alibi"
    yield "use_attn_scale", not config.use_attn_scale
    scales = (config.d_model**0.5, float(config.d_head), float(config.d_model))
    yield from (("attn_scale", scale) for scale in scales)
    yield from (("eps", eps) for eps in (1e-5, 1e-6, 1e-8, 1e-12) if eps != config.eps)
    yield from (("window", n) for n in range(1, min(config.n_ctx - 1, MAX_WINDOW + 1)) if n != config.window)


def not_finite(answer: Answer) -> str:
    """Returns what to look at where a model has no finite logits, else nothing."""
    if any(one.isfinite().all() for one in answer.candidates):
        return ""
    return "; its own logits hold NaN or infinite values: are all of its weights initialised?"


def rounded_logits(answer: Answer) -> str:
    """Returns advice where a forward pass casts to fewer bits than its weights have."""
    dtypes = {one.dtype for one in answer.candidates if one.dtype.itemsize < 4}
    if not dtypes:
        return ""
    return (
        f"; it returns {listed(sorted(map(str, dtypes)))}, though its weights are lent in float32: leave the "
        "cast to `torch.autocast`, which takes no part here, or to `model.bfloat16()`"
    )


def rounded_buffers(model: nn.Module) -> str:
    """Advice where buffers were rounded with the weights, such as frequencies of rotary positions."""
    rounded = [
        name
        for name, value in model.named_buffers()
        if value.is_floating_point() and value.dtype.itemsize < 4 and value.numel() > 1 and _may_round(value)
    ]
    if not rounded:
        return ""
    way = "train weights in float32 under `torch.autocast` instead of `model.bfloat16()`"
    if is_of(model, "transformers."):
        kept = "`from_config(config, dtype=torch.bfloat16)` does and `model.bfloat16()` does not"
        way = f"keep them in float32, as {kept}"
    dtype = model.get_buffer(rounded[0]).dtype
    return f"; its buffers {listed(rounded[:2])} are rounded to {dtype}: {way}"


def _may_round(buffer: Tensor) -> bool:
    """Returns whether it is not a mask of zeros, ones and infinities, which rounding leaves as they are."""
    return bool((buffer.isfinite() & (buffer != 0) & (buffer != 1)).any())
