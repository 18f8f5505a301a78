"""Where training starts: weights drawn from one generator per model."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from mechmarkov.models.decoder import HookedDecoder

Scheme = Literal["normal", "gpt2", "zero"]

# What writes into the residual stream; GPT-2 and nanoGPT shrink its start by sqrt(2 n_layers).
RESIDUAL_PROJECTIONS = ("attn.W_O", "mlp.W_out")


@torch.no_grad()
def initialise(
    decoder: HookedDecoder, seeds: Sequence[int], *, scheme: Scheme = "normal", std: float = 0.02
) -> None:
    """Set every parameter of a decoder, in place; a member of a stack starts as it would alone.

    Args:
        decoder: A single model (one seed) or a stack (one seed a member).
        seeds: Member i is drawn from a CPU generator seeded with `seeds[i]`, so that its start depends
            neither on the device nor on its neighbours.
        scheme: `"normal"`: weights N(0, std²). `"gpt2"`: the same with `W_O` and `W_out` at
            `std / sqrt(2 n_layers)` (nanoGPT, and Makkuva et al. 2025). `"zero"`: all weights zero.
            Biases are zero and norm weights one under each.
        std: The standard deviation of weights.

    Raises:
        ValueError: If there are not as many seeds as models, or the scheme or `std` is none.
    """
    if scheme not in get_args(Scheme):
        raise ValueError(f"scheme is {scheme!r}, expected one of {', '.join(map(repr, get_args(Scheme)))}")
    if not 0 <= std < float("inf"):
        raise ValueError(f"std is {std}, expected a finite number, at least 0")
    n_models = decoder.n_models or 1
    if len(seeds) != n_models:
        raise ValueError(f"{len(seeds)} seeds for {n_models} models")
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for name, parameter in decoder.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "w":
            parameter.fill_(1.0)
        elif scheme == "zero" or not leaf.startswith("W_"):
            parameter.zero_()
        else:
            scale = std
            if scheme == "gpt2" and name.endswith(RESIDUAL_PROJECTIONS):
                scale /= (2 * decoder.config.n_layers) ** 0.5
            members = parameter if decoder.n_models is not None else parameter[None]
            for member, generator in zip(members, generators, strict=True):
                draw = torch.randn(member.shape, generator=generator, dtype=torch.float32)
                member.copy_(draw.mul_(scale))
