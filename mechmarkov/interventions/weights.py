"""Interventions on weights: other values for as long as a block runs, and truncation to a rank."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens import FactoredMatrix

from mechmarkov.interventions.ablate import replace_path
from mechmarkov.interventions.replace import Replacement
from mechmarkov.models.components import HEAD
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.recording.paths import fold

# Singular values this close, relative to the largest, are one: weights are float32. A basis of their common
# space is arbitrary, so they are kept or dropped together.
SAME = 1e-5


@contextmanager
def edit_weights(model: HookedDecoder, weights: Mapping[str, Tensor]) -> Iterator[HookedDecoder]:
    """Give parameters other values; the old ones are back after the block, also after an exception.

    Args:
        model: A model or a stack.
        weights: New values by HookedTransformer's names, in the shapes of the old ones.

    Raises:
        ValueError: For a parameter that does not exist, or a value of another shape.
    """
    parameters = dict(model.named_parameters())
    for name, value in weights.items():
        if name not in parameters:
            raise ValueError(f"weights has {name!r}, expected one of {', '.join(parameters)}")
        if value.shape != parameters[name].shape:
            raise ValueError(f"{name} has shape {list(value.shape)}, expected {list(parameters[name].shape)}")
    before = {name: parameters[name].data for name in weights}
    try:
        for name, value in weights.items():
            parameters[name].data = value.detach().to(parameters[name])
        yield model
    finally:
        for name, value in before.items():
            parameters[name].data = value


def weights_of(model: HookedDecoder) -> dict[str, tuple[str, ...]]:
    """The weights that can be truncated, and the parameters that each is made of.

    `L0H0.OV` is `W_V W_O` and `L0H0.QK` is `W_Q W_K^T`; `direct` is the embedding straight to the logits.
    """
    config = model.config
    unembed = "embed.W_E" if config.tied else "unembed.W_U"
    found: dict[str, tuple[str, ...]] = {"W_E": ("embed.W_E",)}
    for layer in range(config.n_layers):
        at = f"blocks.{layer}"
        for head in range(config.n_heads):
            found[f"L{layer}H{head}.QK"] = (f"{at}.attn.W_Q", f"{at}.attn.W_K")
            found[f"L{layer}H{head}.OV"] = (f"{at}.attn.W_V", f"{at}.attn.W_O")
        if not config.attn_only:
            found[f"L{layer}.mlp.W_in"] = (f"{at}.mlp.W_in",)
            found[f"L{layer}.mlp.W_out"] = (f"{at}.mlp.W_out",)
    found["direct"] = ("embed.W_E", unembed)
    if not config.tied:
        found["W_U"] = (unembed,)
    return found


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A weight's singular values and vectors, float64.

    Attributes:
        left: `[*stack, d_in, rank]`.
        values: Descending.
        right: `[*stack, d_out, rank]`.
    """

    left: Float[Tensor, "*stack d_in rank"]
    values: Float[Tensor, "*stack rank"]
    right: Float[Tensor, "*stack d_out rank"]

    def keep(self, rank: int) -> Bool[Tensor, "*stack rank"]:
        """The largest so many directions, and all that have the same singular value as one of them."""
        if rank == 0:
            return torch.zeros_like(self.values, dtype=torch.bool)
        last = self.values[..., min(rank, self.values.shape[-1]) - 1, None]
        return self.values >= last - SAME * self.values[..., :1]


@torch.no_grad()
def spectrum(model: HookedDecoder, weight: str) -> Spectrum:
    """The singular value decomposition of a weight named as in `weights_of`."""
    known = weights_of(model)
    if weight not in known:
        raise ValueError(f"weight is {weight!r}, expected one of {', '.join(known)}")
    if weight == "direct":
        table = model.embed.W_E.double() @ fold(model).double()
        left, values, right = torch.linalg.svd(table, full_matrices=False)
        return Spectrum(left, values, right.mT)
    factors = [model.get_parameter(name).double() for name in known[weight]]
    if len(factors) == 1:
        left, values, right = torch.linalg.svd(factors[0], full_matrices=False)
        return Spectrum(left, values, right.mT)
    match = HEAD.match(weight)
    assert match is not None  # all others have one factor
    first, second = (factor[..., int(match[2]), :, :] for factor in factors)
    second = second if weight.endswith("OV") else second.mT
    if first.shape[-1] > min(first.shape[-2], second.shape[-1]):
        left, values, right = torch.linalg.svd(first @ second, full_matrices=False)
        return Spectrum(left, values, right.mT)
    return Spectrum(*FactoredMatrix(first, second).svd())


@contextmanager
def truncate(
    model: HookedDecoder, weight: str, rank: int, *, found: Spectrum | None = None
) -> Iterator[HookedDecoder]:
    """Cut a weight to its largest singular directions; biases stay as they are.

    Args:
        model: A model or a stack.
        weight: Its name, as in `weights_of(model)`.
        rank: How many directions are kept; those of equal singular value are kept or dropped together, so
            it can be more (see `Spectrum.keep`).
        found: The weight's spectrum, where it is known already.

    Raises:
        ValueError: For a weight that does not exist or a negative rank.
    """
    if rank < 0:
        raise ValueError(f"rank is {rank}, expected at least 0")
    found = found or spectrum(model, weight)
    kept = found.keep(rank).to(found.values)[..., None, :]
    if weight == "direct":
        with replace_path(model, "embed", "logits", _projected_logits(model, found.right, kept)):
            yield model
        return
    with edit_weights(model, _truncated(model, weight, found, kept)):
        yield model


def _truncated(model: HookedDecoder, weight: str, found: Spectrum, kept: Tensor) -> dict[str, Tensor]:
    names = weights_of(model)[weight]
    if len(names) == 1:
        return {names[0]: (found.left * found.values[..., None, :] * kept) @ found.right.mT}
    match = HEAD.match(weight)
    assert match is not None  # all others have one factor, or are no parameter
    head = int(match[2])
    if weight.endswith("QK"):
        W_Q = model.get_parameter(names[0]).detach().clone()
        W_Q[..., head, :, :] = ((found.left * kept) @ (found.left.mT @ W_Q[..., head, :, :].double())).to(W_Q)
        return {names[0]: W_Q}
    W_O = model.get_parameter(names[1]).detach().clone()
    before = W_O[..., head, :, :].double()
    after = ((before @ found.right) * kept) @ found.right.mT
    W_O[..., head, :, :] = after.to(W_O)
    # What the value bias writes is no part of the weight: it goes on through the output bias.
    at = names[1].removesuffix("W_O")
    b_V, b_O = (model.get_parameter(at + name).detach().double() for name in ("b_V", "b_O"))
    written = einsum(b_V[..., head, :], before - after, "... d_head, ... d_head d -> ... d")
    return {names[1]: W_O, at + "b_O": b_O + written}


def _projected_logits(model: HookedDecoder, right: Tensor, kept: Tensor) -> Replacement:
    """An embedding less what it tells the logits outside of the directions kept."""
    down = fold(model).double()
    # W_E F V V^T reaches the logits through F's pseudo-inverse: its rows are combinations of those of F.
    dropped = (down @ right * (1 - kept)) @ right.mT @ torch.linalg.pinv(down)

    def value(x: Tensor) -> Tensor:
        change = dropped.to(x)
        return x - x @ (change if change.ndim == 2 else change[:, None])

    return value
