"""Find where a live model and its conversion first differ inside, by what their layers read."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mechmarkov.importing.live.logits import Form, outputs
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.models import HookedDecoder

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
