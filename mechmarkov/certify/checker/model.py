"""The model that a checker evaluates: one attention layer as tables, and forms that say how far they are off.

With `checks` this is all that a sceptic reads; it shares no code with the search and needs only numpy.
"""

import math
from typing import Any

import numpy as np

OWN = 2.0**-52  # twice the unit roundoff of our own float64
UP = 1 + 1e-9  # more than the rounding of a radius
ELEMENTARY = 64  # units that exp, tanh, erf, sin and cos of the model are off by
BLOCK = 32  # keys that a fused kernel takes at once, at least


def below_root(low: Any, high: Any) -> Any:
    """Returns how far 1/√x is below its chord between low and high, at most."""
    steep = 1 / (np.sqrt(low * high) * (np.sqrt(low) + np.sqrt(high)))
    touch = (2 * steep) ** (-2 / 3)
    return np.maximum((1 - steep * (touch - low) * np.sqrt(low)) / np.sqrt(low) - 1 / np.sqrt(touch), 0)


def below_relu(low: Any, high: Any) -> Any:
    """Returns how far a ReLU is below its chord between low and high, at most."""
    return np.maximum(-low, 0) * np.maximum(high, 0) / np.maximum(high - low, 1e-300)


# By its name a function, the largest |second derivative| (0: convex), and how far it is below its chord.
FUNCTIONS: dict[str, tuple[Any, float, Any]] = {
    "gelu": (lambda x: x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))), 0.79789, None),
    "gelu_new": (lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 0.81, None),
    "silu": (lambda x: x / (1 + np.exp(-x)), 0.5, None),
    "relu": (lambda x: np.maximum(x, 0), 0.0, below_relu),
    "1/sqrt": (lambda x: 1 / np.sqrt(x), 0.0, below_root),
}


class Form:
    """Numbers `mid + slope · e ± rad`, e in [-1, 1], and their evaluations with unit roundoff u."""

    def __init__(self, u: float, mid: Any, slope: Any = None, rad: Any = 0.0) -> None:
        self.u, self.mid = u, np.asarray(mid, dtype=np.float64)
        self.slope = np.zeros((*self.mid.shape, 0)) if slope is None else slope
        self.rad = np.broadcast_to(rad * UP, self.mid.shape)
        self.spread = (np.abs(self.slope).sum(-1) + self.rad) * UP
        self.size = np.abs(self.mid) + self.spread
        self.high = self.mid + self.spread + OWN * self.size
        self.low = self.mid - self.spread - OWN * self.size

    def __getitem__(self, at: Any) -> "Form":
        return Form(self.u, self.mid[at], self.slope[at], self.rad[at])

    def gamma(self, n: float) -> float:
        share = n * (self.u + OWN)
        return share / (1 - share) if share < 0.5 else math.inf

    def off(self, n: float, more: Any = 0.0) -> "Form":  # n operations on every number, and a radius
        return Form(self.u, self.mid, self.slope, self.rad + self.gamma(n) * self.size + more)

    def exact(self) -> "Form":  # what follows is nothing that the model evaluates
        return Form(0.0, self.mid, self.slope, self.rad)

    def dot(self, matrix: np.ndarray, n: int = 0) -> "Form":
        slope = np.swapaxes(np.swapaxes(self.slope, -1, -2) @ matrix, -1, -2) if self.slope.size else None
        rad = (self.rad + self.gamma(matrix.shape[-2] + n) * self.size) @ np.abs(matrix)
        return Form(self.u, self.mid @ matrix, slope, rad)

    def plus(self, other: Any) -> "Form":
        a, b = alike(self, other)
        return Form(self.u, a.mid + b.mid, a.slope + b.slope, a.rad + b.rad).off(1)

    def times(self, other: Any, n: int = 1) -> "Form":
        a, b = alike(self, other)
        slope = a.mid[..., None] * b.slope + b.mid[..., None] * a.slope
        found = Form(self.u, a.mid * b.mid, slope, np.abs(a.mid) * b.rad + np.abs(b.mid) * a.rad).off(n)
        return found.give_or_take(0 * a.mid, a.spread * b.spread * (1 + self.gamma(n)))

    def give_or_take(self, mid: Any, rest: Any) -> "Form":  # a symbol each, where there are any
        if not self.slope.shape[-1]:
            return Form(self.u, self.mid + mid, None, self.rad + rest * UP)
        own = rest[..., None] * UP * np.eye(rest.shape[-1])
        return Form(self.u, self.mid + mid, np.concatenate([self.slope, own], -1), self.rad)

    def through(self, name: str, least: float = -np.inf) -> "Form":
        function, bend, below = FUNCTIONS[name]
        low, high = np.maximum(self.low, least), np.maximum(self.high, least)
        down = rise = bend * (high - low) ** 2 / 8 * UP
        if below is not None:
            down, rise = below(low, high) * UP, 0 * low
        ends = function(low), function(high)
        steep = (ends[1] - ends[0]) / np.maximum(high - low, 1e-300)
        rest = ends[0] - steep * low, ends[1] - steep * high
        size = np.maximum(np.abs(ends[0]), np.abs(ends[1])) + down + rise
        rounding = ELEMENTARY * OWN * (size + np.abs(steep) * np.maximum(-low, high))
        off = np.abs(rest[1] - rest[0]) / 2 + (down + rise) / 2 + rounding
        chord = Form(0.0, steep * self.mid, steep[..., None] * self.slope, np.abs(steep) * self.rad).off(1)
        found = chord.give_or_take((rest[0] + rest[1] + rise - down) / 2, off)
        return Form(self.u, found.mid, found.slope, found.rad + self.gamma(ELEMENTARY) * (size + off))

    def normed(self, weights: Any, name: str, kind: str | None, eps: float) -> "Form":
        if kind is None:
            return self
        d = self.mid.shape[-1]
        x = self.dot(np.eye(d) - 1 / d, 2) if kind[:2] == "LN" else self
        variance = x.times(x).dot(np.full((d, 1), 1 / d), 1).plus(np.array([eps]))
        least = eps * (1 - x.gamma(4))
        if least <= 0 and (variance.low <= 0).any():
            raise ValueError(f"{name} may divide by zero")
        x = x.times(variance.through("1/sqrt", least), 2)
        x = x.times(weights[f"{name}.w"]) if f"{name}.w" in weights else x
        return x.plus(weights[f"{name}.b"]) if f"{name}.b" in weights else x


def alike(a: Form, other: Any) -> list[Form]:
    """Two forms with the same symbols and shape: those of one are the first of the other."""
    both = [a, other if isinstance(other, Form) else Form(a.u, other)]
    n, shape = max(x.slope.shape[-1] for x in both), np.broadcast_shapes(*(x.mid.shape for x in both))
    for i, x in enumerate(both):
        slope = np.pad(x.slope, [(0, 0)] * x.mid.ndim + [(0, n - x.slope.shape[-1])])
        parts = (
            np.broadcast_to(x.mid, shape),
            np.broadcast_to(slope, (*shape, n)),
            np.broadcast_to(x.rad, shape),
        )
        both[i] = Form(a.u, *parts)
    return both


class Model:
    """The model as tables over all positions and tokens, and what stands behind attention."""

    def __init__(self, config: Any, weights: dict[str, np.ndarray], u: float) -> None:
        self.c, self.w, self.u, c, w = config, weights, u, config, weights
        if c.n_layers > 1 or c.mixer != "attention":
            raise ValueError("the run has no single attention layer: nothing is certified of such models")
        kind, positions = (
            c.positional_embedding_type,
            w.get("pos_embed.W_pos", np.zeros((c.n_ctx, 1)))[:, None],
        )
        self.stream = Form(u, np.broadcast_to(w["embed.W_E"], (c.n_ctx, *w["embed.W_E"].shape)))
        self.stream = self.stream.plus(positions) if kind == "standard" else self.stream
        x = self.stream.normed(w, "blocks.0.ln1", c.normalization_type, c.eps)
        v = self.read("V", x).off(2 * c.n_ctx + 4 * (2 + c.n_ctx // BLOCK))  # the sums over keys
        x = x.plus(positions) if kind == "shortformer" else x
        self.q, self.k = self.read("Q", x), self.read("K", x)
        out = v[:, :, :, None].dot(w["blocks.0.attn.W_O"], (c.n_heads - 1) * c.d_head + 1)[:, :, :, 0]
        self.written = Form(u, out.mid.transpose(2, 0, 1, 3), None, out.rad.transpose(2, 0, 1, 3))
        self.base = self.stream.plus(w["blocks.0.attn.b_O"])
        self.W_U = w["embed.W_E"][: c.d_vocab_out].T if c.tied else w["unembed.W_U"]

    def read(self, side: str, x: Form) -> Form:  # queries, keys or values, [position, token, head, d_head]
        c, name = self.c, "_" * (self.c.n_key_value_heads is not None and side in "KV")
        W, b = (self.w[f"blocks.0.attn.{name}{part}_{side}"] for part in "Wb")
        x = x[:, :, None, None].dot(W, 1)[:, :, :, 0].plus(b)
        if c.use_qk_norm and side in "QK":
            x = x.normed(self.w, f"blocks.0.attn.{side.lower()}_norm", "RMS", c.eps)
        if c.positional_embedding_type == "rotary" and side in "QK":
            n, order, pairs = c.rotary_dim, np.arange(c.rotary_dim), c.rotary_adjacent_pairs
            partner, first = (order ^ 1, order % 2 == 0) if pairs else ((order + n // 2) % n, order < n // 2)
            turn = (order // 2 if pairs else order % (n // 2)) / (n // 2)
            angle = np.arange(c.n_ctx)[:, None] / c.rotary_base**turn
            rotation = np.broadcast_to(np.eye(c.d_head), (c.n_ctx, c.d_head, c.d_head)).copy()
            error, size = np.zeros_like(rotation), x.size[:, :, :, None]
            for at, wave in ((order, np.cos(angle)), (partner, np.sin(angle) * np.where(first, -1, 1))):
                rotation[:, at, order], error[:, at, order] = wave, x.gamma(ELEMENTARY) * (1 + angle)
            x = x[:, :, :, None].dot(rotation[:, None, None], 2)[:, :, :, 0]
            x = x.off(0, (size @ error[:, None, None])[:, :, :, 0])
        return x[:, :, np.arange(c.n_heads) * len(W) // c.n_heads]

    def attention(self, n: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Attention weights up to a factor and radii, `[head, key, token]`; 0 in front of the window."""
        first, own = 0 if self.c.window is None else max(0, n - self.c.window), self.q[n, token]
        score = inner(own, self.k[first : n + 1])
        if self.c.positional_embedding_type == "relative":
            by_lag = self.w["blocks.0.attn.W_rel"][:, n - np.arange(first, n + 1)].transpose(1, 0, 2)
            score = score.plus(inner(own, Form(self.u, by_lag))[:, None])
        score = score.times(1 / self.c.score_scale).off(4)
        mid, rad = score.mid.transpose(2, 0, 1), score.rad.transpose(2, 0, 1)
        top, blocks = mid.max((1, 2), keepdims=True), 2 + mid.shape[1] // BLOCK
        exponent = rad + score.gamma(4) * (np.abs(mid - top) + np.abs(mid) + np.abs(top) + rad)
        relative = np.expm1((exponent + score.gamma(ELEMENTARY * blocks)) * UP) * UP
        weight, unseen = np.exp(mid - top), ((0, 0), (first, 0), (0, 0))
        return np.pad(weight, unseen), np.pad(weight * relative + 1e-300, unseen)

    def scores(self, before: Form, x: Form) -> Form:  # from the streams in front of attention and behind it
        c, w = self.c, self.w
        if not c.attn_only:
            y = (before if c.parallel_attn_mlp else x).normed(w, "blocks.0.ln2", c.normalization_type, c.eps)
            gate = y.dot(w["blocks.0.mlp.W_gate"]).through(c.act_fn) if c.gated_mlp else None
            y, b_in = y.dot(w["blocks.0.mlp.W_in"], 1), w["blocks.0.mlp.b_in"]
            y = y.plus(b_in).through(c.act_fn) if gate is None else gate.times(y).plus(b_in)
            x = y.dot(w["blocks.0.mlp.W_out"], 1).plus(w["blocks.0.mlp.b_out"]).plus(x)
        x = x.normed(w, "ln_final", c.normalization_type, c.eps)
        return x.dot(self.W_U, 1).plus(w["unembed.b_U"])


def inner(a: Form, b: Form) -> Form:
    """Returns the dot product of two forms over their last axis."""
    rad = ((a.rad + a.gamma(a.mid.shape[-1] + 1) * a.size) * b.size + np.abs(a.mid) * b.rad).sum(-1)
    return Form(a.u, (a.mid * b.mid).sum(-1), None, rad)
