"""Why a live model and its conversion have other logits: where inside, by which setting, or by rounding."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mechmarkov.importing.live.inside import is_of
from mechmarkov.importing.live.logits import Answer, Form, outputs
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.decoder import is_derived
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.utils.text import listed

MAX_WINDOW = 16  # of those that are tried


FAR = 1e-3  # of the largest number that is read
NO_OTHER_NORM = "a HookedDecoder norms sums (norm_first=False) or what its parts read, nothing else"
# What the module reads that holds a weight, and what may make that differ.
READ = {
    "attn.W_Q": f"attention's input: embeddings, their scale, positions, the norm before it; {NO_OTHER_NORM}",
    "attn.W_O": (
        "the heads' output: scale, mask and window of attention, the order of heads; "
        "a bias of scores by lag is positional_embedding_type alibi, or relative_bias with a line for "
        "blocks.N.attn.b_rel; no HookedDecoder has another, or attention without softmax"
    ),
    "mlp.W_in": f"an MLP's input: what attention adds, the norm before the MLP; {NO_OTHER_NORM}",
    "mlp.W_out": "what an MLP's activation gives",
}
LAST = f"what is unembedded: what the last layer adds, the last norm; {NO_OTHER_NORM}"


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


def first_to_differ(
    model: nn.Module,
    decoder: HookedDecoder,
    tokens: Int[Tensor, "batch position"],
    form: Form,
    modules: Mapping[str, str],
) -> tuple[int, str]:
    """Returns how far a model agrees with its conversion, and which module first reads something else.

    Args:
        model: The model.
        decoder: Its conversion.
        tokens: What both read.
        form: Makes of tokens what the model reads.
        modules: The path of the module that holds each weight, by HookedTransformer's name of the weight.

    Returns:
        The number of inputs before, and the end of a sentence; nothing where no module is seen to differ.
    """
    theirs = _read_by(model, set(modules.values()), form(tokens))
    number = 0
    for number, (weight, ours, words) in enumerate(_read_by_ours(decoder, tokens)):
        several = theirs.get(modules.get(weight, ""), [])
        path = modules.get(weight)
        if several and _differ(several[0], ours):
            return number, f"; the first to differ is what {path} reads, {words}"
        if len(several) > 1 and weight.endswith("attn.W_O"):
            return number, (
                f"; {path} is called {len(several)} times: no HookedDecoder repeats a layer, so that names= "
                f'has to list its weights once for each call, ["{weight}", "blocks.N.attn.W_O"]'
            )
    return number, ""


def _read_by(model: nn.Module, paths: set[str], tokens: Tensor) -> dict[str, list[Tensor]]:
    """Returns what each module read, by its path: a tensor for each time that it was called."""
    read: dict[str, list[Tensor]] = {}
    parts = dict(model.named_modules())
    with ExitStack() as hooks:
        for path in paths & parts.keys():

            def take(_: nn.Module, arguments: tuple[object, ...], path: str = path) -> None:
                if arguments and isinstance(arguments[0], Tensor):
                    read.setdefault(path, []).append(arguments[0].detach())

            hooks.callback(parts[path].register_forward_pre_hook(take).remove)
        for output in outputs(model, tokens, torch.float32):
            if not isinstance(output, Exception):
                break
            read.clear()
    return read


def _read_by_ours(decoder: HookedDecoder, tokens: Tensor) -> Iterator[tuple[str, Tensor, str]]:
    """Yields a weight, what is multiplied by it, and words for that, in the order of a forward pass."""
    with our_own_numbers(), torch.no_grad():
        _, cache = decoder.run_with_cache(tokens)
        for layer in range(decoder.config.n_layers):
            at = f"blocks.{layer}"
            block = decoder.get_submodule(at)
            pre = cache[f"{at}.hook_resid_pre"]
            first = decoder.config.norm_first
            if decoder.config.mixer == "attention":
                yield f"{at}.attn.W_Q", block.get_submodule("ln1")(pre) if first else pre, READ["attn.W_Q"]
                yield f"{at}.attn.W_O", cache[f"{at}.attn.hook_z"].flatten(-2), READ["attn.W_O"]
            if not decoder.config.attn_only:
                mid = pre if decoder.config.parallel_attn_mlp else cache[f"{at}.hook_resid_mid"]
                yield f"{at}.mlp.W_in", block.get_submodule("ln2")(mid) if first else mid, READ["mlp.W_in"]
                yield f"{at}.mlp.W_out", cache[f"{at}.mlp.hook_post"], READ["mlp.W_out"]
        yield "unembed.W_U", cache["unembed.hook_in"], LAST


def _differ(theirs: Tensor, ours: Tensor) -> bool:
    """Returns whether numbers of one shape, batch or position first, are other ones."""
    ours = ours.double()
    same = [one for one in (ours, ours.transpose(0, 1)) if one.shape == theirs.shape]
    far = [(theirs.cpu().double() - one).abs().max() > FAR * one.abs().max() for one in same]
    return bool(far) and all(map(bool, far))
