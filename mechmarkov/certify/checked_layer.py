"""A checker's view of one layer: forms, and the most that its attention adds in any context.

It needs numpy and shares no code with the search. `checker` says what is checked and by which facts.
"""

import math
from itertools import product
from typing import Any

import numpy as np

OWN, UP = 2.0**-52, 1 + 1e-9  # twice the unit roundoff of our float64; more than the rounding of a radius
UNITS = {"exact": 0.0, "float32": 2.0**-24}  # of the model's evaluation
ELEMENTARY, BLOCK = 64, 32  # units that exp, tanh, erf, sin, cos are off by; keys that a kernel takes at once


def _below_root(low: Any, high: Any) -> Any:
    """Returns how far 1/√x is at most below its chord between two points."""
    touch = (2 / (np.sqrt(low * high) * (np.sqrt(low) + np.sqrt(high)))) ** (-2 / 3)  # where slopes are equal
    return np.maximum(1 / np.sqrt(low) + (low - touch) / touch**1.5 / 2 - 1 / np.sqrt(touch), 0)


def _below_relu(low: Any, high: Any) -> Any:
    """Returns how far max(x, 0) is at most below its chord between two points."""
    return np.maximum(-low, 0) * np.maximum(high, 0) / np.maximum(high - low, 1e-300)


# By its name a function, the largest |second derivative| (0: convex), and how far it is below its chord.
FUNCTIONS: dict[str, tuple[Any, float, Any]] = {
    "gelu": (lambda x: x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))), 0.79789, None),
    "gelu_new": (lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 0.81, None),
    "silu": (lambda x: x / 2 * (1 + np.tanh(x / 2)), 0.5, None),
    "relu": (lambda x: np.maximum(x, 0), 0.0, _below_relu),
    "1/sqrt": (lambda x: 1 / np.sqrt(x), 0.0, _below_root),
    "square": (np.square, 0.0, lambda low, high: (high - low) ** 2 / 4),
}


class Form:
    """Numbers `mid + slope · e ± rad`, e in [-1, 1], and their evaluations with unit roundoff u.

    `mid` and `rad` are `[*axes]`, and `slope` is `[*axes, symbol]`, None where there are no symbols.
    """

    def __init__(self, u: float, mid: Any, slope: Any = None, rad: Any = 0.0) -> None:
        self.u, self.mid = u, np.asarray(mid, dtype=np.float64)
        slope = np.zeros((*self.mid.shape, 0)) if slope is None else slope
        self.slope = np.broadcast_to(slope, (*self.mid.shape, slope.shape[-1]))
        self.rad = np.broadcast_to(rad * UP, self.mid.shape)
        self.spread = (np.abs(self.slope).sum(-1) + self.rad) * UP
        self.size = np.abs(self.mid) + self.spread
        self.low, self.high = (self.mid + sign * (self.spread + OWN * self.size) for sign in (-1, 1))

    def __getitem__(self, at: Any) -> "Form":
        return Form(self.u, self.mid[at], self.slope[at], self.rad[at])

    def gamma(self, n: float) -> float:
        """The share of the magnitudes that n operations are off by, `n u / (1 - n u)` (fact 1)."""
        share = n * (self.u + OWN)
        return share / (1 - share) if share < 0.5 else math.inf

    def off(self, n: float, more: Any = 0.0) -> "Form":  # by n operations on every number, and a radius
        return Form(self.u, self.mid, self.slope, self.rad + self.gamma(n) * self.size + more)

    def exact(self) -> "Form":  # what follows is nothing that the model evaluates
        return Form(0.0, self.mid, self.slope, self.rad)

    def dot(self, matrix: np.ndarray, n: int = 0) -> "Form":
        """`[..., d]` times `matrix` `[..., d, e]`, with n operations on every term besides its product."""
        across = np.swapaxes(matrix, -1, -2)
        slope = (across if matrix.ndim < 3 else across[..., None, :, :]) @ self.slope
        rad = (self.rad + self.gamma(self.mid.shape[-1] + n) * self.size) @ np.abs(matrix)
        return Form(self.u, self.mid @ matrix, slope, rad)

    def inner(self, other: Any) -> "Form":  # the sum of products with numbers of other symbols
        b = other if isinstance(other, Form) else Form(self.u, other)
        rad = np.abs(self.mid) * b.rad + self.rad * np.abs(b.mid) + self.spread * b.spread
        rad = (rad + self.gamma(self.mid.shape[-1] + 1) * self.size * b.size).sum(-1)
        linear = (np.abs(x.mid[..., None, :] @ y.slope).sum((-1, -2)) for x, y in ((self, b), (b, self)))
        return Form(self.u, (self.mid * b.mid).sum(-1), None, rad + sum(linear))

    def behind(self, n: int) -> "Form":  # of symbols behind n others
        return Form(self.u, self.mid, np.pad(self.slope, [(0, 0)] * self.mid.ndim + [(n, 0)]), self.rad)

    def pieces(
        self, centre: np.ndarray, share: np.ndarray
    ) -> "Form":  # e = centre + share · e', `[piece, d]`
        rad = np.broadcast_to(self.rad + self.exact().gamma(8) * self.size, (len(centre), *self.mid.shape))
        return Form(self.u, self.mid + centre @ self.slope.T, self.slope * share[:, None], rad)

    def folded(self, n: int) -> "Form":  # of the first symbols, and one a number that holds what is left
        return Form(self.u, self.mid, self.slope[..., :n]).bent(
            0, np.abs(self.slope[..., n:]).sum(-1) + self.rad
        )

    def pair(self, other: Any) -> tuple["Form", np.ndarray, np.ndarray]:  # and slopes of the same symbols
        b = other if isinstance(other, Form) else Form(self.u, other)
        n = max(self.slope.shape[-1], b.slope.shape[-1])
        x, y = (np.pad(f.slope, [(0, 0)] * f.mid.ndim + [(0, n - f.slope.shape[-1])]) for f in (self, b))
        return b, x, y

    def __add__(self, other: Any) -> "Form":
        b, own, others = self.pair(other)
        return Form(self.u, self.mid + b.mid, own + others, self.rad + b.rad).off(1)

    def __mul__(self, other: Any) -> "Form":
        b, own, others = self.pair(other)
        slope, rad = self.mid[..., None] * others + b.mid[..., None] * own, np.abs(self.mid) * b.rad
        linear = Form(self.u, self.mid * b.mid, slope, rad + np.abs(b.mid) * self.rad).off(1)
        return linear.bent(0, self.spread * b.spread * (1 + self.gamma(1)))

    def bent(self, mid: Any, rest: Any) -> "Form":  # a remainder: a symbol of its own, where there are any
        if not self.slope.shape[-1]:
            return Form(self.u, self.mid + mid, None, self.rad + rest * UP)
        own = rest[..., None] * UP * np.eye(rest.shape[-1])
        return Form(self.u, self.mid + mid, np.concatenate([self.slope, own], -1), self.rad)

    def through(self, name: str, least: float = -np.inf) -> "Form":
        """One of `FUNCTIONS` of every number; no number is below `least` (fact 3)."""
        low, high = np.maximum(self.low, least), np.maximum(self.high, least)
        function, bend, below = FUNCTIONS[name]
        ends, rise = (function(low), function(high)), bend * (high - low) ** 2 / 8 * UP
        down = rise if below is None else below(low, high) * UP
        steep = (ends[1] - ends[0]) / np.maximum(high - low, 1e-300)
        # GELU adds what may be near -1 to 1: it is off by a share of its argument, which it never exceeds.
        size = np.maximum(*(ends if name in ("1/sqrt", "square") else (-low, high))) + down + rise
        n = 1 if name == "square" else ELEMENTARY
        rounding = 2 * n * OWN * (size + np.abs(steep) * np.maximum(-low, high))
        chord = Form(0.0, steep * self.mid, steep[..., None] * self.slope, np.abs(steep) * self.rad).off(1)
        x = chord.bent(ends[0] - steep * low + (rise - down) / 2, (down + rise) / 2 + rounding)
        return Form(self.u, x.mid, x.slope, x.rad).off(0, self.gamma(n) * (size + rounding))

    def normed(self, weights: Any, name: str, kind: str | None, eps: float) -> "Form":
        """Each vector over `sqrt(mean(x²) + eps)`, centred first if LN; a ValueError where that may be 0."""
        if kind is None:
            return self
        d = self.mid.shape[-1]
        x = self.dot(np.eye(d) - 1 / d, 2) if kind[:2] == "LN" else self
        variance = x.through("square").dot(np.full((d, 1), 1 / d), 1) + np.array([eps])
        least = eps * (1 - x.gamma(4))
        if least <= 0 and (variance.low <= 0).any():
            raise ValueError(f"{name} may divide by zero")
        x = (x * variance.through("1/sqrt", least)).off(1)
        x = x * weights[f"{name}.w"] if f"{name}.w" in weights else x
        return x + weights[f"{name}.b"] if f"{name}.b" in weights else x


class Model:
    """A layer as tables over all positions and tokens, and what stands behind its attention."""

    def __init__(
        self, c: Any, weights: dict[str, np.ndarray], u: float, stream: Any = None, i: int = 0
    ) -> None:
        self.c, self.w = c, (w := {name.removeprefix(f"blocks.{i}."): x for name, x in weights.items()})
        positions = w.get("pos_embed.W_pos", np.zeros((c.n_ctx, 1)))[:, None]
        first, later = (c.positional_embedding_type == kind for kind in ("standard", "shortformer"))
        table = Form(u, np.broadcast_to(w["embed.W_E"], (c.n_ctx, *w["embed.W_E"].shape)))
        self.stream = stream or (table + positions if first else table)
        x = self.stream.normed(w, "ln1", c.normalization_type if c.norm_first else None, c.eps)
        x = x.folded(stream.slope.shape[-1]) if stream else x
        v = self.read("V", x).off(2 * c.n_ctx + 4 * (2 + c.n_ctx // BLOCK))  # the sums over keys
        self.q, self.k = (self.read(side, x + positions if later else x) for side in "QK")
        out = v[:, :, :, None].dot(w["attn.W_O"], (c.n_heads - 1) * c.d_head + 1)[:, :, :, 0]
        mid, slope, rad = (np.moveaxis(part, 2, 0) for part in (out.mid, out.slope, out.rad))
        self.written = Form(u, mid, slope, rad)
        self.base = self.stream + w["attn.b_O"]
        self.W_U = w["embed.W_E"][: c.d_vocab_out].T if c.tied else w["unembed.W_U"]

    def read(self, side: str, x: Form) -> Form:  # queries, keys or values, [position, token, head, d_head]
        c, name = self.c, "_" * (self.c.n_key_value_heads is not None and side in "KV")
        W, b = (self.w[f"attn.{name}{part}_{side}"] for part in "Wb")
        x = x[:, :, None, None].dot(W, 1)[:, :, :, 0] + b
        if c.use_qk_norm and side in "QK":
            x = x.normed(self.w, f"attn.{side.lower()}_norm", "RMS", c.eps)
        if c.positional_embedding_type == "rotary" and side in "QK":
            order, half, pairs = np.arange(c.rotary_dim), c.rotary_dim // 2, c.rotary_adjacent_pairs
            partner, turn = (order ^ 1, order // 2) if pairs else ((order + half) % len(order), order % half)
            angle, error = np.arange(c.n_ctx)[:, None] / c.rotary_base ** (turn / half), 0 * x.size
            rotation = np.broadcast_to(np.eye(c.d_head), (c.n_ctx, c.d_head, c.d_head)).copy()
            rotation[:, order, order] = np.cos(angle)
            rotation[:, partner, order] = np.sin(angle) * np.where(partner > order, -1, 1)
            size = x.size[..., order] + x.size[..., partner]
            error[..., order] = x.gamma(ELEMENTARY) * (1 + angle[:, None, None]) * size
            x = x[:, :, :, None].dot(rotation[:, None, None], 2)[:, :, :, 0].off(0, error)
        return x[:, :, np.arange(c.n_heads) * len(W) // c.n_heads]

    def attention(self, n: int, token: int) -> tuple[np.ndarray, ...]:
        """Attention weights up to a factor and radii, `[head, key, token]`; 0 in front of the window."""
        first = 0 if self.c.window is None else max(0, n - self.c.window)
        own = self.q[n, token]
        score = self.k[first : n + 1].inner(own)
        if self.c.positional_embedding_type == "relative":
            by_lag = self.w["attn.W_rel"][:, n - np.arange(first, n + 1)].transpose(1, 0, 2)
            score = score + own.inner(by_lag)[:, None]
        score, bias = (score * (1 / self.c.score_scale)).off(4), self.lag_bias()
        score = score if bias is None else score + bias[n - np.arange(first, n + 1), None]
        mid, rad = score.mid.transpose(2, 0, 1), score.rad.transpose(2, 0, 1)
        top, blocks = mid.max((1, 2), keepdims=True), 2 + mid.shape[1] // BLOCK
        exponent = rad + score.gamma(4) * (np.abs(mid - top) + np.abs(mid) + np.abs(top) + rad)
        reach = (exponent + score.gamma(ELEMENTARY * blocks)) * UP  # from weight exp(-reach) to exp(reach)
        weight, unseen = np.exp(mid - top), ((0, 0), (first, 0), (0, 0))
        return tuple(
            np.pad(x, unseen) for x in (weight * np.cosh(reach), weight * np.sinh(reach) * UP + 1e-300)
        )

    def lag_bias(self) -> Form | None:  # what scores get by lag, `[lag, head]`
        name, n, lags = "attn.b_rel", self.c.n_heads, np.arange(self.c.n_ctx)[:, None]
        if self.c.positional_embedding_type != "alibi":
            return Form(self.stream.u, self.w[name].T).off(4) if name in self.w else None
        return Form(self.stream.u, -lags * 2.0 ** (-8 / n * np.arange(1, n + 1))).off(n + ELEMENTARY)

    def behind(self, before: Form, x: Form) -> Form:  # from the streams in front of attention and behind it
        c, w = self.c, self.w
        first, later = (c.normalization_type if c.norm_first is one else None for one in (True, False))
        x = x.normed(w, "ln1", later, c.eps)
        if not c.attn_only:
            y = (before if c.parallel_attn_mlp else x).normed(w, "ln2", first, c.eps)
            gate = y.dot(w["mlp.W_gate"]).through(c.act_fn) if c.gated_mlp else None
            y, b = y.dot(w["mlp.W_in"], 1), w["mlp.b_in"]
            y = (y + b).through(c.act_fn) if gate is None else gate * y + b
            x = (y.dot(w["mlp.W_out"], 1) + w["mlp.b_out"] + x).normed(w, "ln2", later, c.eps)
        return x

    def scores(self, x: Form) -> Form:  # from the stream behind the last layer
        last = self.c.normalization_type if self.c.final_norm else None
        return x.normed(self.w, "ln_final", last, self.c.eps).dot(self.W_U, 1) + self.w["unembed.b_U"]


class Case:
    """One position and the states at some lags: what contexts these are, and what attention gives them."""

    def __init__(self, model: Model, contexts: Any, read: int, *states: int) -> None:
        n, query, tokens = contexts["n_states"], contexts["query"], np.arange(model.c.d_vocab)
        self.model, self.where = model, f"at position {read} after state {', '.join(map(str, states))}"
        token = len(tokens) - 1 if query else states[0]
        self.weight, value = model.attention(read, token), model.written[:, : read + 1]
        self.own, self.base = model.stream[read, token], model.base[read, token]
        # Exponentials that underflow are off by a share of the largest.
        lost = 2.0**-120 if value.u and self.weight[0][self.weight[1] > 0].min() < 1e-34 else 0.0
        self.value = value.off(0, 4 * (read + 1) * lost * value.size.max((1, 2), keepdims=True))
        self.allowed, self.transitions = np.tile(tokens < n, (read + 1, 1)), np.ones((len(tokens),) * 2, bool)
        self.allowed[0, :n] &= contexts["start"]
        self.allowed[read] = (tokens == token) & (self.allowed[read] | query)
        for state, lag in zip(states, contexts["lags"], strict=False):  # the parent, and others of a case
            if read - query >= lag - 1:
                self.allowed[read - query - lag + 1] &= tokens == state
        self.transitions[:n, :n] = contexts["transitions"]

    def largest_sum(self, gain: np.ndarray) -> np.ndarray:
        """The largest sum over keys of any allowed context, of gains `[..., key, token]`."""
        gain = np.where(self.allowed, gain, -np.inf)
        if self.transitions.all():
            return gain.max(-1).sum(-1)
        best, forbidden = gain[..., 0, :], np.where(self.transitions, 0, -np.inf)
        for key in range(1, gain.shape[-2]):
            best = (best[..., None] + forbidden).max(-2) + gain[..., key, :]
        return best.max(-1)

    def heads_add(self, value: Form, directions: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """Fact 2 for multipliers `[direction, head]`; what the heads add at most in each direction."""
        over = np.moveaxis((value.exact().dot(directions.T) + -mu.T[:, None, None]).high, -1, 0)
        weight, rad = self.weight
        gain = over * np.where(over > 0, weight + rad, np.maximum(weight - rad, 0))
        above = np.where(self.allowed, np.maximum(gain, 0), 0).max(-1).sum(-1)
        if not (self.largest_sum(gain) + 2 * (gain.shape[-2] + 8) * OWN * above <= 0).all():
            raise ValueError(f"a multiplier {self.where} is too small")
        return mu.sum(-1) + 8 * (2 + mu.shape[-1]) * OWN * np.abs(mu).sum(-1)

    def in_scores(self) -> tuple[Form, Form, np.ndarray]:  # what heads read, and without them; the states
        W_U, b_U = self.model.W_U, self.model.w["unembed.b_U"]
        return self.value.dot(W_U, 2), self.base.dot(W_U, 1) + b_U, np.eye(len(b_U))

    def of_sums(self, stored: dict[str, np.ndarray]) -> np.ndarray:
        """Upper bounds of log(q_k / q_l), of scores that are sums of what the heads write."""
        value, base, eye = self.in_scores()
        above, below = np.nonzero(eye == 0)
        ratio, ends = stored.get("ratio", np.ones(len(above))), np.full(eye.shape, np.inf)
        above, below, mu, ratio = (x[ratio > 0] for x in (above, below, stored["multipliers"], ratio))
        pairs = eye[above] - ratio[:, None] * eye[below]
        margin = (base.exact().dot(pairs.T) + self.heads_add(value, pairs, mu)).high
        if "ratio" in stored:  # z_k <= ratio z_l, where z_l is above 0
            ceiling = (base.exact() + self.heads_add(value, eye, stored["ceiling"])).high
            floor = (base.exact() + -self.heads_add(value, -eye, stored["floor"])).low
            ends[ceiling <= 0] = -np.inf if (floor > 0).any() else 0.0
            margin = np.where((margin <= 0) & (floor[below] > 0), np.log(ratio), np.inf)
        ends[above, below] = margin
        return ends

    def box(self, basis: np.ndarray, multipliers: np.ndarray) -> Form:
        """A box around what heads write, whose axes are the symbols."""
        value, d = self.value, len(basis)
        add = self.heads_add(value, np.concatenate([basis.T, -basis.T]), multipliers)
        low, high = -add[d:], add[:d]
        middle, size = (low + high) / 2, np.maximum(np.abs(low), np.abs(high))
        half = ((high - low) / 2 + 4 * OWN * size) * UP
        missed = np.abs(np.eye(d) - basis @ basis.T) + 2 * d * OWN * np.abs(basis) @ np.abs(basis.T)
        rad = missed @ value.size.max((1, 2)).sum(0) + 2 * d * OWN * size @ np.abs(basis.T)
        return Form(value.u, basis @ middle, basis * half, rad)

    def pieces(self, cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The centre and share of each piece, `[piece, symbol]`, of two axes of the box and two others."""
        d, symbols = self.base.mid.size, self.base.mid.size + self.base.slope.shape[-1]
        cut = {
            at: n for at, n in zip((0, 1, d, d + 1), cuts.astype(int).tolist(), strict=True) if at < symbols
        }
        if min(cut.values()) < 1:
            raise ValueError(f"a box {self.where} has no pieces")
        centres = np.array(list(product(*[(2 * np.arange(n) + 1) / n - 1 for n in cut.values()])))
        centre, share = np.zeros((len(centres), symbols)), np.ones((len(centres), symbols))
        centre[:, list(cut)], share[:, list(cut)] = centres, [1 / n + 4 * OWN * (n > 1) for n in cut.values()]
        return centre, share

    def through(self, box: Form, centre: np.ndarray, share: np.ndarray) -> Form:
        """The stream behind the layer, in each piece."""
        own, base = (x.behind(box.slope.shape[-1]) for x in (self.own, self.base))
        return self.model.behind(own.pieces(centre, share), (box + base).pieces(centre, share))

    def of_relaxed(self, stored: dict[str, np.ndarray]) -> np.ndarray:
        """The same of logits behind norms or an MLP: over the pieces of a box around what heads write."""
        closed, d = stored["closed"], self.base.mid.size
        box, (centre, share) = self.box(stored["basis"], stored["multipliers"]), self.pieces(stored["cuts"])
        scores = self.model.scores(self.through(box, centre, share)).exact()
        written = box.exact().pieces(centre[:, :d], share[:, :d])
        margins, eye = np.zeros(2 * scores.mid.shape[-1:]), np.eye(scores.mid.shape[-1])
        for k, against in np.argwhere(eye == 0):
            different = scores.dot((eye[k] - eye[against])[:, None])
            upper = different.high[:, 0].copy()
            for row in closed[(closed[:, :2] == (k, against)).all(1)]:  # along a direction, and the rest
                piece, direction, mu = int(row[2]), row[3 : 3 + d], row[3 + d :]
                rest = different + written.dot(-direction[:, None])
                total = (rest + self.heads_add(self.value, direction[None], mu[None])).high
                upper[piece] = min(upper[piece], total[piece, 0])
            margins[k, against] = upper.max()
        return margins

    def of_counts(self, _: dict[str, np.ndarray]) -> np.ndarray:
        """Upper bounds of log((q_k / n_k) / (q_l / n_l)), of one head that scores each token as itself."""
        (value, base, eye), (weight, rad) = self.in_scores(), self.weight
        if len(weight) > 1 or base.size.any() or value.size[..., eye == 0].any():
            raise ValueError("the scores are no counts times a row")
        low, high = (np.diagonal(side, axis1=2, axis2=3)[0] for side in (value.low, value.high))
        low, high = (((weight + sign * rad)[0] * x)[weight[0].any(1)] for sign, x in ((-1, low), (1, high)))
        if not (low > 0).all() or not self.transitions.all():
            raise ValueError("a token may have no score, or some transitions are forbidden")
        return np.log(high.max(0) * UP)[:, None] - np.log(low.min(0) / UP)
