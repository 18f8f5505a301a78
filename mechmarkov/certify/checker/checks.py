"""Check a certificate: with `model` all that a sceptic reads. Neither shares code with the search.

A proof claims bounds of KL(program ‖ model), log ratios and log odds over every sequence of some contexts. It
stores a table and multipliers; everything else is computed here from the weights, by four facts.

1. An evaluation with unit roundoff u of a sum, or a product of sums, of n terms is off by n u / (1 - n u)
   times the magnitudes at most (Higham 2002, lemma 3.1). A `Form` carries such radii; our float64 counts in
   u.
2. A head's output in a direction f, a mean of f_j(x_j) by weights w_j(x_j), is at most mu in every context if
   the largest sum of w_j (f_j - mu), over all states or over all paths, is not positive.
3. A form with symbols in [-1, 1] goes through sums as it is. A product adds the product of the spreads, a
   function how far it can be from its chord: bend · width² / 8, if convex where its slope is the chord's.
4. If log(q_k / q_l) - log(p_k / p_l) <= off[k, l], then KL(p ‖ q), convex in log(q / p), is largest at a
   corner of the box of these differences against the l where log(q / p) is smallest; at most off² / 8
   (Hoeffding).
"""

import math
from itertools import pairwise, product
from typing import Any

import numpy as np

from mechmarkov.certify.checker.model import OWN, UP, Form, Model

UNITS = {"exact": 0.0, "float32": 2.0**-24}  # unit roundoff
FLOOR = 1e-12  # of a probability in a KL
MOST_CORNERS = 8  # possible states of whose box all corners are tried


class Case:
    """One position and parent: the contexts that it stands for, and what attention gives them."""

    def __init__(self, model: Model, contexts: Any, read: int, parent: int) -> None:
        n, query, tokens = contexts["n_states"], contexts["query"], model.c.d_vocab
        self.model, self.read, self.parent = model, read, parent
        self.token = tokens - 1 if query else parent
        self.weight = model.attention(read, self.token)
        self.value, self.base = model.written[:, : read + 1], model.base[read, self.token]
        self.allowed = np.zeros((read + 1, tokens), dtype=bool)
        self.allowed[:, :n] = True
        self.allowed[0, :n] &= np.array(contexts["start"])
        self.allowed[read] &= np.arange(tokens) == parent
        if query:
            self.allowed[read] = np.arange(tokens) == tokens - 1
            self.allowed[read - 1 : read] &= np.arange(tokens) == parent
        self.transitions = np.ones((tokens, tokens), dtype=bool)
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
        f, (weight, rad) = value.exact().dot(directions.T), self.weight
        mid, size, f_rad = (np.moveaxis(x, -1, 0) for x in (f.mid, f.size, f.rad))
        over = mid + f_rad - mu[..., None, None] + 4 * OWN * (size + np.abs(mu)[..., None, None])
        gain = over * np.where(over > 0, weight + rad, np.maximum(weight - rad, 0))
        above = np.where(self.allowed, np.maximum(gain, 0), 0).max(-1).sum(-1)
        if not (self.largest_sum(gain) + 2 * (gain.shape[-2] + 8) * OWN * above <= 0).all():
            raise ValueError(f"a multiplier at position {self.read} after state {self.parent} is too small")
        return mu.sum(-1) + (2 + mu.shape[-1]) * OWN * np.abs(mu).sum(-1)

    def read_of(self, value: Form) -> Form:
        """Returns what the heads read, if exponentials that underflow are off by a share of the largest."""
        lost = 2.0**-120 if value.u and self.weight[0][self.weight[1] > 0].min() < 1e-34 else 0.0
        return value.off(0, 4 * (self.read + 1) * lost * value.size.max((1, 2), keepdims=True))

    def in_scores(self) -> tuple[Form, Form]:
        """Returns what the heads read and what there is without them, as scores."""
        W_U, b_U = self.model.W_U, self.model.w["unembed.b_U"]
        return self.read_of(self.value.dot(W_U, 2)), self.base.dot(W_U, 1).plus(b_U)

    def of_sums(self, stored: dict[str, np.ndarray]) -> np.ndarray:
        """Upper bounds of log(q_k / q_l), of scores that are sums of what the heads write."""
        value, base = self.in_scores()
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
        """The same of logits behind norms or an MLP: over the pieces of a box around what heads write."""
        value, basis, closed, d = (
            self.read_of(self.value),
            stored["basis"],
            stored["closed"],
            self.base.mid.size,
        )
        add = self.heads_add(value, np.concatenate([basis.T, -basis.T]), stored["multipliers"])
        low, high = -add[d:], add[:d]
        share = (high - low) / max((high - low).max(), 1e-300) * (np.arange(d) < 2)
        cuts = [max(1, round(float(stored["pieces"]) * one)) for one in share]
        edges = [pairwise(np.linspace(a, b, cut + 1)) for a, b, cut in zip(low, high, cuts, strict=True)]
        ends = np.array(list(product(*edges)))
        middle, size = ends.mean(-1), np.abs(ends).max(-1)
        half = ((ends[..., 1] - ends[..., 0]) / 2 + 4 * OWN * size) * UP
        missed = np.abs(np.eye(d) - basis @ basis.T) + 2 * d * OWN * np.abs(basis) @ np.abs(basis.T)
        rad = missed @ value.size.max((1, 2)).sum(0) + 2 * d * OWN * size @ np.abs(basis.T)
        box = Form(self.model.u, middle @ basis.T, basis * half[:, None], rad)
        own = self.model.stream[self.read, self.token]
        scores = self.model.scores(own, box.plus(self.base)).exact()
        found, eye = np.zeros(2 * scores.mid.shape[-1:]), np.eye(scores.mid.shape[-1])
        for k, against in np.argwhere(eye == 0):
            different = scores.dot((eye[k] - eye[against])[:, None])
            upper = different.high[:, 0].copy()
            for row in closed[(closed[:, :2] == (k, against)).all(1)]:
                piece, direction, mu = int(row[2]), row[3 : 3 + d], row[3 + d :]
                besides = different.plus(box.exact().dot(-direction[:, None])).high[piece, 0]
                total = besides + self.heads_add(value, direction[None], mu[None])[0]
                upper[piece] = min(upper[piece], total + 8 * OWN * (abs(total) + np.abs(mu).sum()))
            found[k, against] = upper.max()
        return found

    def of_counts(self, _: dict[str, np.ndarray]) -> np.ndarray:
        """Upper bounds of log((q_k / n_k) / (q_l / n_l)), of one head that scores each token as itself."""
        (value, base), (weight, rad) = self.in_scores(), self.weight
        if len(weight) > 1 or base.size.any() or value.size[..., ~np.eye(len(base.mid), dtype=bool)].any():
            raise ValueError("the scores are not counts times a row")
        seen = weight[0].any(1)
        own = [np.diagonal(side, axis1=2, axis2=3)[0] for side in (value.low, value.high)]
        low, high = ((weight - rad)[0] * own[0])[seen], ((weight + rad)[0] * own[1])[seen]
        if not (low > 0).all() or not self.transitions.all():
            raise ValueError("a token may have no score, or some transitions are forbidden")
        return np.log(high.max(0) * UP)[:, None] - np.log(low.min(0) / UP)


def largest_kl(p: np.ndarray, least: np.ndarray, most: np.ndarray, more: float) -> float:
    """The largest of log(sum of p exp(s) + more) - p · s over a box of s: at a corner, or term by term."""
    if len(p) > MOST_CORNERS:
        return float(p @ np.maximum(*(np.expm1(end) - end for end in (least, most)))) + more
    corners = np.array(list(product(*zip(least, most, strict=True))))
    return float((np.log1p((p * np.expm1(corners)).sum(1) + more) - corners @ p).max())


@np.errstate(over="ignore")
def in_nats(odds: np.ndarray, p: np.ndarray, any_law: bool) -> list[float]:
    """Fact 4: the largest KL, the smallest and the largest log ratio, and the largest error of log odds."""
    s, logs = np.flatnonzero(p > 0), np.log(p[p > 0])
    pad, outside = 1e-14 * (1 - logs.min()), np.exp(odds[:, s]).sum(0, where=(p == 0)[:, None])
    off, p = odds[np.ix_(s, s)] - (logs[:, None] - logs) + pad, p[s]
    np.fill_diagonal(off, 0.0)
    if any_law:
        return [off.max() ** 2 / 8, -off.max(), off.max(), off.max()]
    low = -np.log1p((p[:, None] * np.expm1(off)).sum(0) + p * outside) - pad
    high = -np.log(np.maximum((p * np.exp(-off)).sum(1), p)) + pad
    smallest, of_any = 0.0, math.inf
    for k in range(len(s)):
        least, most, more = -off[k], off[:, k], p[k] * outside[k]
        finite = np.isfinite([*least, *most, more]).all()
        if finite:
            of_any = min(of_any, largest_kl(p, least, most, more))
        if (most >= np.maximum(0, least)).all():  # else it is never the smallest
            own = largest_kl(p, np.maximum(0, least), most, more) if finite else math.inf
            if finite and len(p) > MOST_CORNERS:
                own = most.max() ** 2 / 8 + math.log1p(more)
            smallest = max(smallest, own)
    worst = min(smallest, of_any)
    return [min(worst + pad, -math.log(FLOOR)), low.min(), high.max(), off.max()]


def check_contexts(contexts: dict[str, Any], run: Any) -> None:
    """See that a proof leaves out no position, and no sequence of the run's law."""
    source, query, n = run.source, run.objective.query, run.model.n_ctx
    reads = [n - 1] if query or run.objective.read == "last" else list(range(n))
    about = contexts["reads"], contexts["query"], contexts["n_states"]
    if about != (reads, query, source.n_states):
        raise ValueError("the proof is about other positions or states than the run")
    forbidden, never = ~np.array(contexts["transitions"]), ~np.array(contexts["start"])
    if forbidden.any() or never.any():
        left_out = (source.P[forbidden] > 0).any() or (source.pi[never] > 0).any()
        if source.redraws or left_out:
            raise ValueError("the proof leaves out sequences that the source can give")


def verify(proof: dict[str, Any], run: Any) -> dict[str, float]:
    """Check every inequality of a proof against a run, and return the bounds that follow.

    Raises:
        ValueError: An inequality fails, or a claim is below what follows; the message says which.
    """
    contexts, kind, claims, config = proof["contexts"], proof["kind"], proof["claims"], run.model
    check_contexts(contexts, run)
    sums = config.attn_only and config.normalization_type is None
    kinds = (
        ("relaxed", "logits", "norm") if run.objective.kind == "cross_entropy" else ("raw scores", "counts")
    )
    if kind not in kinds or not (sums or kind in ("relaxed", "norm")):
        raise ValueError(f"the proof is of {kind}, which this model does not give")
    weights = {name: x.double().numpy() for name, x in run.decoder(proof["step"]).state_dict().items()}
    names = ("worst_kl", "log_ratio_below", "log_ratio_above", "logit_error")
    if kind == "norm":
        most = by_norm(config, weights, UNITS[proof["arithmetic"]])
        return claimed(claims, dict.fromkeys(names, math.inf) | {"worst_kl": most})
    model = Model(config, weights, UNITS[proof["arithmetic"]])
    table, n = np.array(proof["table"], dtype=np.float64), contexts["n_states"]
    if table.shape != (n, n) or not (table >= 0).all() or not (np.abs(table.sum(1) - 1) < 1e-12).all():
        raise ValueError("the table of the proof has no law for each state")
    stored = {name: np.array(values, dtype=np.float64) for name, values in proof["stored"].items()}
    basis, closed = stored.pop("basis", None), stored.pop("closed", np.zeros((0, 2)))
    bound = {"relaxed": Case.of_relaxed, "counts": Case.of_counts}.get(kind, Case.of_sums)
    worst, reached = np.zeros(4), [np.array(contexts["start"])]
    for _ in range(config.n_ctx):  # the states that a sequence can have after this many steps
        reached.append(np.array(contexts["transitions"])[reached[-1]].any(0))
    for i, read in enumerate(contexts["reads"]):
        for parent in np.flatnonzero(reached[read - contexts["query"]]).tolist():
            own = {name: values[i, parent] for name, values in stored.items()} | {"basis": basis}
            own["closed"] = closed[(closed[:, :2] == (i, parent)).all(1), 2:]
            odds = bound(Case(model, contexts, read, parent), own)
            np.fill_diagonal(odds, 0.0)
            found = np.array(in_nats(odds, table[parent], kind == "counts"))
            worst = np.maximum(worst, found * (1, -1, 1, 1))
    return claimed(claims, dict(zip(names, worst.tolist(), strict=True)))


def by_norm(config: Any, weights: dict[str, np.ndarray], u: float) -> float:
    """-log of the least probability: a normalised stream is no longer than sqrt(d) (Cauchy and Schwarz)."""
    if config.normalization_type is None:
        raise ValueError("the model has no final norm")
    d, W_U = (
        config.d_model,
        weights["embed.W_E"][: config.d_vocab_out].T if config.tied else weights["unembed.W_U"],
    )
    gain, shift = (
        weights.get(f"ln_final.{part}", np.full(d, fill)) for part, fill in (("w", 1.0), ("b", 0.0))
    )
    scaled, b_U = gain[:, None] * W_U, weights["unembed.b_U"]
    size = np.sqrt(d) * np.linalg.norm(scaled, axis=0) + np.abs(shift) @ np.abs(W_U) + np.abs(b_U)
    odds = np.sqrt(d) * np.linalg.norm(scaled[:, :, None] - scaled[:, None], axis=0) * UP
    odds += (
        (shift @ W_U + b_U)[:, None]
        - (shift @ W_U + b_U)
        + Form(u, 0.0).gamma(2 * d + 256) * (size[:, None] + size)
    )
    return float((np.log(np.exp(odds - odds.max(0)).sum(0)) + odds.max(0)).max()) + 1e-12


def claimed(claims: dict[str, Any], follows: dict[str, float]) -> dict[str, float]:
    """Returns what follows, if no claim is below it."""
    for name, value in follows.items():
        if claims[name] is not None and not value <= claims[name]:
            raise ValueError(f"{name} is claimed to be at most {claims[name]:.6g}, but {value:.6g} follows")
    return follows
