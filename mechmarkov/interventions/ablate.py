"""Interventions: context managers that change what a model computes, and always undo themselves.

    with ablate(model, "L0H1", kind="mean", reference=tokens): ...     # a part, everywhere it is read
    with ablate_path(model, "embed", "L1H0.K", kind="resample"): ...   # what one part tells one other
    with attend(model, "L0H0", to="parent"): ...                       # a head's attention, replaced
    with limit_window(model, back=1): ...                              # how far back heads may look

They work on single models and on stacks, nest, and are gone after the block, also after an exception. Parts
are `embed`, `pos_embed`, heads (`L0H1`), MLPs (`L0.mlp`), `direct` (the embedding straight to the
unembedding) and `bias` (output biases: every `b_O`, `b_U` and the final norm's `b`). Receivers are a head's
`L1H0.Q`, `L1H0.K` or `L1H0.V`, an MLP, and `logits`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.interventions.attention import attend, limit_window
from mechmarkov.interventions.replace import Kind, Replacement, stand_in
from mechmarkov.models.components import Site, check_path, parts, paths, receiving_head, site_of
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import per_member

__all__ = [
    "ablate",
    "ablate_path",
    "attend",
    "limit_window",
    "parts",
    "paths",
    "replace_part",
    "replace_path",
]

Hook = Callable[[Tensor, object], Tensor]


@contextmanager
def ablate(
    model: HookedDecoder,
    part: str,
    *,
    kind: Kind | str = "zero",
    reference: Int[Tensor, "reference position"] | None = None,
    seed: int = 0,
) -> Iterator[HookedDecoder]:
    """Replace a part's output wherever it is read.

    Args:
        model: A model or a stack.
        part: Its name, as in `parts(model)`.
        kind: `"zero"`; `"mean"` over sequences at each position; `"resample"`: the value at the same position
            of another sequence that is run with it; `"same_token"`: of another sequence with the same current
            token there (behind a query token, with the same token before it), so that only the history is
            another. A token that is alone keeps its value.
        reference: For `"mean"`, the sequences it is taken over; by default those that are run.
        seed: Of who stands in for whom.

    Raises:
        ValueError: For a part or a kind that does not exist, a kind that can change nothing in that part, and
            (when the model is run) a mean over one sequence.

    Example:
        >>> import torch
        >>> from mechmarkov.models.constructions.lookup_tables import direct_table
        >>> model = direct_table(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), n_ctx=4)
        >>> with ablate(model, "direct"):
        ...     model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 0.0], [0.0, 0.0]]]
        >>> model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    if part == "direct":
        with ablate_path(model, "embed", "logits", kind=kind, reference=reference, seed=seed):
            yield model
        return
    if part == "bias":
        if kind != "zero":
            raise ValueError(f"kind is {kind!r}, but bias is the same for all inputs: only 'zero' changes it")
        with model.hooks(_without_bias(model)):
            yield model
        return
    site = site_of(model, part)
    with stand_in(model, site, kind, reference, seed) as value, replace_part(model, part, value):
        yield model


@contextmanager
def replace_part(model: HookedDecoder, part: str, value: Replacement) -> Iterator[HookedDecoder]:
    """Replace a part's output by any function of it.

    Args:
        model: A model or a stack.
        part: `embed`, `pos_embed`, a head or an MLP.
        value: From the output to what stands in for it, both `[*stack, batch, position, d]`, where d is
            `d_head` for a head (its `hook_z`, before `W_O`) and `d_model` otherwise.
    """
    site = site_of(model, part)

    def hook(x: Tensor, hook: object) -> Tensor:
        del hook
        return site.put(x, value(site.of(x)))

    with model.hooks([(site.hook, hook)]):
        yield model


@contextmanager
def ablate_path(
    model: HookedDecoder,
    sender: str,
    receiver: str,
    *,
    kind: Kind | str = "zero",
    reference: Int[Tensor, "reference position"] | None = None,
    seed: int = 0,
) -> Iterator[HookedDecoder]:
    """Replace a part's output in what one later part reads, and nowhere else.

    What is cut is the direct path, through the residual stream alone; what the sender tells the receiver by
    way of other parts goes on (path patching, Wang et al. 2022, section 3.1; Goldowsky-Dill et al. 2023).

    Args:
        model: A model or a stack.
        sender: `embed`, `pos_embed`, a head or an MLP.
        receiver: `L1H0.Q`, `L1H0.K`, `L1H0.V`, an MLP, or `logits`.
        kind: As for `ablate`.
        reference: As for `ablate`.
        seed: As for `ablate`.

    Raises:
        ValueError: As `ablate` does, and where the sender does not come before the receiver.
    """
    check_path(model, sender, receiver)
    site = site_of(model, sender)
    with stand_in(model, site, kind, reference, seed) as value, replace_path(model, sender, receiver, value):
        yield model


@contextmanager
def replace_path(
    model: HookedDecoder, sender: str, receiver: str, value: Replacement
) -> Iterator[HookedDecoder]:
    """Replace a part's output by any function of it, in what one later part reads and nowhere else."""
    check_path(model, sender, receiver)
    site = site_of(model, sender)
    change: dict[str, Tensor] = {}

    def remember(x: Tensor, hook: object) -> None:
        del hook
        part = site.of(x)
        change["residual"] = _to_residual(model, site, value(part) - part)

    def add(x: Tensor, hook: object) -> Tensor:
        del hook
        return x + change["residual"]

    edit: Hook = add
    with ExitStack() as stack:
        if receiver == "logits":
            at = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
        elif receiver.endswith(".mlp"):
            stack.enter_context(_points(model, "hook_mlp_in", model.set_use_hook_mlp_in))
            at = f"blocks.{receiver[1:-4]}.hook_mlp_in"
        else:
            at, edit = _head_receiver(model, sender, receiver, change, stack)
        stack.enter_context(model.hooks([(site.hook, remember), (at, edit)]))
        yield model


def _head_receiver(
    model: HookedDecoder, sender: str, receiver: str, change: dict[str, Tensor], stack: ExitStack
) -> tuple[str, Hook]:
    """Where a head's query, key or value is edited, and how."""
    layer, head, side = receiving_head(receiver)
    norm = model.config.normalization_type is not None
    if not norm or (sender == "pos_embed" and model.config.positional_embedding_type == "shortformer"):
        # Nothing but a matrix is between (shortformer positions are added behind the norm).
        weight: Tensor = getattr(model.blocks[layer].attn, f"W_{side}")[..., head, :, :]

        def project(x: Tensor, hook: object) -> Tensor:
            del hook
            x = x.clone()
            x[..., head, :] += _times(change["residual"], weight)
            return x

        return f"blocks.{layer}.attn.hook_{side.lower()}", project
    point = f"hook_{side.lower()}_input"
    stack.enter_context(_points(model, point, model.set_use_split_qkv_input))

    def add(x: Tensor, hook: object) -> Tensor:
        del hook
        x[..., head, :] += change["residual"]
        return x

    return f"blocks.{layer}.{point}", add


def _times(x: Float[Tensor, "... d_in"], weight: Float[Tensor, "*stack d_in d_out"]) -> Tensor:
    return x @ (weight if weight.ndim == 2 else weight[:, None])


def _to_residual(model: HookedDecoder, site: Site, change: Tensor) -> Tensor:
    """A change of a part's output as a change of the residual stream."""
    if site.head is None:
        return change
    attn: Any = model.blocks[site.layer].attn
    return _times(change, attn.W_O[..., site.head, :, :])


def _without_bias(model: HookedDecoder) -> list[tuple[str, Hook]]:
    def less(bias: Tensor) -> Hook:
        return lambda x, hook: x - per_member(bias, x)

    blocks: list[Any] = list(model.blocks)
    hooks = [(f"blocks.{i}.hook_attn_out", less(block.attn.b_O)) for i, block in enumerate(blocks)]
    norm: Any = model.ln_final
    if getattr(norm, "b", None) is not None:
        hooks.append(("unembed.hook_in", less(norm.b)))
    return [*hooks, ("unembed.hook_out", less(model.unembed.b_U))]


@contextmanager
def _points(model: HookedDecoder, point: str, switch: Callable[[bool], None]) -> Iterator[None]:
    """Optional hook points for as long as they are needed; left alone where they were there before."""
    there = model._has(point)
    if not there:
        switch(True)
    try:
        yield
    finally:
        if not there:
            switch(False)
