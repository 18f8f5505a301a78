"""Layers behind others: what they read at a position is a set, over all contexts in front of a token.

What stands behind the first layer at a position and a token depends on the context, within an affine form
(`affine`). Its symbols are those of a box around what attention writes, and what norms and an MLP add. A
later layer reads such forms as the first one reads a table: queries, keys and values are forms, scores are
inner products of forms, and so intervals. Where each key's form may be anywhere in its range, whatever the
others are, the largest mean that a head can write is still one sum (`reading`). That is more than contexts
allow, so it is a bound, and not the worst case.
"""

import time
from typing import Final

import numpy as np
from jaxtyping import Float

from mechmarkov.certify.bounds import relaxed, tail
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import OWN, up
from mechmarkov.certify.bounds.layer import Layer, Weights, too_wide
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.bounds.relaxed import Basis
from mechmarkov.certify.contexts import Contexts
from mechmarkov.models.config import DecoderConfig

MOST_NUMBERS: Final = 1 << 27  # in the slopes of one table: a gigabyte
PIECES: Final = 4  # of a box behind which there is another layer, along its longest axis
MOST_STORED: Final = 1 << 22  # multipliers of a proof: a hundred megabytes

Inner = dict[str, Float[np.ndarray, "..."]]


def why_no_layers(config: DecoderConfig, query: bool) -> str | None:
    """Returns why a model of several layers has no bounds, or None.

    Args:
        config: The model.
        query: Whether an added query token ends the input.
    """
    if query:
        return f"it has {config.n_layers} layers and an added query token: no bounds are known of both"
    heads = config.n_layers * config.d_head * config.n_heads
    table = config.n_ctx * config.d_vocab * heads * 2 * config.d_model
    stored = (config.n_layers - 1) * config.n_ctx * config.d_vocab * 2 * config.d_model * config.n_heads
    if table > MOST_NUMBERS or stored > MOST_STORED:
        return (
            f"it has {config.n_layers} layers of width {config.d_model} over {config.n_ctx} positions: "
            "bounds of that many sets take too much memory"
        )
    return None


def last_layer(
    config: DecoderConfig, weights: Weights, unit: float, contexts: Contexts, end: float = np.inf
) -> tuple[Layer, Inner]:
    """The last attention layer of a model, over what the layers in front of it can give.

    Args:
        config: The model.
        weights: Its tensors by HookedTransformer's names, float64.
        unit: Unit roundoff of the evaluations that are covered.
        contexts: Those that it can meet.
        end: The time of `time.monotonic` after which it is given up.

    Returns:
        The layer, and what a proof keeps of those in front: `inner_basis` [layer, d_model, axis] and
        `inner_multipliers` [layer, position, token, side_axis, head].

    Raises:
        TimeoutError: The time was over.
        ValueError: A norm may divide by zero.
    """
    layer, bases, kept = Layer(config, of_layer(weights, 0), unit), list[np.ndarray](), list[np.ndarray]()
    for index in range(1, config.n_layers):
        read, basis, multipliers = _behind(layer, contexts, end)
        bases.append(basis)
        kept.append(multipliers)
        layer = Layer(config, of_layer(weights, index), unit, read)
    if not bases:
        return layer, {}
    return layer, {"inner_basis": np.stack(bases), "inner_multipliers": np.stack(kept)}


def of_layer(weights: Weights, index: int) -> Weights:
    """A model's weights where those of one layer have the names of the first one's.

    Example:
        >>> sorted(of_layer({"embed.W_E": 0, "blocks.0.mlp.b_in": 1, "blocks.1.mlp.b_in": 2}, 1).items())
        [('blocks.0.mlp.b_in', 2), ('embed.W_E', 0)]
    """
    own = f"blocks.{index}."
    outside = {name: value for name, value in weights.items() if not name.startswith("blocks.")}
    return outside | {
        f"blocks.0.{name.removeprefix(own)}": value for name, value in weights.items() if name.startswith(own)
    }


def _whole(layer: Layer, reading: Reading, stream: Affine, basis: Basis, multipliers: np.ndarray) -> Affine:
    """Returns what stands behind a layer as one form, of the symbols of the box and of the streams.

    The box is cut: in a piece a symbol e of the whole is `centre + share · e'`, e' the symbol of the piece.
    What norms and an MLP bend is small there, and the pieces' forms lie along one.
    """
    low, high = relaxed.ends(basis.shape[1], multipliers)
    middle, half = relaxed.halves(low, high, 1)
    centre, share = relaxed.halves(low, high, PIECES)
    box = relaxed.box(reading, basis, multipliers, PIECES)
    before = relaxed.constant(stream, box)
    after = tail.block(layer, before, box + relaxed.constant(reading.base, box))
    d, n = half.shape[1], max(half.shape[1], before.slope.shape[-1])
    is_cut = share.max(0) < 0.75 * half
    size = np.where(is_cut, half, 1.0)
    error = np.where(is_cut, 8 * OWN * (1 + (np.abs(centre) + np.abs(middle)) / size), 0.0)
    centre = np.where(is_cut, (centre - middle) / size, 0.0)
    scale = np.ones((len(centre), 1, n))
    scale[:, 0, :d] = np.where(is_cut, share / size, 1.0)
    slope = (after.slope[..., :n] / scale).mean(0)
    along = centre @ slope[:, :d].T
    mid = (after.mid - along).mean(0)
    rest = np.abs(after.slope[..., :n] - slope * scale).sum(-1) + error @ np.abs(slope[:, :d]).T
    rest += np.abs(after.mid - along - mid) + np.abs(after.slope[..., n:]).sum(-1) + after.rad
    rest += 16 * n * OWN * (after.size + np.abs(mid) + np.abs(slope).sum(-1))
    return Affine(mid, slope, up(rest.max(0)), after.unit).folded(n)


def _behind(layer: Layer, contexts: Contexts, end: float) -> tuple[Affine, np.ndarray, np.ndarray]:
    """The residual stream behind a layer `[position, token, d_model]`, its basis and its multipliers."""
    positions, tokens, width = layer.stream.mid.shape
    where = [(at, token) for at in range(positions) for token in range(tokens) if contexts.exists(at, token)]
    basis = relaxed.longest_axes(Reading.of(layer, contexts, *where[-1], scored=False))
    directions = np.concatenate([basis.T, -basis.T])
    multipliers = np.zeros((positions, tokens, 2 * width, layer.config.n_heads))
    forms: dict[tuple[int, int], Affine] = {}
    for at, token in where:
        if time.monotonic() > end:
            raise TimeoutError("the time was not enough for all that its first layers can write")
        reading = Reading.of(layer, contexts, at, token, scored=False)
        multipliers[at, token] = reading.multipliers(directions)[0]
        if not np.isfinite(multipliers[at, token]).all():
            raise too_wide(layer.config)
        forms[at, token] = _whole(layer, reading, layer.stream[at, token], basis, multipliers[at, token])
    symbols = next(iter(forms.values())).slope.shape[-1]
    mid, slope = np.zeros((positions, tokens, width)), np.zeros((positions, tokens, width, symbols))
    for place, form in forms.items():
        mid[place], slope[place] = form.mid, form.slope
    if not (np.isfinite(slope).all() and np.isfinite(mid).all()):
        raise too_wide(layer.config)
    return Affine(mid, slope, np.zeros_like(mid), layer.unit), basis, multipliers
