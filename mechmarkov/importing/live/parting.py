"""Where a live model and its conversion first differ inside, by what its layers read."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mechmarkov.importing.live.logits import Form, outputs
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.models import HookedDecoder

FAR = 1e-3  # of the largest number that is read
NO_OTHER_NORM = "no HookedDecoder norms sums (post-norm) or what is added to them"
# What the module reads that holds a weight, and what may make that differ.
READ = {
    "attn.W_Q": f"attention's input: embeddings, their scale, positions, the norm before it; {NO_OTHER_NORM}",
    "attn.W_O": (
        "the heads' output: scale, mask and window of attention, the order of heads; "
        "no HookedDecoder has ALiBi, another bias of scores, or attention without softmax"
    ),
    "mlp.W_in": f"an MLP's input: what attention adds, the norm before the MLP; {NO_OTHER_NORM}",
    "mlp.W_out": "what an MLP's activation gives",
}
LAST = f"what is unembedded: what the last layer adds, the last norm; {NO_OTHER_NORM}"


def first_to_differ(
    model: nn.Module,
    decoder: HookedDecoder,
    tokens: Int[Tensor, "batch position"],
    form: Form,
    modules: Mapping[str, str],
) -> str:
    """Returns which module of a model is the first to read something else than in the conversion, in words.

    Args:
        model: The model.
        decoder: Its conversion.
        tokens: What both read.
        form: Makes of tokens what the model reads.
        modules: The path of the module that holds each weight, by HookedTransformer's name of the weight.

    Returns:
        The end of a sentence; nothing where no module is seen to differ.
    """
    theirs = _read_by(model, set(modules.values()), form(tokens))
    for weight, ours, words in _read_by_ours(decoder, tokens):
        path = modules.get(weight, "")
        if path in theirs and _differ(theirs[path], ours):
            return f"; the first to differ is what {path} reads, {words}"
    return ""


def _read_by(model: nn.Module, paths: set[str], tokens: Tensor) -> dict[str, Tensor]:
    """Returns what each module read first, by its path."""
    read: dict[str, Tensor] = {}
    parts = dict(model.named_modules())
    with ExitStack() as hooks:
        for path in paths & parts.keys():

            def take(_: nn.Module, arguments: tuple[object, ...], path: str = path) -> None:
                if arguments and isinstance(arguments[0], Tensor):
                    read.setdefault(path, arguments[0].detach())

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
            block, at = decoder.blocks[layer], f"blocks.{layer}"
            read = {
                "attn.W_Q": lambda block=block, at=at: block.ln1(cache[f"{at}.hook_resid_pre"]),
                "attn.W_O": lambda at=at: cache[f"{at}.attn.hook_z"].flatten(-2),
                "mlp.W_in": lambda block=block, at=at: block.ln2(cache[f"{at}.hook_resid_mid"]),
                "mlp.W_out": lambda at=at: cache[f"{at}.mlp.hook_post"],
            }
            for name, value in read.items():
                if f"{at}.{name}" in decoder.state_dict():
                    yield f"{at}.{name}", value(), READ[name]
        yield "unembed.W_U", cache["unembed.hook_in"], LAST


def _differ(theirs: Tensor, ours: Tensor) -> bool:
    """Returns whether numbers of one shape, batch or position first, are other ones."""
    ours = ours.double()
    same = [one for one in (ours, ours.transpose(0, 1)) if one.shape == theirs.shape]
    far = [(theirs.cpu().double() - one).abs().max() > FAR * one.abs().max() for one in same]
    return bool(far) and all(map(bool, far))
