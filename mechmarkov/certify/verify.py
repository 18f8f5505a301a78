"""Check a certificate. This file shares no code with the search: it needs numpy, and the run's own reader.

A proof claims bounds of KL(program ‖ model), log ratios and log odds over every sequence of some contexts. It
stores a table and multipliers; everything else is computed here from the weights, by four facts.

1. An evaluation with unit roundoff u of a sum, or a product of sums, of n terms is off by n u / (1 - n u) times
   the magnitudes at most (Higham 2002, lemma 3.1). A `Form` carries such radii; our float64 counts in u.
2. A head's output in a direction f, a mean of f_j(x_j) by weights w_j(x_j), is at most mu in every context if
   the largest sum of w_j (f_j - mu), over all states or over all paths, is not positive.
3. A form with symbols in [-1, 1] goes through sums as it is. A product adds the product of the spreads; a
   function how far it can be from its chord: bend · width² / 8, of a convex one where its slope is the chord's.
4. If log(q_k / q_l) - log(p_k / p_l) <= off[k, l], then KL(p ‖ q), convex in log(q / p), is largest at a corner of
   the box of these differences against the l where log(q / p) is smallest; at most off² / 8 (Hoeffding).
"""

import math
from itertools import product
from typing import Any

import numpy as np

OWN, UP, ELEMENTARY, BLOCK, FLOOR, MOST_CORNERS = 2.0**-52, 1 + 1e-9, 64, 32, 1e-12, 8
UNITS = {"exact": 0.0, "float32": 2.0**-24}


def relu_below(low: Any, high: Any) -> Any:
    return np.maximum(-low, 0) * np.maximum(high, 0) / np.maximum(high - low, 1e-300)


def root_below(low: Any, high: Any) -> Any:  # 1 / sqrt(x) below its chord
    a, b = np.sqrt(low), np.sqrt(high)
    steep = 1 / (a * b * (a + b))
    touch = (2 * steep) ** (-2 / 3)
    return np.maximum(1 / a - steep * (touch - low) - 1 / np.sqrt(touch), 0) + 1e-14 / a


# By its name a function, the largest |second derivative| (0: convex), and how far it is below its chord.
FUNCTIONS: dict[str, tuple[Any, float, Any]] = {
    "gelu": (lambda x: x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))), 0.79789, None),
    "gelu_new": (lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 0.81, None),
    "silu": (lambda x: x / (1 + np.exp(-x)), 0.5, None),
    "relu": (lambda x: np.maximum(x, 0), 0.0, relu_below),
    "1/sqrt": (lambda x: 1 / np.sqrt(x), 0.0, root_below),
}


class Form:
    """Numbers `mid + slope · e ± rad`, each e in [-1, 1], and all that evaluations with unit roundoff u give."""

    def __init__(self, u: float, mid: Any, slope: Any = None, rad: Any = 0.0) -> None:
        self.u, self.mid = u, np.asarray(mid, dtype=np.float64)
        self.slope = np.zeros((*self.mid.shape, 0)) if slope is None else slope
        self.rad = np.broadcast_to(rad * UP, self.mid.shape)
        self.spread = (np.abs(self.slope).sum(-1) + self.rad) * UP
        self.size = np.abs(self.mid) + self.spread
        self.high, self.low = (
            self.mid + self.spread + OWN * self.size,
            self.mid - self.spread - OWN * self.size,
        )

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
        variance, least = (
            x.times(x).dot(np.full((d, 1), 1 / d), 1).plus(np.array([eps])),
            eps * (1 - x.gamma(4)),
        )
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
        slope = np.broadcast_to(
            np.pad(x.slope, [(0, 0)] * x.mid.ndim + [(0, n - x.slope.shape[-1])]), (*shape, n)
        )
        both[i] = Form(a.u, np.broadcast_to(x.mid, shape), slope, np.broadcast_to(x.rad, shape))
    return both


class Model:
    """The model as tables over all positions and tokens, and what stands behind attention."""

    def __init__(self, config: Any, weights: dict[str, np.ndarray], u: float) -> None:
        self.c, self.w, self.u, c, w = config, weights, u, config, weights
        if c.n_layers > 1 or c.mixer != "attention":
            raise ValueError("the run has no single attention layer: nothing is certified of such models")
        kind, position = (
            c.positional_embedding_type,
            w.get("pos_embed.W_pos", np.zeros((c.n_ctx, 1)))[:, None],
        )
        self.stream = Form(u, np.broadcast_to(w["embed.W_E"], (c.n_ctx, *w["embed.W_E"].shape)))
        self.stream = self.stream.plus(position) if kind == "standard" else self.stream
        x = self.stream.normed(w, "blocks.0.ln1", c.normalization_type, c.eps)
        v, x = self.read("V", x), x.plus(position) if kind == "shortformer" else x
        self.q, self.k, steps = self.read("Q", x), self.read("K", x), 2 * c.n_ctx + 4 * (2 + c.n_ctx // BLOCK)
        out = v.off(steps)[:, :, :, None].dot(w["blocks.0.attn.W_O"], (c.n_heads - 1) * c.d_head + 1)[:, :, :, 0]
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
            turn = (order // 2 if pairs else order % (n // 2)) / (n // 2)
            angle = (np.arange(c.n_ctx)[:, None] / c.rotary_base**turn)[:, None, None]
            partner, first = (order ^ 1, order % 2 == 0) if pairs else ((order + n // 2) % n, order < n // 2)
            error = x.gamma(ELEMENTARY) * (1 + angle)
            sin, cos = (Form(self.u, wave, None, error) for wave in (np.sin(angle), np.cos(angle)))
            flipped = Form(self.u, x.mid[..., partner] * np.where(first, -1, 1), None, x.rad[..., partner])
            turned = x[:, :, :, :n].times(cos).plus(flipped.times(sin))
            both = ((getattr(turned, part), getattr(x, part)[..., n:]) for part in ("mid", "rad"))
            mid, rad = (np.concatenate(parts, -1) for parts in both)
            x = Form(self.u, mid, None, rad)
        return x[:, :, np.arange(c.n_heads) * len(W) // c.n_heads]

    def attention(self, n: int, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Attention weights up to a factor and their radii, `[head, key, token]`; 0 in front of the window."""
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
            y, gate = y.dot(w["blocks.0.mlp.W_in"], not c.gated_mlp), y
            if c.gated_mlp:
                y = gate.dot(w["blocks.0.mlp.W_gate"]).through(c.act_fn).times(y).plus(w["blocks.0.mlp.b_in"])
            else:
                y = y.plus(w["blocks.0.mlp.b_in"]).through(c.act_fn)
            x = y.dot(w["blocks.0.mlp.W_out"], 1).plus(w["blocks.0.mlp.b_out"]).plus(x)
        x = x.normed(w, "ln_final", c.normalization_type, c.eps)
        return x.dot(self.W_U, 1).plus(w["unembed.b_U"])


def inner(a: Form, b: Form) -> Form:
    rad = ((a.rad + a.gamma(a.mid.shape[-1] + 1) * a.size) * b.size + np.abs(a.mid) * b.rad).sum(-1)
    return Form(a.u, (a.mid * b.mid).sum(-1), None, rad)


class Case:
    """One position and parent: the contexts that it stands for, and what attention gives them."""

    def __init__(self, model: Model, contexts: Any, read: int, parent: int) -> None:
        n, query, lag, tokens = contexts["n_states"], contexts["query"], contexts["lag"], model.c.d_vocab
        self.model, self.read, self.parent, self.lag = model, read, parent, lag
        self.token = tokens - 1 if query else parent
        self.weight = model.attention(read, self.token)
        self.value, self.base = model.written[:, : read + 1], model.base[read, self.token]
        self.allowed = np.zeros((read + 1, tokens), dtype=bool)
        self.allowed[:, :n] = True
        self.allowed[:lag, :n] &= np.array(contexts["start"])
        self.allowed[read] &= np.arange(tokens) == parent
        if query:
            self.allowed[read] = np.arange(tokens) == tokens - 1
            self.allowed[read - 1 : read] &= np.arange(tokens) == parent
        self.transitions = np.ones((tokens, tokens), dtype=bool)
        self.transitions[:n, :n] = contexts["transitions"]

    def largest_sum(self, gain: np.ndarray) -> np.ndarray:
        """The largest sum over keys of any allowed context, of gains `[..., key, token]`."""
        gain, total = np.where(self.allowed, gain, -np.inf), np.zeros(gain.shape[:-2])
        if self.transitions.all():
            return gain.max(-1).sum(-1)
        for first in range(min(self.lag, gain.shape[-2])):
            best = gain[..., first, :]
            for key in range(first + self.lag, gain.shape[-2], self.lag):
                best = (best[..., None] + np.where(self.transitions, 0, -np.inf)).max(-2) + gain[..., key, :]
            total = total + best.max(-1)
        return total

    def heads_add(self, value: Form, directions: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """Fact 2 for multipliers `[direction, head]`; what the heads add at most in each direction."""
        f, (weight, rad) = value.exact().dot(directions.T), self.weight
        mid, size, f_rad = (np.moveaxis(x, -1, 0) for x in (f.mid, f.size, f.rad))
        over = mid + f_rad - mu[..., None, None] + 4 * OWN * (size + np.abs(mu)[..., None, None])
        gain = over * np.where(over > 0, weight + rad, np.maximum(weight - rad, 0))
        above = np.where(self.allowed, np.maximum(gain, 0), 0).max(-1).sum(-1)
        if not (self.largest_sum(gain) + 2 * (gain.shape[-2] + 8) * OWN * above <= 0).all():
            raise ValueError(f"a multiplier at position {self.read} after state {self.parent} is too small")
        return mu.sum(-1) + (2 + mu.shape[-1]) * OWN * np.abs(mu).sum(-1)

    def read_of(self, value: Form) -> Form:
        """What the heads read, where exponentials that underflow are off by a share of the largest."""
        lost = 2.0**-120 if value.u and self.weight[0][self.weight[1] > 0].min() < 1e-34 else 0.0
        return value.off(0, 4 * (self.read + 1) * lost * value.size.max((1, 2), keepdims=True))

    def of_sums(self, stored: dict[str, np.ndarray]) -> np.ndarray:
        """Upper bounds of log(q_k / q_l), of scores that are sums of what the heads write."""
        model = self.model
        value, base = (
            self.read_of(self.value.dot(model.W_U, 2)),
            self.base.dot(model.W_U, 1).plus(model.w["unembed.b_U"]),
        )
        eye, is_raw = np.eye(len(base.mid)), "ratio" in stored
        above, below = np.nonzero(eye == 0)
        ratio = stored["ratio"] if is_raw else np.ones(len(above))
        some, found = ratio > 0, np.full(eye.shape, np.inf)
        above, below, ratio = above[some], below[some], ratio[some]
        pairs = eye[above] - ratio[:, None] * eye[below]
        rest = base.exact().dot(pairs.T)
        margin = rest.high + self.heads_add(value, pairs, stored["multipliers"][some])
        margin = margin + 4 * OWN * (np.abs(margin) + rest.size)
        if is_raw:
            ceiling = base.high + self.heads_add(value, eye, stored["ceiling"]) + 8 * OWN * base.size
            floor = base.low - self.heads_add(value, -eye, stored["floor"]) - 8 * OWN * base.size
            found[ceiling <= 0] = -np.inf if (floor > 0).any() else 0.0
            margin = np.where((margin <= 0) & (floor[below] > 0), np.log(ratio), np.inf)
        found[above, below] = margin
        return found

    def of_relaxed(self, stored: dict[str, np.ndarray]) -> np.ndarray:
        """The same, of logits behind norms or an MLP: over the pieces of a box around what the heads write."""
        basis, model, d = stored["basis"], self.model, len(stored["basis"])
        value = self.read_of(self.value)
        closed = stored.get("closed", np.zeros((0, 2)))
        add = self.heads_add(value, np.concatenate([basis.T, -basis.T]), stored["multipliers"])
        low, high = -add[d:], add[:d]
        share = (high - low) / max((high - low).max(), 1e-300) * (np.arange(d) < 2)
        cuts = [max(1, round(float(stored["pieces"]) * one)) for one in share]
        edges = [np.linspace(a, b, cut + 1) for a, b, cut in zip(low, high, cuts, strict=True)]
        ends = np.array(list(product(*(zip(edge[:-1], edge[1:], strict=True) for edge in edges))))
        middle, size = ends.mean(-1), np.abs(ends).max(-1)
        half = ((ends[..., 1] - ends[..., 0]) / 2 + 4 * OWN * size) * UP
        missed = np.abs(np.eye(d) - basis @ basis.T) + 2 * d * OWN * np.abs(basis) @ np.abs(basis.T)
        rad = missed @ value.size.max((1, 2)).sum(0) + 2 * d * OWN * size @ np.abs(basis.T)
        box = Form(model.u, middle @ basis.T, basis * half[:, None], rad)
        scores = model.scores(model.stream[self.read, self.token], box.plus(self.base)).exact()
        found = np.zeros(2 * scores.mid.shape[-1:])
        for k, against in zip(*np.nonzero(~np.eye(len(found), dtype=bool)), strict=True):
            different = scores.dot((np.eye(len(found))[k] - np.eye(len(found))[against])[:, None])
            upper = different.high[:, 0].copy()
            for row in closed[(closed[:, :2] == (k, against)).all(1)]:
                piece, direction, mu = int(row[2]), row[3 : 3 + d], row[3 + d :]
                besides = different.plus(box.exact().dot(-direction[:, None])).high[piece, 0]
                total = besides + self.heads_add(value, direction[None], mu[None])[0]
                upper[piece] = min(upper[piece], total + 8 * OWN * (abs(total) + np.abs(mu).sum()))
            found[k, against] = upper.max()
        return found

    def of_counts(self, stored: dict[str, np.ndarray]) -> np.ndarray:
        """Upper bounds of log((q_k / n_k) / (q_l / n_l)), of one head that scores each token as itself."""
        model, (weight, rad) = self.model, self.weight
        value, base = (
            self.read_of(self.value.dot(model.W_U, 2)),
            self.base.dot(model.W_U, 1).plus(model.w["unembed.b_U"]),
        )
        if len(weight) > 1 or base.size.any() or value.size[..., ~np.eye(len(base.mid), dtype=bool)].any():
            raise ValueError("the scores are no counts times a row")
        own = [np.diagonal(side, axis1=2, axis2=3)[0] for side in (value.low, value.high)]
        low, high = (weight - rad)[0] * own[0], (weight + rad)[0] * own[1]
        if not (low > 0).all() or not self.transitions.all():
            raise ValueError("a token may have no score, or some transitions are forbidden")
        return np.log(high.max(0) * UP)[:, None] - np.log(low.min(0) / UP)


def in_nats(odds: np.ndarray, p: np.ndarray, any_law: bool) -> list[float]:
    """Fact 4: the largest KL, the smallest and the largest log ratio, and the largest error of log odds."""
    s, logs = np.flatnonzero(p > 0), np.log(p[p > 0])
    pad, outside = 1e-14 * (1 - logs.min()), np.exp(odds[:, s]).sum(0, where=(p == 0)[:, None])
    off, p = odds[np.ix_(s, s)] - (logs[:, None] - logs) + pad, p[s]
    np.fill_diagonal(off, 0.0)
    if any_law:
        return [off.max() ** 2 / 8, -off.max(), off.max(), off.max()]
    low = -np.log1p((p[:, None] * np.expm1(off)).sum(0) + p * outside) - pad
    high = -np.log1p(np.maximum((p * np.expm1(-off)).sum(1), p - 1)) + pad
    worst = 0.0
    for smallest in range(len(s)):
        least, most, more = np.maximum(0, -off[smallest]), off[:, smallest], p[smallest] * outside[smallest]
        if (most < least).any():
            continue
        if not np.isfinite([*most, more]).all():
            worst = np.inf
        elif len(odds) <= MOST_CORNERS:
            corners = np.array(list(product(*zip(least, most, strict=True))))
            worst = max(worst, (np.log1p((p * np.expm1(corners)).sum(1) + more) - corners @ p).max())
        else:
            worst = max(worst, most.max() ** 2 / 8 + math.log1p(more))
    return [min(worst + pad, -math.log(FLOOR)), low.min(), high.max(), off.max()]


def check_contexts(contexts: dict[str, Any], run: Any) -> None:
    """See that a proof leaves out no position, and no sequence of the run's law."""
    source, query, n = run.source, run.objective.query, run.model.n_ctx
    reads = [n - 1] if query or run.objective.read == "last" else list(range(n))
    if (contexts["reads"], contexts["query"], contexts["n_states"]) != (reads, query, source.n_states):
        raise ValueError("the proof is about other positions or states than the run")
    forbidden, never = ~np.array(contexts["transitions"]), ~np.array(contexts["start"])
    if forbidden.any() or never.any():
        law, lag = getattr(source, "lag_law", getattr(source, "P", None)), getattr(source, "lag", 1)
        if (
            source.redraws
            or (law[forbidden] > 0).any()
            or (source.pi[never] > 0).any()
            or lag != contexts["lag"]
        ):
            raise ValueError("the proof leaves out sequences that the source can give")


def verify(proof: dict[str, Any], run: Any) -> dict[str, Any]:
    """Check every inequality of a proof against a run, and return the bounds that follow.

    Raises:
        ValueError: An inequality fails, or a claim is below what follows; the message says which.
    """
    contexts, kind, claims, config = proof["contexts"], proof["kind"], proof["claims"], run.model
    check_contexts(contexts, run)
    sums = config.attn_only and config.normalization_type is None
    softmax = run.objective.kind == "cross_entropy"
    if kind != "relaxed" and (not sums or softmax != (kind == "logits")) or kind == "relaxed" and not softmax:
        raise ValueError(f"the proof is of {kind}, which this model does not give")
    weights = {name: x.double().numpy() for name, x in run.decoder(proof["step"]).state_dict().items()}
    model = Model(config, weights, UNITS[proof["arithmetic"]])
    table, n = np.array(proof["table"], dtype=np.float64), contexts["n_states"]
    if table.shape != (n, n) or not (table >= 0).all() or not (np.abs(table.sum(1) - 1) < 1e-12).all():
        raise ValueError("the table of the proof has no law for each state")
    stored = {name: np.array(values, dtype=np.float64) for name, values in proof["stored"].items()}
    shared = {name: stored.pop(name) for name in ("basis", "closed") if name in stored}
    bound = {"relaxed": Case.of_relaxed, "counts": Case.of_counts}.get(kind, Case.of_sums)
    worst, reached = np.zeros(4), [np.array(contexts["start"])]
    for _ in range(config.n_ctx):  # the states that a sequence can have after so many steps
        reached.append(np.array(contexts["transitions"])[reached[-1]].any(0))
    for i, read in enumerate(contexts["reads"]):
        for parent in np.flatnonzero(reached[(read - contexts["query"]) // contexts["lag"]]).tolist():
            own = {name: values[i, parent] for name, values in stored.items()} | shared
            if "closed" in own:
                own["closed"] = own["closed"][(own["closed"][:, :2] == (i, parent)).all(1), 2:]
            odds = bound(Case(model, contexts, read, parent), own)
            np.fill_diagonal(odds, 0.0)
            found = np.array(in_nats(odds, table[parent], kind == "counts"))
            worst = np.maximum(worst, found * (1, -1, 1, 1))
    found = dict(zip(("worst_kl", "log_ratio_below", "log_ratio_above", "logit_error"), worst, strict=True))
    for name, value in found.items():
        if claims[name] is not None and not value <= claims[name]:
            raise ValueError(
                f"{name} is claimed to be {claims[name]:.6g} at most, but only {value:.6g} follows"
            )
    return found
