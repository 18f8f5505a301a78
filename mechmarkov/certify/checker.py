"""Check a certificate: what a sceptic reads, and `checked_layer`. Both need numpy, and no search.

A proof claims bounds of KL(program ‖ model), log ratios and log odds over every sequence of some contexts. It
stores a table and multipliers; everything else is computed here from the weights, by five facts.

1. An evaluation with unit roundoff u of a sum, or a product of sums, of n terms is off by n u / (1 - n u)
   times the magnitudes at most (Higham 2002, lemma 3.1). A `Form` carries such radii; u counts our float64's.
2. A head's output in a direction f, a mean of f_j(x_j) by weights w_j(x_j), is at most mu in every context if
   the largest sum of w_j (f_j - mu), over all states or over all paths, is not positive.
3. A form with symbols in [-1, 1] goes through sums as it is. A product adds the product of the spreads, a
   function how far it can be from its chord: bend · width² / 8, if convex where its slope is the chord's.
4. Behind a layer a token at a position is a set, around which a form stands. The next layer reads forms as
   it reads numbers: fact 2 holds with the ends of scores and values for each key, whatever the others are.
5. If log(q_k / q_l) - log(p_k / p_l) <= off[k, l], then KL(p ‖ q), convex in log(q / p), is largest at a
   corner of the box of these differences against any l; it is at most max(off)² / 8 (Hoeffding).
"""

import math
from itertools import product
from typing import Any

import numpy as np

from mechmarkov.certify.checked_layer import ELEMENTARY, OWN, UNITS, UP, Case, Form, Model

FLOOR, MOST_CORNERS = 1e-12, 8  # of a probability in a KL; possible states of whose box all corners are tried


def behind(model: Model, contexts: Any, parents: Any, basis: np.ndarray, *boxes: np.ndarray) -> Form:
    """Fact 4: forms around the stream behind a layer, `[position, token, d_model]`, from its boxes' parts."""
    states = [np.flatnonzero(reached).tolist() for reached in parents[: model.c.n_ctx]]
    forms = {
        (n, token): around(Case(model, contexts, n, token), basis, *(part[n, token] for part in boxes))
        for n, tokens in enumerate(states)
        for token in tokens
    }
    mid = np.zeros(model.stream.mid.shape)
    slope = np.zeros((*mid.shape, next(iter(forms.values())).slope.shape[-1]))
    for place, form in forms.items():
        mid[place], slope[place] = form.mid, form.slope
    return Form(model.stream.u, mid, slope)


def around(case: Case, basis: np.ndarray, multipliers: np.ndarray, cuts: np.ndarray) -> Form:
    """One form around what all pieces give, of the symbols of the box and of the streams."""
    centre, share = case.pieces(cuts)
    return merged(case.through(case.box(basis, multipliers), centre, share), centre, share)


def merged(pieces: Form, centre: np.ndarray, share: np.ndarray) -> Form:
    """One form around those of all pieces, of the symbols whose ranges are in pieces."""
    n = centre.shape[-1]
    slope = (pieces.slope[..., :n] / share[:, None]).mean(0)
    along = centre @ slope.T
    mid = (pieces.mid - along).mean(0)
    rest = np.abs(pieces.slope[..., :n] - slope * share[:, None]).sum(-1) + pieces.rad
    rest = rest + np.abs(pieces.mid - along - mid) + np.abs(pieces.slope[..., n:]).sum(-1)
    rest = rest + 16 * n * OWN * (pieces.size + np.abs(mid) + np.abs(slope).sum(-1))
    return Form(pieces.u, mid, slope, rest.max(0)).folded(n)


def cases(contexts: Any, parents: Any, read: int) -> list[tuple[int, tuple[int, ...]]]:
    """The number of each case that a sequence can be in, and its states; n in front of the sequence."""
    n, last = contexts["n_states"], read - contexts["query"]
    places, base = [last + 1 - lag for lag in contexts["lags"]], n + (len(contexts["lags"]) > 1)
    first, reachable = min(at for at in places if at >= 0), []
    for states in product(*[range(n) if at >= 0 else [n] for at in places]):
        fixed, reached = dict(zip(places, states, strict=True)), parents[first]
        for at in range(first, last + 1):
            reached = np.array(contexts["transitions"])[reached].any(0) if at > first else reached
            reached = reached & (np.arange(n) == fixed.get(at, np.arange(n)))
        if reached.any():
            reachable.append((sum(state * base**i for i, state in enumerate(states)), states))
    return reachable


def by_norm(c: Any, w: dict[str, np.ndarray], u: float) -> float:
    """-log of the least probability: a normalised stream is no longer than sqrt(d) (Cauchy and Schwarz)."""
    d, W_U = c.d_model, w["embed.W_E"][: c.d_vocab_out].T if c.tied else w["unembed.W_U"]
    last = "ln_final" if c.final_norm else f"blocks.{c.n_layers - 1}.ln{1 if c.attn_only else 2}"
    scaled, shift = w.get(f"{last}.w", np.ones(d))[:, None] * W_U, w.get(f"{last}.b", np.zeros(d))
    size, bias = np.abs(shift) @ np.abs(W_U) + np.abs(w["unembed.b_U"]), shift @ W_U + w["unembed.b_U"]
    size = size + np.sqrt(d) * np.linalg.norm(scaled, axis=0)
    odds = np.sqrt(d) * np.linalg.norm(scaled[:, :, None] - scaled[:, None], axis=0) * UP
    odds += bias[:, None] - bias + Form(u, 0.0).gamma(2 * d + 4 * ELEMENTARY) * (size[:, None] + size)
    return float(np.logaddexp.reduce(odds).max()) * UP + 1e-12


@np.errstate(over="ignore")
def in_nats(odds: np.ndarray, p: np.ndarray, any_law: bool) -> list[float]:
    """Fact 4: the largest KL, log(program / model) and log(model / program), and error of log odds (nats).

    `odds[k, l]` bounds log(q_k / q_l), `p` is the program's law; with `any_law` the bounds hold for any.
    """
    s, logs = np.flatnonzero(p > 0), np.log(p[p > 0])
    pad, outside = 1e-14 * (1 - logs.min()), np.exp(odds[:, s]).sum(0, where=(p == 0)[:, None])
    off, p = odds[np.ix_(s, s)] - (logs[:, None] - logs) + pad, p[s]
    np.fill_diagonal(off, 0.0)
    most, more = off.max(), p * outside
    if any_law:
        return [most**2 / 8, most, most, most]
    kl = most**2 / 8 + np.log1p(more.max())
    for k in range(len(s)):
        ends = np.stack([-off[k], off[:, k]])
        if np.isfinite(ends).all() and np.isfinite(more[k]):
            corners = np.array(list(product(*ends.T))) if len(s) <= MOST_CORNERS else np.zeros((0, len(s)))
            nats = np.log1p((p * np.expm1(corners)).sum(1) + more[k]) - corners @ p
            of_terms = p @ (np.expm1(ends) - ends).max(0) + more[k]  # exp(s) - 1 - s, where corners are many
            kl = min(kl, nats.max() if len(nats) else of_terms)
    below = np.log1p((p[:, None] * np.expm1(off)).sum(0) + more) + pad
    above = pad - np.log(np.maximum((p * np.exp(-off)).sum(1), p))
    return [min(kl + pad, -math.log(FLOOR)), below.max(), above.max(), most]


def verify(proof: dict[str, Any], run: Any) -> dict[str, float]:
    """Check every inequality of a proof against a run, and return the bounds that follow (nats).

    Args:
        proof: What `load_proof` reads, or `proof_of` makes.
        run: The run that it is about.

    Returns:
        `worst_kl`, `log_ratio_below`, `log_ratio_above` and `logit_error`.

    Raises:
        ValueError: An inequality fails, or a claim is below what follows; the message says which.
    """
    contexts, kind, c, source = proof["contexts"], proof["kind"], run.config, run.source
    query, u, n = run.objective.query, UNITS[proof["arithmetic"]], source.n_states
    start, transitions = np.array(contexts["start"]), np.array(contexts["transitions"])
    reads = [c.n_ctx - 1] if query or run.objective.read == "last" else list(range(c.n_ctx))
    lags = contexts["lags"]
    if (contexts["reads"], contexts["query"], contexts["n_states"], lags[:1]) != (reads, query, n, [1]):
        raise ValueError("the proof is about other positions or states than the run")
    every = start.all() and transitions.all()
    if not every and (source.redraws or (source.P > 0)[~transitions].any() or (source.pi > 0)[~start].any()):
        raise ValueError("the proof leaves out sequences that the source can give")
    softmax, normed = run.objective.kind == "cross_entropy", c.normalization_type is not None
    normed = normed and (c.final_norm or not c.norm_first)  # in front of the unembedding
    known = c.mixer == "attention" and not (query and c.n_layers > 1)
    kinds = ["layers" if c.n_layers > 1 else "relaxed"] * (softmax and known)
    kinds += ["norm"] * (softmax and normed)
    if known and c.attn_only and not normed and c.n_layers == 1:
        kinds += ["logits"] if softmax else ["raw scores"] + ["counts"] * (len(lags) == 1)
    if kind not in kinds:
        raise ValueError(f"the proof is of {kind}, which this model does not give")
    weights = {name: x.double().numpy() for name, x in run.model(proof["step"]).state_dict().items()}
    if not all(np.isfinite(x).all() for x in weights.values()):
        raise ValueError("the model has weights that are not finite")
    worst = np.zeros(4)
    if kind == "norm":
        worst, reads = np.array([by_norm(c, weights, u), np.inf, np.inf, np.inf]), []
    else:
        table = np.array(proof["table"], dtype=np.float64)
        rows = n if len(lags) == 1 else (n + 1) ** len(lags)
        if table.shape != (rows, n) or not (table >= 0).all() or not (np.abs(table.sum(1) - 1) < 1e-12).all():
            raise ValueError("the table of the proof has no law for each state")
    stored = {name: np.array(values, dtype=np.float64) for name, values in proof["stored"].items()}
    basis, closed = stored.pop("basis", None), stored.pop("closed", np.zeros((0, 4)))
    of_kind = {"relaxed": Case.of_relaxed, "layers": Case.of_relaxed, "counts": Case.of_counts}
    bound = of_kind.get(kind, Case.of_sums)
    # The states that a sequence can have after each step.
    parents, stream = [start, *[start := transitions[start].any(0) for _ in range(c.n_ctx)]], None
    inner = [stored.pop(f"inner_{name}", np.zeros(0)) for name in ("basis", "multipliers", "cuts")]
    if {len(one) for one in inner} != {c.n_layers - 1 if kind == "layers" else 0}:
        raise ValueError("the proof has not a box for each layer but the last")
    for i, boxes in enumerate(zip(*inner, strict=True)):
        stream = behind(Model(c, weights, u, stream, i), contexts, parents, *boxes)
    model: Any = Model(c, weights, u, stream, c.n_layers - 1) if kind != "norm" else None
    for i, read in enumerate(reads):
        for case, states in cases(contexts, parents, read):
            own = {name: values[i, case] for name, values in stored.items()} | {"basis": basis}
            own["closed"] = closed[(closed[:, :2] == (i, case)).all(1), 2:]
            odds = bound(Case(model, contexts, read, *states), own)
            np.fill_diagonal(odds, 0.0)
            worst = np.maximum(worst, in_nats(odds, table[case], kind == "counts"))
    names = ("worst_kl", "log_ratio_below", "log_ratio_above", "logit_error")
    follows = dict(zip(names, worst.tolist(), strict=True))
    for name, value in follows.items():
        if (claim := proof["claims"][name]) is not None and not value <= claim:
            raise ValueError(f"{name} is claimed to be at most {claim:.6g}, but {value:.6g} follows")
    return follows
