"""Replacement values for a component's output: zero, its mean, or its value in another sequence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.interventions.intervention import intervention
from mechmarkov.interventions.positions import Positions, marked, reached
from mechmarkov.interventions.tokens import donors
from mechmarkov.models.components import Output, output_of
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.mixer import UNKNOWN_TOKEN
from mechmarkov.utils.errors import choice_of

Kind = Literal["zero", "mean", "resample", "same_token"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Activation = Float[Tensor, "*stack batch position d"]
Replacement = Callable[[Tensor], Tensor]
SEQUENCES_PER_PASS = 64  # over a reference


@intervention
def replace_component(model: HookedDecoder, component: str, value: Replacement) -> Iterator[HookedDecoder]:
    """Replace the output of `embed`, `pos_embed`, a head or an MLP by a function of it, wherever it is read.

    Output and replacement are `[*stack, batch, position, d]`, where d is `d_head` for a head (its slice of
    `hook_z`, before `W_O`) and `d_model` otherwise.

    Raises:
        ValueError: For an unknown component, and for `direct` and `bias`, which have no hook point.

    Example:
        >>> from mechmarkov.models.constructions.lookup_tables import direct_table
        >>> model = direct_table(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), n_ctx=4)
        >>> with replace_component(model, "embed", lambda x: 2 * x):
        ...     model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 2.0], [4.0, 6.0]]]
    """
    output = output_of(model.config, component)
    hook = (output.hook, lambda x, hook: output.replaced(x, value(output.read(x))))
    with reached(model, component), model.hooks([hook]):
        yield model


@contextmanager
def replacement(
    model: HookedDecoder,
    output: Output,
    kind: Kind | str,
    reference: Tensor | None,
    seed: int,
    positions: Positions | None = None,
) -> Iterator[Replacement]:
    """The value that replaces a component's output, for passes of the model inside the block.

    It is a function of the output, to its shape; kind, reference `[batch, position]`, seed and positions are
    as for `ablate`.

    Raises:
        ValueError: For an unknown kind, one that would change nothing in the component, or a reference for
            another kind than `"mean"`.
    """
    choice_of("kind", kind, KINDS)
    if kind != "mean" and reference is not None:
        raise ValueError(f"reference is given, but kind is {kind!r}: only a mean is taken over a reference")
    if kind != "zero" and output.hook == "hook_pos_embed":
        raise ValueError(
            f"kind is {kind!r}, but pos_embed is the same in all sequences: only 'zero' changes it"
        )
    if kind == "zero" and positions is None:
        yield torch.zeros_like
        return
    mean = None if reference is None else _mean_output(model, output, reference)
    seen: dict[str, Tensor] = {}

    def value(x: Tensor) -> Tensor:
        if kind == "zero":
            return torch.zeros_like(x)
        if kind == "mean":
            return _mean(x) if mean is None else _reference_mean(x, mean, seen["tokens"].shape[-1])
        return _resampled(model, x, seen["tokens"], kind == "same_token", seed)

    def at_positions(x: Tensor) -> Tensor:
        assert positions is not None
        *lead, length = seen["tokens"].shape
        chosen = marked(positions, lead, length, x.device)
        return torch.where(chosen[..., length - x.shape[-2] :, None], value(x), x)

    def listener(tokens: Tensor, _: int) -> None:
        seen.update(tokens=tokens)

    model.embed.listeners.append(listener)
    try:
        yield value if positions is None else at_positions
    finally:
        model.embed.listeners.remove(listener)


def _mean(x: Activation) -> Activation:
    """The mean over the batch, in the shape of `x`."""
    if x.shape[-3] < 2:
        raise ValueError("the mean over one sequence is that sequence: give a reference, or read several")
    return x.mean(-3, keepdim=True).expand_as(x)


def _reference_mean(
    x: Activation, mean: Float[Tensor, "*stack 1 reference_position d"], length: int
) -> Activation:
    """The mean over a reference at the positions of `x`, the last of that many (`HookedDecoder.forward`)."""
    if mean.shape[-2] < length:
        raise ValueError(f"reference has {mean.shape[-2]} positions, expected at least {length}")
    return mean[..., length - x.shape[-2] : length, :].expand_as(x)


def _mean_output(
    model: HookedDecoder, output: Output, reference: Int[Tensor, "batch position"]
) -> Float[Tensor, "*stack 1 position d"]:
    """A component's mean output over sequences."""
    sums: list[Tensor] = []
    hook = (output.hook, lambda x, hook: sums.append(output.read(x).sum(-3, keepdim=True)))
    with torch.no_grad(), model.hooks([hook]):
        for some in torch.split(reference, SEQUENCES_PER_PASS):
            model(some, return_type=None)
    return torch.stack(sums).sum(0) / len(reference)


def _resampled(
    model: HookedDecoder, x: Activation, tokens: Int[Tensor, "*stack batch token"], same: bool, seed: int
) -> Activation:
    """The values of other sequences; with `same`, of sequences in the same state at that position."""
    if tokens.shape[-2] < 2:
        raise ValueError("the batch has one sequence, and so no other to resample from")
    # A query token is not a state and has the one before it.
    if same and bool((tokens == UNKNOWN_TOKEN).any()):
        raise ValueError("kind is 'same_token', but the pass begins at a layer: give its tokens too")
    before = torch.cat([tokens[..., :1], tokens[..., :-1]], dim=-1)
    states = torch.where(tokens < model.config.d_vocab_out, tokens, before)
    donor = donors(states if same else torch.zeros_like(states), seed=seed)
    return x.gather(-3, donor[..., -x.shape[-2] :, None].expand_as(x))  # x may be only the last positions
