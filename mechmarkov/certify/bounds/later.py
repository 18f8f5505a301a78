"""Layers behind others: what they read at a position is a set, over all contexts in front of a token.

What stands behind the first layer at a position and a token depends on the context, within an affine form
(`affine`). Its symbols are those of a box around what attention writes, and what norms and an MLP add. A
later layer reads such forms as the first one reads a table: queries, keys and values are forms, scores are
inner products of forms, and so intervals. Where each key's form may be anywhere in its range, whatever the
others are, the largest mean that a head can write is still one sum (`reading`). That is more than contexts
allow, so it is a bound, and not the worst case.
"""

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from einops import rearrange
from jaxtyping import Float

from mechmarkov.certify.bounds import relaxed, tail
from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import ELEMENTARY, OWN, Ball, gamma, up
from mechmarkov.certify.bounds.layer import BLOCK, Layer, Weights
from mechmarkov.certify.bounds.reading import Reading
from mechmarkov.certify.bounds.relaxed import Basis
from mechmarkov.certify.contexts import Contexts
from mechmarkov.models.config import DecoderConfig

MOST_NUMBERS: Final = 1 << 27  # in the slopes of one table: a gigabyte
PIECES: Final = 4  # of a box behind which there is another layer, along its longest axis
MOST_SPREAD: Final = 1e30  # of what attention reads, and of its weights: no float holds products of more
MOST_STORED: Final = 1 << 22  # multipliers of a proof: a hundred megabytes

Inner = dict[str, Float[np.ndarray, "..."]]


@dataclass(frozen=True, eq=False)
class Later(Layer):
    """An attention layer that reads a form for every token at every position."""

    read: Affine  # the residual stream in front of it, `[position, token, d_model]`

    @cached_property
    def stream(self) -> Affine:  # type: ignore[override]
        """The residual stream in front of the layer, `[position, token, d_model]`."""
        return self.read

    @cached_property
    def inputs(self) -> Affine:  # type: ignore[override]
        """Returns what attention reads, `[position, token, d_model]`."""
        if not self.config.norm_first:
            return self.read
        with np.errstate(over="ignore", invalid="ignore"):
            read = tail.norm(self, "blocks.0.ln1", self.read).folded(self.read.slope.shape[-1])
        if not (read.spread < MOST_SPREAD).all():  # NaN is not, either
            raise _too_wide(self.config)
        return read

    def _read(self, side: str, x: Affine) -> Affine:  # type: ignore[override]
        """Queries, keys or values, `[position, token, head, d_head]`."""
        heads = self.config.n_heads
        shared = self.config.n_key_value_heads is not None and side in "KV"
        weight, bias = (self.weights[f"blocks.0.attn.{'_' * shared}{kind}_{side}"] for kind in "Wb")
        matrix = rearrange(weight, "head d_in d_head -> d_in (head d_head)")
        flat = x.dot(matrix, extra=1).plus(bias.ravel())
        shape = *x.mid.shape[:2], len(weight), self.config.d_head
        read = Affine(
            flat.mid.reshape(shape), flat.slope.reshape(*shape, -1), flat.rad.reshape(shape), flat.unit
        )
        if self.config.use_qk_norm and side in "QK":
            gain = self.weights[f"blocks.0.attn.{side.lower()}_norm.w"]
            read = tail.normalised(read, gain, None, self.config.eps, centred=False)
        return read[:, :, np.arange(heads) * len(weight) // heads]

    @cached_property
    def _queries_and_keys(self) -> tuple[Affine, Affine]:  # type: ignore[override]
        kind, x = self.config.positional_embedding_type, self.inputs
        if kind == "shortformer":
            x = x + relaxed.constant(self._ball("pos_embed.W_pos")[:, None], x)
        queries, keys = self._read("Q", x), self._read("K", x)
        return (self._turned(queries), self._turned(keys)) if kind == "rotary" else (queries, keys)

    def _turned(self, x: Affine) -> Affine:
        """Rotary positions, as `Layer._rotated`: a matrix for each position, and its rounding."""
        half = (size := self.config.rotary_dim or 0) // 2
        order = np.arange(size)
        if self.config.rotary_adjacent_pairs:
            partner, turn = order ^ 1, order // 2
        else:
            partner, turn = (order + half) % size, order % half
        angle = np.arange(self.config.n_ctx)[:, None] / self.config.rotary_base ** (turn / half)
        rotation = np.broadcast_to(np.eye(self.config.d_head), (len(angle), *[self.config.d_head] * 2)).copy()
        rotation[:, order, order] = np.cos(angle)
        rotation[:, partner, order] = np.sin(angle) * np.where(partner > order, -1, 1)
        rows = Affine(x.mid[..., None, :], x.slope[..., None, :, :], x.rad[..., None, :], x.unit)
        turned = rows.dot(rotation[:, None, None], extra=2)[:, :, :, 0]
        error = np.zeros_like(turned.rad)
        error[..., order] = (
            gamma(ELEMENTARY, x.unit)
            * (1 + angle[:, None, None])
            * (x.size[..., order] + x.size[..., partner])
        )
        return Affine(turned.mid, turned.slope, up(turned.rad + error), x.unit)

    def attention(self, query: int, token: int) -> Ball:
        """Attention weights up to a factor, `[head, key, token]`.

        Raises:
            ValueError: Their sets are too wide.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            weight = super().attention(query, token)
        if not (weight.rad < MOST_SPREAD).all() or not weight.mid.all():
            raise _too_wide(self.config)
        return weight

    @cached_property
    def written(self) -> Affine:  # type: ignore[override]
        """Returns what a head would write if it read only a token at a key, `[head, key, token, d_model]`."""
        n_heads, d_head = self.config.n_heads, self.config.d_head
        keys, values = self.config.n_ctx, self._read("V", self.inputs)
        values = values.widened(2 * keys + 4 * (2 + keys // BLOCK)).transposed(2, 0, 1, 3)
        rows = Affine(
            values.mid[..., None, :], values.slope[..., None, :, :], values.rad[..., None, :], values.unit
        )
        output = self.weights["blocks.0.attn.W_O"][:, None, None]
        return rows.dot(output, extra=(n_heads - 1) * d_head + 1)[:, :, :, 0]

    @cached_property
    def without_heads(self) -> Affine:  # type: ignore[override]
        """The residual stream behind attention, its heads left out, `[position, token, d_model]`."""
        return self.stream.plus(self.weights["blocks.0.attn.b_O"])


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
        layer = Later(config, of_layer(weights, index), unit, read)
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


def _whole(
    layer: Layer, reading: Reading, stream: Ball | Affine, basis: Basis, multipliers: np.ndarray
) -> Affine:
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
            raise _too_wide(layer.config)
        forms[at, token] = _whole(layer, reading, layer.stream[at, token], basis, multipliers[at, token])
    symbols = next(iter(forms.values())).slope.shape[-1]
    mid, slope = np.zeros((positions, tokens, width)), np.zeros((positions, tokens, width, symbols))
    for place, form in forms.items():
        mid[place], slope[place] = form.mid, form.slope
    if not (np.isfinite(slope).all() and np.isfinite(mid).all()):
        raise _too_wide(layer.config)
    return Affine(mid, slope, np.zeros_like(mid), layer.unit), basis, multipliers


def _too_wide(config: DecoderConfig) -> ValueError:
    return ValueError(
        f"it has {config.n_layers} layers, and the first ones can write so much that nothing bounds what "
        "later ones read"
    )
