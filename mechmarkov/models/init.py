"""Initialisation: each model's weights, drawn from a generator of its own."""

import sys
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from mechmarkov.models.config import STATE_SPACES
from mechmarkov.models.decoder import HookedDecoder, check_decoder
from mechmarkov.models.mamba import STATE_SPACE_STARTS
from mechmarkov.utils.errors import choice_of, integer_of, list_of, number_of

Scheme = Literal["normal", "gpt2", "zero", "guideline", "rank_one"]

# Weights that write into the residual stream; GPT-2 and nanoGPT start them smaller by sqrt(2 n_layers).
RESIDUAL_PROJECTIONS = ("attn.W_O", "mlp.W_out")
READS_STREAM = ("W_Q", "W_K", "W_V", "W_G", "W_dt", "W_in", "W_gate", "W_U")
WRITES_STREAM = ("W_E", "W_pos", "W_O", "W_out")
# The guideline's constants; in canonical coordinates `w` is then between -5 and 0, in the median -2.3.
GUIDELINE = {"mlp.W_in": 1.0, "mlp.W_out": -1.0}


@torch.no_grad()
def initialise(
    decoder: HookedDecoder,
    seeds: Sequence[int],
    *,
    scheme: Scheme | Sequence[Scheme] = "normal",
    std: float | Sequence[float] = 0.02,
    zero: Sequence[Sequence[str]] | None = None,
) -> None:
    """Set every parameter of a decoder in place; a member of a stack starts as it would by itself.

    Args:
        decoder: A single model (one seed) or a stack (one seed a member).
        seeds: Member i is drawn from a CPU generator seeded with `seeds[i]`, so that its start depends
            neither on the device nor on its neighbours.
        scheme: One for all or one a member; biases are zero and norm weights one under each.
            `"normal"`: weights N(0, std²). `"gpt2"`: the same with `W_O` and `W_out` at
            `std / sqrt(2 n_layers)` (nanoGPT, and Makkuva et al. 2025). `"zero"`: all weights zero.
            `"guideline"`: the MLP's input weights are 1, its output weights -1, the rest N(0, std²) (Makkuva
            et al. 2024, arXiv 2406.03072: reaches the bigram where a standard start reaches the unigram).
            `"rank_one"`: every matrix is `std` times the outer product of two sign vectors, one for its rows
            and one for its columns; all axes that are the residual stream share one (the same paper's
            rank-one start; the norm of a matrix is that of an N(0, std²) one).
            A state space's decays, step sizes and convolutions start as in its paper under each but `"zero"`.
        std: The standard deviation of weights, one for all or one a member.
        zero: For each member, the names of parameters that start at zero under any scheme. The others start
            as they would without it.

    Raises:
        TypeError: An argument of the wrong kind.
        ValueError: For another number of seeds than of models, an unknown scheme, a negative or infinite
            `std`, or a name in `zero` that is not a parameter.

    Example:
        >>> from mechmarkov.models import DecoderConfig, HookedDecoder
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> stack, single = HookedDecoder(config, n_models=2), HookedDecoder(config)
        >>> initialise(stack, [3, 4], std=0.1)
        >>> initialise(single, [4], std=0.1)
        >>> torch.equal(stack[1].W_E, single.W_E)
        True
    """
    check_decoder(decoder)
    seeds = [integer_of("seeds", seed) for seed in list_of("seeds", seeds, "a seed for each model: [0]")]
    n_models = decoder.n_models or 1
    names = f"one of {', '.join(map(repr, get_args(Scheme)))}, or a list of them"
    schemes = [scheme] * n_models if isinstance(scheme, str) else list_of("scheme", scheme, names)
    stds = [std] * n_models if isinstance(std, int | float) else list_of("std", std, "a number, or a list")
    zeros = [()] * n_models if zero is None else list_of("zero", zero, "a list of names for each model")
    if not len(seeds) == len(schemes) == len(stds) == len(zeros) == n_models:
        raise ValueError(f"{len(seeds)} seeds for {n_models} models")
    for name in schemes:
        choice_of("scheme", name, get_args(Scheme))
        if name == "guideline" and decoder.config.attn_only:
            raise ValueError("scheme is 'guideline', which sets the MLP, but the model has none")
    for value in stds:
        number_of("std", value, "a finite number, at least 0", least=0, most=sys.float_info.max)
    parameters = dict(decoder.named_parameters())
    for zeroed in (name for names in zeros for name in names):
        if zeroed not in parameters:
            raise ValueError(f"zero names {zeroed!r}, which is not a parameter: {', '.join(parameters)}")
    for i, (seed, how, scale) in enumerate(zip(seeds, schemes, stds, strict=True)):
        generator = torch.Generator().manual_seed(seed)
        stream = _signs(decoder.config.d_model, generator) if how == "rank_one" else None
        for name, parameter in parameters.items():
            member = parameter if decoder.n_models is None else parameter[i]
            start = _start(name, member.shape, how, scale, decoder, generator, stream)
            member.copy_(torch.zeros(()) if name in zeros[i] else start)


def _start(
    name: str,
    shape: torch.Size,
    scheme: str,
    std: float,
    decoder: HookedDecoder,
    generator: torch.Generator,
    stream: Tensor | None,
) -> Tensor:
    leaf = name.rsplit(".", 1)[-1].removeprefix("_")  # which marks what heads share
    if leaf == "w":
        return torch.ones(shape)
    if scheme != "zero" and decoder.config.mixer in STATE_SPACES and leaf in STATE_SPACE_STARTS:
        return STATE_SPACE_STARTS[leaf](shape, generator)
    if scheme == "zero" or not leaf.startswith("W_"):
        return torch.zeros(shape)
    constant = [value for suffix, value in GUIDELINE.items() if name.endswith(suffix)]
    if scheme == "guideline" and constant:
        return torch.full(shape, constant[0])
    if stream is not None:
        return std * _rank_one(leaf, shape, generator, stream)
    if scheme == "gpt2" and name.endswith(RESIDUAL_PROJECTIONS):
        std /= (2 * decoder.config.n_layers) ** 0.5
    return torch.randn(shape, generator=generator, dtype=torch.float32).mul_(std)


def _rank_one(leaf: str, shape: torch.Size, generator: torch.Generator, stream: Tensor) -> Tensor:
    """Outer products `[..., rows, columns]`; the weight's name tells which axis is the residual stream."""
    rows, columns = (_signs(size, generator) for size in shape[-2:])
    if leaf in READS_STREAM:
        rows = stream
    if leaf in WRITES_STREAM:
        columns = stream
    return torch.outer(rows, columns).expand(shape)


def _signs(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (size,), generator=generator).mul_(2).sub_(1).to(torch.float32)
