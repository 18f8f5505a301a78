"""Interventions on attention: which keys heads attend to, and how far back."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from mechmarkov.interventions.intervention import intervention
from mechmarkov.models.attention import Attention
from mechmarkov.models.components import check_component, head_index, head_name, head_names
from mechmarkov.models.decoder import HookedDecoder, check_decoder
from mechmarkov.models.layers import causal_mask
from mechmarkov.utils.errors import integer_of, list_of
from mechmarkov.utils.text import shown


@intervention
def override_attention(
    model: HookedDecoder,
    heads: str | Sequence[str],
    *,
    to: Literal["uniform", "parent"] | str,
    parent_lag: int = 0,
) -> Iterator[HookedDecoder]:
    """Replace the attention pattern of heads.

    Args:
        model: A model or a stack.
        heads: `"L0H1"`, or several.
        to: `"uniform"` over the keys that a query may attend to, within a `limit_window` around it too;
            `"parent"`: all on the parent of the predicted token.
        parent_lag: Position of the query less that of the parent: 0 for a next-token model, 1 after a query
            token (queries without a parent attend to the first token).

    Raises:
        ValueError: For an unknown head or target, and for a head without attention weights.

    Example:
        >>> from mechmarkov.models.constructions.lookup_tables import value_table
        >>> model = value_table(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), n_ctx=4)
        >>> with override_attention(model, "L0H0", to="uniform"):
        ...     model(torch.tensor([[0, 1]])).tolist()  # the mean of the rows read so far
        [[[0.0, 1.0], [1.0, 2.0]]]
    """
    check_decoder(model)
    if not isinstance(to, str) or to not in ("uniform", "parent"):
        raise ValueError(f"to is {shown(to)}, expected 'uniform' or 'parent'")

    def on_parent(pattern: Tensor) -> Tensor:
        n_queries, length = pattern.shape[-2:]
        parent = (torch.arange(length - n_queries, length, device=pattern.device) - parent_lag).clamp_min(0)
        return torch.nn.functional.one_hot(parent, length).to(pattern.dtype).expand_as(pattern)

    def equal(scores: Tensor) -> Tensor:
        return scores.masked_fill(scores > -torch.inf, 0)  # what a window has masked stays so

    if to == "parent":
        edits = _edited(model, heads, "hook_pattern", on_parent)
    elif model.config.mixer != "attention" or model.config.has_lag_bias:
        edits = _edited(model, heads, "hook_attn_scores", equal)
    else:  # a query of zero tells no key from another: no pattern is needed, which is large at long contexts
        query = "q_norm.hook_normalized" if model.config.use_qk_norm else "hook_q"
        edits = _edited(model, heads, query, torch.zeros_like, axis=-2)
    with edits:
        yield model


@intervention
def limit_window(
    model: HookedDecoder, back: int, *, heads: str | Sequence[str] | None = None, keep: int = 0
) -> Iterator[HookedDecoder]:
    """Let heads attend to the query's own position and `back` positions before it, and renormalise.

    Args:
        model: A model or a stack.
        back: At least 0, as `DecoderConfig.window`.
        heads: Names; all heads by default.
        keep: How many of the first positions every query sees as before: 1 for a token that begins sequences.

    Raises:
        ValueError: For a negative `back`, an unknown head, and a head without attention weights.

    Example:
        >>> import mechmarkov as mm
        >>> model, tokens = mm.example("induction").model(), torch.zeros(1, 24, dtype=torch.long)
        >>> with limit_window(model, 1):
        ...     _, cache = model.run_with_cache(tokens)
        >>> int((cache["blocks.0.attn.hook_pattern"][0, 0, -1] > 0).sum())
        2
    """
    check_decoder(model)
    back, keep = integer_of("back", back, least=0), integer_of("keep", keep, least=0)

    def limited(scores: Tensor) -> Tensor:
        allowed = causal_mask(scores.shape[-2], scores.shape[-1], back, scores.device)
        allowed[..., :keep] = True
        return scores.masked_fill(~allowed, -torch.inf)

    names = head_names(model.config) if heads is None else [heads] if isinstance(heads, str) else heads
    by_layer = _by_layer(model, names)
    # A window of all heads needs no scores: SDPA takes it as a mask.
    whole = [
        layer
        for layer, chosen in by_layer.items()
        if len(set(chosen)) == model.config.n_heads
        and isinstance(model.blocks[layer].attn, Attention)
        and not keep
    ]
    rest = {layer: chosen for layer, chosen in by_layer.items() if layer not in whole}
    others = [head_name(layer, head) for layer, chosen in rest.items() for head in chosen]
    with ExitStack() as stack:
        for layer in whole:
            stack.enter_context(_narrowed(model.blocks[layer].attn, back))
        stack.enter_context(_edited(model, others, "hook_attn_scores", limited))
        yield model


@contextmanager
def _narrowed(attention: Any, back: int) -> Iterator[None]:
    before: int | None = attention.window
    attention.window = back if before is None else min(before, back)
    try:
        yield
    finally:
        attention.window = before


@contextmanager
def _edited(
    model: HookedDecoder,
    heads: str | Sequence[str],
    point: str,
    value: Callable[[Tensor], Tensor],
    axis: int = -3,
) -> Iterator[None]:
    """Replace what heads have at a hook point by a function of it; `axis`, from the end, is that of heads."""

    def edit(x: Tensor, chosen: list[int]) -> Tensor:
        if len(set(chosen)) == x.shape[axis]:  # every head: a copy would double the time at long contexts
            return value(x)
        some: tuple[Any, ...] = (..., chosen, *[slice(None)] * (-1 - axis))
        x = x.clone()
        x[some] = value(x[some])
        return x

    hooks = [
        (f"blocks.{layer}.attn.{point}", lambda x, hook, chosen=chosen: edit(x, chosen))
        for layer, chosen in _by_layer(model, heads).items()
    ]
    with model.hooks(hooks):
        yield


def _by_layer(model: HookedDecoder, heads: str | Sequence[str]) -> dict[int, list[int]]:
    """The heads of each layer by index; a ValueError for one that has no attention weights."""
    by_layer: dict[int, list[int]] = {}
    for name in [heads] if isinstance(heads, str) else list_of("heads", heads, "heads, such as 'L0H0'"):
        if isinstance(name, str):
            check_component(model.config, name)
        index = head_index(name) if isinstance(name, str) else None
        if index is None:
            raise ValueError(f"heads holds {shown(name)}, expected heads, such as 'L0H0'")
        mixer: Any = model.blocks[index[0]].attn
        if not mixer.has_attention_weights:
            raise ValueError(
                f"heads holds {shown(name)}, but a {type(mixer).__name__} has no attention weights"
            )
        by_layer.setdefault(index[0], []).append(index[1])
    return by_layer
