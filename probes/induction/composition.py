"""What the weights by themselves say of a circuit: composition of heads, copying, and what chance gives."""

from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.components import head_name, norms_between
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.theory.kernel import double_centred

Input = Literal["Q", "K", "V"]
INPUTS: tuple[Input, ...] = get_args(Input)

RANDOM_PAIRS = 64

# A circuit whose state-dependent part is this small against the whole is float32 rounding.
CONSTANT = 1e-6

Pairs = Float[np.ndarray, "member from_layer from_head layer head"]


def _read_weight(
    decoder: HookedDecoder, layer: int, name: str, from_layer: int | None
) -> Float[Tensor, "member head d_model d_head"]:
    """A weight that reads the residual stream, with its norm's gain and centring folded in.

    Where norms stand behind the sums, with those of all that what a head of `from_layer` writes passes.
    Zeros where the layer's mixer has no such input: no score then.
    """
    mixer: Any = cast(Any, decoder.blocks[layer]).attn
    if name[-1] not in mixer.inputs:
        return torch.zeros_like(mixer.W_V)
    weight = decoder.weight(f"blocks.{layer}.attn.{name}").detach()
    if decoder.config.use_qk_norm and name != "W_V":
        gain = decoder.weight(f"blocks.{layer}.attn.{name[-1].lower()}_norm.w").detach()
        weight = weight * gain[:, None, None]
    norms: tuple[str, ...] = (f"blocks.{layer}.ln1",) * (decoder.config.normalization_type is not None)
    if not decoder.config.norm_first:
        writer, reader = (head_name(i, 0) for i in (layer if from_layer is None else from_layer, layer))
        norms = norms_between(decoder.config, writer, reader)
    for one in reversed(norms):
        norm: Any = decoder.get_submodule(one)
        if norm.w is not None:
            weight = norm.w.detach()[:, None, :, None] * weight
        if norm.centred:
            weight = weight - weight.mean(-2, keepdim=True)
    return weight


def composition(decoder: HookedDecoder) -> dict[Input, Pairs]:
    """TransformerLens' composition scores `|A B| / (|A| |B|)` of every head with every later one.

    `A` is the earlier head's `W_V W_O`; `B` what the later head reads it by: `W_Q W_K^T` for its queries, the
    transpose for its keys, `W_V W_O` for its values (Elhage et al. 2021). Gains of norms are folded in, those
    of queries and keys too.

    Args:
        decoder: A stack.

    Returns:
        By input "Q", "K" and "V"; NaN where the second head is not in a later layer, one of the two has zero
        weights, or a mixer is not linear.

    Example:
        >>> import mechmarkov as mm
        >>> composition(mm.Subject.of(mm.example("induction"), sequences=8).decoder)["K"][0, 0, :, 1].round(1)
        array([[0.2, 0.4],
               [0.6, 0.4]])
    """
    heads, layers = decoder.config.n_heads, range(decoder.config.n_layers)
    linear = all(block.attn.is_linear for block in cast("list[Any]", decoder.blocks))
    if len(layers) == 1 or not linear:  # no head is in a later layer, and the decompositions take time
        shape = (len(decoder), len(layers), heads, len(layers), heads)
        return {name: np.full(shape, np.nan) for name in INPUTS}
    if decoder.config.norm_first:
        return _scores(decoder, None)
    each = [_scores(decoder, from_layer) for from_layer in layers]
    return {name: np.stack([scores[name][:, i] for i, scores in enumerate(each)], axis=1) for name in INPUTS}


def _scores(decoder: HookedDecoder, from_layer: int | None) -> dict[Input, Pairs]:
    """Scores of all pairs; where norms stand behind the sums, right for those with a head of `from_layer`."""
    layers = range(decoder.config.n_layers)
    read = {
        name: torch.stack([_read_weight(decoder, layer, name, from_layer) for layer in layers], dim=1)
        for name in ("W_Q", "W_K", "W_V")
    }
    write = torch.stack([decoder.get_parameter(f"blocks.{i}.attn.W_O").detach() for i in layers], dim=1)
    factors = {
        "Q": (read["W_Q"], read["W_K"].mT),
        "K": (read["W_K"], read["W_Q"].mT),
        "V": (read["W_V"], write),
    }
    later = torch.ones(len(layers), len(layers), dtype=torch.bool).triu(1)[:, None, :, None]
    left, left_norm = _as_rows(read["W_V"], write)
    scores = {}
    for name, (c, d) in factors.items():
        right, right_norm = _as_rows(d.mT, c.mT)
        rows, columns = (rearrange(x, "m layer head row d -> m (layer head row) d") for x in (left, right))
        product = (rows @ columns.mT).view(*left.shape[:4], *right.shape[1:4])
        composed = product.norm(dim=(3, 6)) / left_norm[..., None, None] / right_norm[:, None, None]
        scores[cast(Input, name)] = torch.where(later, composed, torch.nan).double().numpy()
    return scores


def _as_rows(
    a: Float[Tensor, "*lead d_model d_head"], b: Float[Tensor, "*lead d_head d_model"]
) -> tuple[Float[Tensor, "*lead row d_model"], Float[Tensor, "*lead"]]:
    """Returns few rows that make a product's norm what `a @ b` makes it, and their own norm."""
    rows = torch.linalg.qr(a, mode="r").R @ b
    return rows, rows.norm(dim=(-2, -1))


def random_composition(config: DecoderConfig) -> Float[np.ndarray, " pair"]:
    """Composition scores of random heads of a model's shapes: what two heads have that never met.

    All factors are normal; queries, keys and values have one law, for their shapes are the same. NaN in a
    single layer, where no two heads meet.

    Args:
        config: The model's shapes, such as `run.config`.
    """
    if config.n_layers == 1:
        return np.full(RANDOM_PAIRS, np.nan)
    generator = torch.Generator().manual_seed(0)
    shape = (RANDOM_PAIRS, config.d_model, config.d_head)
    a, b, c, d = (torch.randn(shape, generator=generator) for _ in range(4))
    (left, left_norm), (right, right_norm) = _as_rows(a, b.mT), _as_rows(d, c.mT)
    return ((left @ right.mT).norm(dim=(-2, -1)) / left_norm / right_norm).numpy()


def copying(table: Float[np.ndarray, "*lead state state"]) -> Float[np.ndarray, "*lead"]:
    """`sum(lambda) / sum|lambda|` of a full OV circuit: 1 copies what it reads, -1 says anything else.

    The table is double-centred first, which a softmax cannot see and which leaves the eigenvalues of what
    it can see as they are (Elhage et al. 2021, "summarizing OV/QK matrices"). At two states one eigenvalue
    is left and the score is 1 or -1. NaN for a circuit that is constant over states.

    Example:
        >>> round(float(copying(np.eye(3))), 6), round(float(copying(-np.eye(3))), 6)
        (1.0, -1.0)
    """
    centred = double_centred(table)
    values = np.linalg.eigvals(centred)
    total = np.abs(values).sum(-1)
    constant = np.abs(centred).max((-2, -1)) <= CONSTANT * np.abs(table).max((-2, -1))
    return np.asarray(np.where(constant, np.nan, values.sum(-1).real / np.where(total > 0, total, 1.0)))
