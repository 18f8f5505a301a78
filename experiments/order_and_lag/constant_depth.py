"""Rajaraman et al. 2024: the printed constructions, with attention at its limit, on every sequence."""

from collections.abc import Callable
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured, every_sequence

TIE = 1e-9  # scores that are as large as the largest, in float64
PROOF = "experiments/order_and_lag/README.md#one-layer-more"
Tokens = Int[np.ndarray, "batch position"]
Vectors = Float[np.ndarray, "batch position d"]
Scores = Float[np.ndarray, "batch key"]


def limit(scores: Scores) -> Float[np.ndarray, "batch key"]:
    """Attention as its scores are scaled up for ever: alike on the largest."""
    most = scores >= scores.max(-1, keepdims=True) - TIE
    return most / most.sum(-1, keepdims=True)


def mixed(x: Vectors, score_of: Callable[[int], Float[np.ndarray, " lag"]]) -> Vectors:
    """A layer whose scores are of lags alone, `score_of(n)[lag]`, at its limit."""
    found = np.zeros_like(x)
    for n in range(x.shape[1]):
        weights = limit(score_of(n)[None, : n + 1])[0]
        found[:, n] = np.einsum("l,bld->bd", weights, x[:, n::-1])
    return found


def looks(lag: int) -> Callable[[int], Float[np.ndarray, " lag"]]:
    """Scores of a head that looks a lag back: 1 there, 0 elsewhere, as appendix A prints them."""
    return lambda n: (np.arange(n + 1) == lag).astype(float)


def k_gram(
    tokens: Tokens, k: int, n_states: int
) -> tuple[Float[np.ndarray, "batch state"], Bool[np.ndarray, " batch"]]:
    """Definition 1 at the last position, and where it is defined."""
    batch, length = tokens.shape
    counts = np.zeros((batch, n_states))
    for i in range(k, length):
        match = (tokens[:, i - k : i] == tokens[:, length - k :]).all(1)
        counts[match, tokens[match, i]] += 1
    total = counts.sum(1, keepdims=True)
    return counts / np.maximum(total, 1), total[:, 0] > 0


def by_heads(tokens: Tokens, k: int, n_states: int, marked: bool) -> Float[np.ndarray, "batch state"]:
    """Theorems 1 and 2: k heads look 1 … k back, then a head matches; `marked` adds what proofs leave out.

    The mark is a value encoding of lag k, which positions have from k + 1 on.
    """
    x = np.eye(n_states)[tokens]
    back = [mixed(x, looks(lag)) for lag in range(1, k + 1)]
    last = [x[:, -1 - j] for j in range(k)]
    scores = sum(np.einsum("bnd,bd->bn", back[j], last[j]) for j in range(k))
    if marked:
        scores = scores + 2 * k * (np.arange(tokens.shape[1]) >= k)
    return np.einsum("bn,bnd->bd", limit(scores), x)


def by_norms(
    tokens: Tokens, k: int, n_states: int, *, printed: bool = False
) -> Float[np.ndarray, "batch state"]:
    """Theorem 4: sums with weights 3^i, normalised, so that the inner product is largest where both agree.

    With `printed` weights are what scores κ (i + 1) log 3 tend to as κ grows: all of it on the largest lag.
    """
    x, length = np.eye(n_states)[tokens], tokens.shape[1]
    u, v, Z = np.zeros_like(x), np.zeros_like(x), np.zeros(length)
    for n in range(length):
        for lags, into in ((range(min(n + 1, k)), u), (range(1, min(k, n) + 1), v)):
            weights = np.array([3.0**i for i in lags])
            if printed:
                weights = (np.arange(len(weights)) == len(weights) - 1).astype(float)
            if len(weights):
                weights /= weights.sum()
                into[:, n] = sum(w * x[:, n - i] for w, i in zip(weights, lags, strict=True))
        Z[n] = sum(9.0**i for i in range(1, min(k, n) + 1)) / max(
            1.0, sum(3.0**i for i in range(1, min(k, n) + 1))
        )
    unit = [a / np.maximum(np.linalg.norm(a, axis=-1, keepdims=True), 1e-300) for a in (u, v)]
    scores = 2 * np.einsum("bnd,bd->bn", unit[1], unit[0][:, -1]) + 2 * Z * Z[-1]
    return np.einsum("bn,bnd->bd", limit(scores), x)


def by_sums(tokens: Tokens, k: int, n_states: int, lags: range) -> Float[np.ndarray, "batch state"]:
    """Section 5.1: z_n of weights 2^i on some lags, at unit length, and a layer that compares z_(i-1) to z_n.

    Keys are those that have k tokens before them, as the section defines I_n.
    """
    x, length = np.eye(n_states)[tokens], tokens.shape[1]
    z = np.zeros_like(x)
    for n in range(length):
        for i in (i for i in lags if i <= n):
            z[:, n] += 2.0**i * x[:, n - i]
    z /= np.maximum(np.linalg.norm(z, axis=-1, keepdims=True), 1e-300)
    scores = np.einsum("bnd,bd->bn", z[:, k - 1 : -1], z[:, -1])  # of keys k, k + 1, …
    return np.einsum("bn,bnd->bd", limit(scores), x[:, k:])


def wrong(found: Float[np.ndarray, "batch state"], tokens: Tokens, k: int, n_states: int) -> tuple[int, int]:
    """In how many sequences a construction is not the conditional k-gram, of those where it is defined."""
    law, there = k_gram(tokens, k, n_states)
    off = np.abs(found - law).max(1) > 1e-6
    return int((off & there).sum()), int(there.sum())


def closest(k: int, n_states: int) -> float:
    """The least distance, times 3^k, of two normalised sums of different histories (lemma 1)."""
    sums = [
        sum(3.0**j * np.eye(n_states)[s] for j, s in enumerate(history))
        for history in product(range(n_states), repeat=k)
    ]
    unit = np.array([a / np.linalg.norm(a) for a in sums])
    apart = np.linalg.norm(unit[:, None] - unit, axis=-1) + 9 * np.eye(len(unit))
    return float(apart.min() * 3**k)


@exactly
def constant_depth(quick: bool) -> Measured:
    """Theorems 1 to 4 and lemma 1 on every sequence; theorem 3 against theorem 6."""
    cases = [(1, 2, 7), (2, 2, 7)] if quick else [(1, 2, 10), (2, 2, 10), (3, 2, 10), (1, 3, 7), (2, 3, 7)]
    tokens = {(n, length): every_sequence(n, length).numpy() for _, n, length in cases}
    counts: dict[str, np.ndarray] = {}
    for k, n, length in cases:
        own = tokens[n, length]
        found = {
            "printed": by_heads(own, k, n, marked=False),
            "marked": by_heads(own, k, n, marked=True),
            "norms": by_norms(own, k, n),
            "scaled up": by_norms(own, k, n, printed=True),
            "sums": by_sums(own, k, n, range(1, k + 1)),
            "own sums": by_sums(own, k, n, range(k)),
        }
        for name, laws in found.items():
            counts[name] = counts.get(name, np.zeros(2, int)) + wrong(laws, own, k, n)
    gaps = [closest(k, n) for n in (2, 3) for k in range(1, 4 if quick else 6)]
    clash = [k for k in range(3, 40) if 2 ** (int(np.ceil(np.log2(k + 1))) - 1) <= k - 2]
    every = "; ".join(f"k = {k} on {n} symbols, all sequences of {length}" for k, n, length in cases)
    exact = "computed exactly"

    def told(name: str) -> str:
        return f"{counts[name][0]} of {counts[name][1]} sequences"

    return Measured(
        [
            Finding(
                "k_heads",
                f"differs from the conditional k-gram in {told('marked')}",
                holds(counts["marked"][0] == 0),
                f"{every}; attention at its limit, with a value encoding that marks a lag of k",
                exact,
                number=f"wrong in {told('marked')}",
            ),
            Finding(
                "k_heads_printed",
                f"differs from the conditional k-gram in {told('printed')}; with a mark of positions "
                "that have k "
                f"tokens before them in {counts['marked'][0]}",
                holds(counts["printed"][0] == 0, corrected=counts["marked"][0] == 0),
                f"{every}; attention at its limit. At the first positions a head has nothing at its "
                "lag, and is "
                "uniform, so that such keys can match",
                exact,
                number=f"wrong in {told('printed')}",
            ),
            Finding(
                "log_layers",
                f"theorem 6 excludes it at k = {', '.join(map(str, clash[:6]))}, …; at k = 1 it says "
                "one layer, which "
                "no weights can do on four tokens",
                holds(not clash),
                "2^(L-1) ≤ k - 2 at L = ⌈log2(k + 1)⌉; the construction's attention is of positions "
                "alone in all "
                "layers but the last, as theorem 6 assumes",
                "proved",
                number=f"impossible at k = 1, {clash[0]}, {clash[1]}, {clash[2]} to {clash[7]}",
                proof=PROOF,
            ),
            Finding(
                "three_layers",
                f"differs from the conditional k-gram in {told('norms')}",
                holds(counts["norms"][0] == 0),
                f"{every}; attention at its limit, norms as division by the length, as section C.1 allows",
                exact,
                number=f"wrong in {told('norms')}",
            ),
            Finding(
                "three_layers_printed",
                f"differs from the conditional k-gram in {told('scaled up')}; with weights 3^i in "
                f"{counts['norms'][0]}",
                holds(counts["scaled up"][0] == 0, corrected=counts["norms"][0] == 0),
                f"{every}; scores κ (i + 1) log 3 of the first two layers at the limit of κ, where all "
                "attention is on the largest lag",
                exact,
                number=f"wrong in {told('scaled up')}",
            ),
            Finding(
                "first_layer_k",
                f"with weights 2^i on lags 1 to k the prediction differs from the conditional k-gram in "
                f"{told('sums')}; on lags 0 to k - 1 in {told('own sums')}",
                holds(counts["sums"][0] == 0, corrected=counts["own sums"][0] == 0),
                f"{every}; z_n at unit length, a last layer that compares z_(i-1) to z_n, attention at its "
                "limit. On lags 1 to k z_n lacks the last token, and the model predicts from the k before it",
                exact,
                number=f"wrong in {told('sums')}",
            ),
            Finding(
                "lemma_1",
                f"the least distance is {min(gaps):.2f} times 3^-k",
                holds(min(gaps) >= 1),
                f"all pairs of histories of k = 1 to {3 if quick else 5} tokens on two and three symbols",
                exact,
                number=f"{min(gaps):.2f} × 3^-k",
            ),
            Finding(
                "one_layer_bound", "not measured", "untested", "a bound on all models of one layer", exact
            ),
        ]
    )


def induction_rank(quick: bool) -> Measured:
    """Lemma 2: a bilinear form of rank k - 2 is not largest at x = y for every y, on random forms."""
    draws, rng, found = (50 if quick else 400), np.random.default_rng(0), []
    for k in (3, 4, 5):
        corners = np.array(list(product((-1, 1), repeat=k)), float)
        for _ in range(draws):
            M = rng.normal(size=(k, k - 2)) @ rng.normal(size=(k - 2, k)) + 0.0
            m = rng.normal(size=k)
            values = corners @ M @ corners.T + (corners @ m)[:, None]  # [x, y]
            best = values.argmax(0)
            others = np.where(np.eye(len(corners), dtype=bool), -np.inf, values).max(0)
            found.append(not ((best == np.arange(len(corners))) & (np.diag(values) > others + TIE)).all())
    hits = sum(found)
    return Measured(
        [
            Finding(
                "lemma_2",
                f"another maximiser for some y in {hits} of {len(found)} forms",
                holds(hits == len(found)),
                f"x and y in ±1, k = 3, 4 and 5, {draws} forms each of rank k - 2 and a linear part, "
                "Gaussian",
                "sampled",
                (hits, len(found)),
            )
        ]
    )
