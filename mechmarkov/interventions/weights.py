"""Interventions on weights: other values inside a block, and truncation to a rank."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from mechmarkov.interventions.intervention import intervention
from mechmarkov.interventions.paths import replace_path
from mechmarkov.interventions.replace import Replacement
from mechmarkov.models.components import head_index, head_name, mlp_name
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import member_matmul
from mechmarkov.utils.text import shown

# Singular values this close, relative to the largest, count as equal: weights are float32. A basis of their
# common space is arbitrary, so they are kept or dropped together.
EQUAL_VALUES = 1e-5


@intervention
def edit_weights(model: HookedDecoder, weights: Mapping[str, Tensor]) -> Iterator[HookedDecoder]:
    """Give parameters other values; the old ones return after the block, also after an exception.

    `weights` has the new values by HookedTransformer's names, in the shapes of the old ones.

    Raises:
        ValueError: For an unknown parameter, or a value of another shape.

    Example:
        >>> import mechmarkov as mm
        >>> model = mm.example("walk").model()
        >>> with edit_weights(model, {"unembed.b_U": torch.ones(6)}):
        ...     model.unembed.b_U.sum().item()
        6.0
    """
    parameters = dict(model.named_parameters())
    for name, value in weights.items():
        if name not in parameters:
            raise ValueError(f"weights has {shown(name)}, expected one of {', '.join(parameters)}")
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
    """The weights that can be truncated, each with its parameters.

    `L0H0.OV` is `W_V W_O` and `L0H0.QK` is `W_Q W_K^T`, where the mixer is linear; `direct` is the embedding
    straight to the logits.

    Example:
        >>> import mechmarkov as mm
        >>> weights_of(mm.example("walk").model())["L0H0.OV"]
        ('blocks.0.attn.W_V', 'blocks.0.attn.W_O')
    """
    config = model.config
    unembed = "embed.W_E" if config.tied else "unembed.W_U"
    weights: dict[str, tuple[str, ...]] = {"W_E": ("embed.W_E",)}
    mlp = ("W_gate", "W_in", "W_out") if config.gated_mlp else ("W_in", "W_out")
    for layer in range(config.n_layers):
        at = f"blocks.{layer}"
        block: Any = model.blocks[layer]
        has_keys = {"Q", "K"} <= set(block.attn.inputs)
        for head in range(config.n_heads if block.attn.is_linear else 0):
            if has_keys:
                weights[f"{head_name(layer, head)}.QK"] = (f"{at}.attn.W_Q", f"{at}.attn.W_K")
            weights[f"{head_name(layer, head)}.OV"] = (f"{at}.attn.W_V", f"{at}.attn.W_O")
        if not config.attn_only:
            weights |= {f"{mlp_name(layer)}.{name}": (f"{at}.mlp.{name}",) for name in mlp}
    weights["direct"] = ("embed.W_E", unembed)
    if not config.tied:
        weights["W_U"] = (unembed,)
    return weights


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
        """True for the `rank` largest directions, and for all with the last one's singular value."""
        if rank == 0:
            return torch.zeros_like(self.values, dtype=torch.bool)
        last = self.values[..., min(rank, self.values.shape[-1]) - 1, None]
        return self.values >= last - EQUAL_VALUES * self.values[..., :1]


@torch.no_grad()
def spectrum(model: HookedDecoder, weight: str) -> Spectrum:
    """The singular value decomposition of a weight named as in `weights_of`.

    Raises:
        ValueError: For an unknown weight.

    Example:
        >>> import mechmarkov as mm
        >>> spectrum(mm.example("walk").model(), "L0H0.OV").values.shape
        torch.Size([6])
    """
    known = weights_of(model)
    if weight not in known:
        raise ValueError(f"weight is {shown(weight)}, expected one of {', '.join(known)}")
    factors = [model.weight(name).detach().double() for name in known[weight]]
    if weight == "direct":
        matrix = factors[0] @ model.folded_unembedding().double()
    elif (head := _head_of(weight)) is None:
        (matrix,) = factors
    else:
        first, second = (factor[..., head, :, :] for factor in factors)
        second = second if weight.endswith("OV") else second.mT
        if first.shape[-1] <= min(first.shape[-2], second.shape[-1]):
            # TransformerLens' FactoredMatrix has it too, but begins by importing sympy, for a second.
            (onto, first), (along, second) = torch.linalg.qr(first), torch.linalg.qr(second.mT)
            left, values, right = torch.linalg.svd(first @ second.mT)
            return Spectrum(onto @ left, values, along @ right.mT)
        matrix = first @ second
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return Spectrum(left, values, right.mT)


def _head_of(weight: str) -> int | None:
    """The index of the head in its layer, for the weight of a head."""
    index = head_index(weight.partition(".")[0])
    return None if index is None else index[1]


@intervention
def truncate(
    model: HookedDecoder, weight: str, rank: int, *, known: Spectrum | None = None
) -> Iterator[HookedDecoder]:
    """Truncate a weight of `weights_of` to its `rank` largest singular directions; biases do not change.

    Directions of equal singular value are kept or dropped together, so it can be more (see `Spectrum.keep`).

    Args:
        model: A model or a stack.
        weight: Its name.
        rank: From 0 up.
        known: The weight's `spectrum`, where it is known already.

    Raises:
        ValueError: For an unknown weight or a negative rank.

    Example:
        >>> import mechmarkov as mm
        >>> model = mm.example("walk").model()
        >>> with truncate(model, "L0H0.OV", 0):
        ...     bool(model.get_parameter("blocks.0.attn.W_O").any())
        False
    """
    if rank < 0:
        raise ValueError(f"rank is {rank}, expected at least 0")
    known = known or spectrum(model, weight)
    keep = known.keep(rank).to(known.values)[..., None, :]
    if weight == "direct":
        truncated = replace_path(model, "embed", "logits", _projected_logits(model, known.right, keep))
    else:
        truncated = edit_weights(model, _truncated(model, weight, known, keep))
    with truncated:
        yield model


def _truncated(model: HookedDecoder, weight: str, known: Spectrum, keep: Tensor) -> dict[str, Tensor]:
    names = weights_of(model)[weight]
    if len(names) == 1:
        return {names[0]: (known.left * known.values[..., None, :] * keep) @ known.right.mT}
    head = _head_of(weight)
    assert head is not None  # `direct` is not a parameter, and all others have one factor
    if weight.endswith("QK"):
        W_Q = model.get_parameter(names[0]).detach().clone()
        W_Q[..., head, :, :] = ((known.left * keep) @ (known.left.mT @ W_Q[..., head, :, :].double())).to(W_Q)
        return {names[0]: W_Q}
    W_O = model.get_parameter(names[1]).detach().clone()
    before = W_O[..., head, :, :].double()
    after = ((before @ known.right) * keep) @ known.right.mT
    W_O[..., head, :, :] = after.to(W_O)
    # What the value bias writes does not belong to the weight: the output bias keeps it.
    at = names[1].removesuffix("W_O")
    b_V, b_O = (model.weight(at + name).detach().double() for name in ("b_V", "b_O"))
    written = einsum(b_V[..., head, :], before - after, "... d_head, ... d_head d -> ... d")
    return {names[1]: W_O, at + "b_O": b_O + written}


def _projected_logits(model: HookedDecoder, right: Tensor, keep: Tensor) -> Replacement:
    """The embedding without what it tells the logits outside the kept directions."""
    unembedding = model.folded_unembedding().double()
    # W_E F V V^T reaches the logits through F's pseudo-inverse: its rows are combinations of those of F.
    dropped = (unembedding @ right * (1 - keep)) @ right.mT @ torch.linalg.pinv(unembedding)
    return lambda x: x - member_matmul(x, dropped.to(x))
