"""What stands in for a part's output when it is ablated: nothing, its mean, or that of another sequence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from mechmarkov.interventions.tokens import donors
from mechmarkov.models.components import Site
from mechmarkov.models.decoder import HookedDecoder

Kind = Literal["zero", "mean", "resample", "same_token"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Replacement = Callable[[Tensor], Tensor]


@contextmanager
def stand_in(
    model: HookedDecoder, site: Site, kind: Kind | str, reference: Tensor | None, seed: int
) -> Iterator[Replacement]:
    """What takes the place of a part's output, for passes of the model inside the block.

    Args:
        model: A model, alone or a stack.
        site: The part.
        kind: `zero`; `mean` over sequences, at each position; `resample`, another sequence's at the same
            position; `same_token`, that of another sequence with the same token there.
        reference: Tokens `[batch, position]` that a mean is taken over; None for those that are run.
        seed: Of the choice of other sequences.

    Yields:
        A function of the part's output, of its shape.

    Raises:
        ValueError: A kind that is none or does not go with the part, or a reference that nothing is
            taken over.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}, expected one of {', '.join(map(repr, KINDS))}")
    if kind != "mean" and reference is not None:
        raise ValueError(f"reference is given, but kind is {kind!r}: only a mean is taken over a reference")
    if kind != "zero" and site.hook == "hook_pos_embed":
        raise ValueError(
            f"kind is {kind!r}, but pos_embed is the same in all sequences: only 'zero' changes it"
        )
    batch_axis = 0 if model.n_models is None else 1
    if kind == "zero":
        yield torch.zeros_like
    elif kind == "mean":
        yield _mean_value(batch_axis, None if reference is None else _mean_output(model, site, reference))
    else:
        with _tokens_read(model) as read:

            def resampled(x: Tensor) -> Tensor:
                labels = _labels(model, read["tokens"])
                if labels.shape[-2] < 2:
                    raise ValueError("one sequence alone has no other to be resampled from")
                giver = donors(labels if kind == "same_token" else torch.zeros_like(labels), seed=seed)
                position = torch.arange(x.shape[-2], device=x.device)
                if batch_axis == 0:
                    return x[giver, position]
                return x[torch.arange(len(x), device=x.device)[:, None, None], giver, position]

            yield resampled


def _mean_value(batch_axis: int, mean: Tensor | None) -> Replacement:
    def value(x: Tensor) -> Tensor:
        if mean is None:
            if x.shape[batch_axis] < 2:
                raise ValueError("the mean over one sequence is that sequence: give a reference")
            return x.mean(batch_axis, keepdim=True).expand_as(x)
        if mean.shape[-2] < x.shape[-2]:
            raise ValueError(f"reference has {mean.shape[-2]} positions, expected at least {x.shape[-2]}")
        return mean[..., : x.shape[-2], :].expand_as(x)

    return value


def _mean_output(model: HookedDecoder, site: Site, reference: Tensor) -> Tensor:
    """A part's mean output over sequences, `[*stack, 1, position, d]`."""
    batch_axis, total = (0 if model.n_models is None else 1), []

    def keep(x: Tensor, hook: object) -> None:
        del hook
        total.append(site.of(x).sum(batch_axis, keepdim=True))

    with torch.no_grad(), model.hooks([(site.hook, keep)]):
        for some in torch.split(reference, 64):
            model(some, return_type=None)
    return torch.stack(total).sum(0) / len(reference)


@contextmanager
def _tokens_read(model: HookedDecoder) -> Iterator[dict[str, Tensor]]:
    """The tokens of the forward pass under way."""
    read: dict[str, Tensor] = {}

    def keep(_: object, args: tuple[Tensor]) -> None:
        read["tokens"] = args[0]

    handle = model.embed.register_forward_pre_hook(keep)
    try:
        yield read
    finally:
        handle.remove()


def _labels(model: HookedDecoder, tokens: Int[Tensor, "*stack batch position"]) -> Tensor:
    """The current state at each position: a query token, which is no state, has that before it."""
    before = torch.cat([tokens[..., :1], tokens[..., :-1]], dim=-1)
    return torch.where(tokens < model.config.d_vocab_out, tokens, before)
