"""An attention layer as finite tables: scores, values and what does not depend on the context.

What the first layer's attention reads at a position is a token and, with positions, where it stands: finitely
many inputs, however many sequences there are. So queries, keys and values are tables `[position, token]`,
norms in front of attention included. Only what stands behind attention sees the whole context. A later layer
has tables of affine forms (`later`): each holds what contexts make of a token at a position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from einops import rearrange
from jaxtyping import Float

from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.ball import ELEMENTARY, TINY, Ball, gamma, up
from mechmarkov.certify.bounds.norms import normalised
from mechmarkov.models.config import DecoderConfig

# The fewest keys that a fused kernel takes at once; between two blocks it rescales by an exponential.
BLOCK = 32
MOST_SPREAD = 1e30  # of what attention reads, and of its weights: no float holds products of more

Weights = Mapping[str, Float[np.ndarray, "..."]]


def why_no_layer(config: DecoderConfig) -> str | None:
    """Returns why a model has no such tables, or None."""
    if config.mixer != "attention":
        return f"its mixer is {config.mixer!r}: bounds are known only for attention"
    return None


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer over every token at every position.

    Attributes:
        config: The shape of the model.
        weights: Its tensors by HookedTransformer's names, float64.
        unit: The unit roundoff of the evaluations that are covered.
        front: The residual stream in front of it, `[position, token, d_model]`; None for the first layer.
    """

    config: DecoderConfig
    weights: Weights
    unit: float
    front: Affine | None = None

    @cached_property
    def stream(self) -> Affine:
        """The residual stream in front of the layer, `[position, token, d_model]`."""
        if self.front is not None:
            return self.front
        tokens, kind = self.weights["embed.W_E"], self.config.positional_embedding_type
        table = Affine.exact(np.broadcast_to(tokens, (self.config.n_ctx, *tokens.shape)), self.unit)
        return table.plus(self.weights["pos_embed.W_pos"][:, None]) if kind == "standard" else table

    def norm(self, name: str, x: Affine) -> Affine:
        """A norm by its name, `blocks.0.ln2`; none changes nothing."""
        kind = self.config.normalization_type
        if kind is None:
            return x
        gain, shift = (self.weights.get(f"{name}.{part}") for part in "wb")
        return normalised(x, gain, shift, self.config.eps, centred=kind in ("LN", "LNPre"))

    @cached_property
    def inputs(self) -> Affine:
        """Returns what attention reads, `[position, token, d_model]`.

        Raises:
            ValueError: The sets that a later layer reads are too wide.
        """
        if not self.config.norm_first:
            return self.stream
        with np.errstate(over="ignore", invalid="ignore"):
            read = self.norm("blocks.0.ln1", self.stream)
        if self.front is None:
            return read
        if not (read.spread < MOST_SPREAD).all():  # NaN is not, either
            raise too_wide(self.config)
        return read.folded(self.front.slope.shape[-1])

    def _read(self, side: str, x: Affine) -> Affine:
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
            read = normalised(read, gain, None, self.config.eps, centred=False)
        return read[:, :, np.arange(heads) * len(weight) // heads]

    @cached_property
    def _queries_and_keys(self) -> tuple[Affine, Affine]:
        kind, x = self.config.positional_embedding_type, self.inputs
        if kind == "shortformer":
            x = x.plus(self.weights["pos_embed.W_pos"][:, None])
        queries, keys = self._read("Q", x), self._read("K", x)
        return (self._rotated(queries), self._rotated(keys)) if kind == "rotary" else (queries, keys)

    def _rotated(self, x: Affine) -> Affine:
        """Rotary positions: a matrix for each, with angles, sines and cosines as the model rounds them."""
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
        turned = x.rows.dot(rotation[:, None, None], extra=2)[:, :, :, 0]
        error = np.zeros_like(turned.rad)
        error[..., order] = (
            gamma(ELEMENTARY, x.unit)
            * (1 + angle[:, None, None])
            * (x.size[..., order] + x.size[..., partner])
        )
        return Affine(turned.mid, turned.slope, up(turned.rad + error), x.unit)

    def first_key(self, query: int) -> int:
        """The first position that a query sees."""
        return 0 if self.config.window is None else max(0, query - self.config.window)

    def scores(self, query: int, token: int) -> Ball:
        """Scores of a query token for every token at every key that it sees, `[head, key, token]`."""
        seen = slice(self.first_key(query), query + 1)
        queries, keys = self._queries_and_keys
        own = queries[query, token]
        scores = own[None, None].inner(keys[seen])
        if self.config.positional_embedding_type == "relative":
            lag = query - np.arange(seen.start, seen.stop)
            relative = Ball.exact(self.weights["blocks.0.attn.W_rel"], self.unit)
            by_lag = own[None].inner(relative[:, lag].transposed(1, 0, 2))
            scores = scores + by_lag[:, None]
        scale = Ball.exact(1 / self.config.score_scale, self.unit)
        scores = (scores * scale).widened(gamma(4, self.unit)).transposed(2, 0, 1)
        if self._lag_bias is None:
            return scores
        return scores + self._lag_bias[:, query - np.arange(seen.start, seen.stop), None]

    @cached_property
    def _lag_bias(self) -> Ball | None:
        """Returns the bias of scores by lag, `[head, lag]`, where positions are one; else None."""
        match self.config.positional_embedding_type:
            case "relative_bias":
                table = Ball.exact(self.weights["blocks.0.attn.b_rel"], self.unit)
                return table.widened(gamma(4, self.unit))
            case "alibi":
                n_heads = self.config.n_heads
                slope = 2.0 ** (-8 / n_heads * np.arange(1, n_heads + 1))
                table = Ball.exact(-slope[:, None] * np.arange(self.config.n_ctx), self.unit)
                return table.widened(gamma(n_heads + ELEMENTARY, self.unit))  # the model's are powers
        return None

    def attention(self, query: int, token: int) -> Ball:
        """Attention weights up to a factor, `exp(score - largest)`, `[head, key, token]`.

        Raises:
            ValueError: The sets that a later layer reads are too wide.
        """
        scores = self.scores(query, token)
        largest = scores.mid.max((1, 2), keepdims=True)
        shifted, blocks = scores.mid - largest, 2 + scores.mid.shape[1] // BLOCK
        # The model takes off the largest score of the context, which is between a score and the largest here.
        subtracted = np.abs(shifted) + np.abs(scores.mid) + np.abs(largest) + scores.rad
        exponent = scores.rad + gamma(4, self.unit) * subtracted
        weight, reach = np.exp(shifted), up(exponent + gamma(ELEMENTARY * blocks, self.unit))
        with np.errstate(over="ignore", invalid="ignore"):
            # From weight exp(-reach) to weight exp(reach).
            mid, rad = weight * np.cosh(reach), up(weight * np.sinh(reach)) + TINY
        if self.front is not None and not ((rad < MOST_SPREAD) & (mid > 0)).all():
            raise too_wide(self.config)
        return Ball(mid, rad, self.unit)

    @cached_property
    def written(self) -> Affine:
        """Returns what a head would write if it read only a token at a key, `[head, key, token, d_model]`.

        The rounding of attention's sums over all keys is in it: a head's output is a mean of numbers in these
        forms, by weights in those of `attention`.
        """
        n_heads, d_head = self.config.n_heads, self.config.d_head
        keys, values = self.config.n_ctx, self._read("V", self.inputs)
        values = values.widened(2 * keys + 4 * (2 + keys // BLOCK)).transposed(2, 0, 1, 3)
        output = self.weights["blocks.0.attn.W_O"][:, None, None]
        return values.rows.dot(output, extra=(n_heads - 1) * d_head + 1)[:, :, :, 0]

    @cached_property
    def without_heads(self) -> Affine:
        """The residual stream behind attention, its heads left out, `[position, token, d_model]`."""
        return self.stream.plus(self.weights["blocks.0.attn.b_O"])

    @cached_property
    def scored(self) -> Affine:
        """`written`, unembedded without a final norm, `[head, key, token, state]`."""
        return self.written.dot(self.unembedding[0], extra=2)

    def base(self, read: int, token: int) -> Affine:
        """The scores of a query without its heads, without a final norm, `[state]`."""
        weight, bias = self.unembedding
        return self.without_heads[read, token].dot(weight, extra=1).plus(bias)

    @cached_property
    def unembedding(self) -> tuple[Float[np.ndarray, "d_model state"], Float[np.ndarray, " state"]]:
        """`W_U` and `b_U`."""
        tied = self.weights["embed.W_E"][: self.config.d_vocab_out].T
        return tied if self.config.tied else self.weights["unembed.W_U"], self.weights["unembed.b_U"]


def too_wide(config: DecoderConfig) -> ValueError:
    """Returns why a model of several layers has no bounds, as an error."""
    return ValueError(
        f"it has {config.n_layers} layers, and the first ones can write so much that nothing bounds what "
        "later ones read"
    )
