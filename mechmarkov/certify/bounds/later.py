"""Layers behind others: what they read at a position is a set, over all contexts in front of a token.

What stands behind the first layer at a position and a token depends on the context, within an affine form
(`affine`). Its symbols are those of a box around what attention writes, and what norms and an MLP add. A
later layer reads such forms as the first one reads a table: queries, keys and values are forms, scores are
inner products of forms, and so intervals. Where each key's form may be anywhere in its range, whatever the
others are, the largest mean that a head can write is still one sum (`reading`). That is more than contexts
allow, so it is a bound, and not the worst case.
"""

import time
from dataclasses import replace
from typing import Final

import numpy as np
from jaxtyping import Float

from mechmarkov.certify.bounds import relaxed, tail
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import OWN, up
from mechmarkov.certify.bounds.layer import Layer, Weights, too_wide
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.bounds.relaxed import CUT_AXES, Basis, Cuts
from mechmarkov.certify.contexts import Contexts
from mechmarkov.models.config import DecoderConfig

MOST_NUMBERS: Final = 1 << 27  # in the slopes of one table: a gigabyte
PARTS: Final = (8, 64)  # of a box behind which there is another layer: along its longest axis, and all
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
        The layer, and what a proof keeps of those in front: `inner_basis` [layer, d_model, axis],
        `inner_multipliers` [layer, position, token, side_axis, head] and `inner_cuts` [layer, position,
        token, axis].

    Raises:
        TimeoutError: The time was over.
        ValueError: A norm may divide by zero.
    """
    # What the first layers write depends on the token at a position.
    contexts = replace(contexts, lags=(1,))
    layer, inner = Layer(config, of_layer(weights, 0), unit), list[Inner]()
    for index in range(1, config.n_layers):
        read, of_proof = _behind(layer, contexts, end)
        inner.append(of_proof)
        layer = Layer(config, of_layer(weights, index), unit, read)
    names = inner[0] if inner else ()
    return layer, {f"inner_{name}": np.stack([one[name] for one in inner]) for name in names}


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


def _whole(
    layer: Layer, reading: Reading, stream: Affine, basis: Basis, multipliers: np.ndarray, cuts: Cuts
) -> Affine:
    """Returns what stands behind a layer as one form, of the symbols of the box and of the streams.

    The symbols' ranges are cut. What norms and an MLP bend is small in a piece, and the pieces' forms lie
    along one.
    """
    box = relaxed.box(reading, basis, multipliers)
    before, behind = (relaxed.in_front(one, box) for one in (stream, reading.base))
    centre, share = relaxed.parts(cuts, len(basis), before.slope.shape[-1])
    after = tail.block(layer, before.pieces(centre, share), (box + behind).pieces(centre, share))
    return merged(after, centre, share)


def merged(pieces: Affine, centre: np.ndarray, share: np.ndarray) -> Affine:
    """One form around those of all pieces `[piece, d]`, of the symbols whose ranges are in pieces.

    Args:
        pieces: The forms, of symbols e' and others behind them.
        centre: In a piece a symbol of the whole is `centre + share · e'`; `[piece, symbol]`.
        share: Likewise.
    """
    n = centre.shape[-1]
    slope = (pieces.slope[..., :n] / share[:, None]).mean(0)
    along = centre @ slope.T
    mid = (pieces.mid - along).mean(0)
    rest = np.abs(pieces.slope[..., :n] - slope * share[:, None]).sum(-1) + pieces.rad
    rest += np.abs(pieces.mid - along - mid) + np.abs(pieces.slope[..., n:]).sum(-1)
    rest += 16 * n * OWN * (pieces.size + np.abs(mid) + np.abs(slope).sum(-1))
    return Affine(mid, slope, up(rest.max(0)), pieces.unit).folded(n)


def _behind(layer: Layer, contexts: Contexts, end: float) -> tuple[Affine, Inner]:
    """The stream behind a layer `[position, token, d_model]`, and what a proof keeps of its boxes."""
    positions, tokens, width = layer.stream.mid.shape
    where = [(at, token) for at in range(positions) for token in range(tokens) if contexts.exists(at, token)]
    basis = relaxed.longest_axes(Reading.of(layer, contexts, *where[-1], scored=False))
    directions = np.concatenate([basis.T, -basis.T])
    multipliers = np.zeros((positions, tokens, 2 * width, layer.config.n_heads))
    cuts = np.ones((positions, tokens, 2 * CUT_AXES), dtype=int)
    forms: dict[tuple[int, int], Affine] = {}
    for at, token in where:
        if time.monotonic() > end:
            raise TimeoutError("the time was not enough for all that its first layers can write")
        reading = Reading.of(layer, contexts, at, token, scored=False)
        multipliers[at, token] = reading.multipliers(directions)[0]
        if not np.isfinite(multipliers[at, token]).all():
            raise too_wide(layer.config)
        stream, own = layer.stream[at, token], multipliers[at, token]
        cuts[at, token] = relaxed.cuts_of(own, stream, *PARTS)
        forms[at, token] = _whole(layer, reading, stream, basis, own, cuts[at, token])
    symbols = next(iter(forms.values())).slope.shape[-1]
    mid, slope = np.zeros((positions, tokens, width)), np.zeros((positions, tokens, width, symbols))
    for place, form in forms.items():
        mid[place], slope[place] = form.mid, form.slope
    if not (np.isfinite(slope).all() and np.isfinite(mid).all()):
        raise too_wide(layer.config)
    of_proof = {"basis": basis, "multipliers": multipliers, "cuts": cuts}
    return Affine(mid, slope, np.zeros_like(mid), layer.unit), of_proof
