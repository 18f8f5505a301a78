"""Where attention goes at the second step away from p = 1/2: to the parent on small circles only.

After one step `V(1)` counts how often a walk comes by. The second step moves the logit of a token k steps
before the label by `E[V(1)_{y, x}]`, which on a long walk is, up to one factor and one constant,

    D_k = 1/K sum_{j > 0} conj(λ_j) / (1 - conj(λ_j)) λ_j^k,   λ_j = cos(2πj/K) + i (2p - 1) sin(2πj/K).

A walk with p > 1/2 comes by every state ahead about as often. So three steps back can be the better guess: of
them more walks went ahead on the whole than of one. Only the drift round the circle, 2p - 1 over K a step,
speaks for the last.
"""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import style, titled
from experiments.harness import Measured, over_seeds, trained
from experiments.random_walks.common import FIGURES, outcome
from experiments.random_walks.population import EPS, descend
from mechmarkov.theory.walk import reduced_walk

LAGS = 200
CHANCES = (0.6, 0.7, 0.8, 0.9, 0.95)
LARGEST = 320  # circle
PROOF = "experiments/random_walks/README.md#which-token-the-second-step-prefers"
LONG = (101, 201, 401)  # N of the sampled walks
CIRCLE, CHANCE, LAG = 20, 0.8, 3
SAMPLED, SAMPLES = 20_000, 16  # walks a sample, and independent samples of each length


def preference(n_states: int, p: float, lags: int = LAGS) -> Float[np.ndarray, " lag"]:
    """`D_k` for k = 1 … lags, less `D_1`: above 0 where the second step prefers that token to the parent.

    Example:
        >>> [int(preference(K, 0.8).argmax()) + 1 for K in (6, 17, 18, 20)]
        [1, 1, 3, 3]
    """
    angle = 2 * np.pi * np.arange(1, n_states) / n_states
    mode = np.cos(angle) + 1j * (2 * p - 1) * np.sin(angle)
    visits = mode.conj() / (1 - mode.conj())
    found = (visits * mode ** np.arange(1, lags + 1)[:, None]).real.sum(1) / n_states
    return found - found[0]


def smallest_circle(p: float, largest: int = LARGEST) -> int:
    """The smallest K from which on another token than the parent is preferred.

    Example:
        >>> smallest_circle(0.8, 60)
        18
    """
    parent = [K for K in range(5, largest + 1) if preference(K, p).max() <= 0]
    return max(parent) + 1


@exactly
def which_token(quick: bool) -> Measured:
    """The token that the second step prefers, in closed form, and the first steps of small circles."""
    chances = CHANCES[2:4] if quick else CHANCES
    border = {p: smallest_circle(p, 60 if quick else LARGEST) for p in chances}
    best = {p: int(preference(border[p], p).argmax()) + 1 for p in chances}
    told = ", ".join(f"{border[p]} at p = {p:g} (lag {best[p]})" for p in chances)
    small = [
        (p, N, run.accuracy(step), float(run.attention(step)[-2]))
        for p in (0.6, 0.7, 0.9)
        for N in ((9, 11) if quick else (9, 11, 13, 15))
        for run in (descend(6, N, p, 10),)
        for step in (2, 3, 10)
    ]
    good = sum(abs(accuracy - p) < 1e-9 for p, _, accuracy, _ in small)
    selected = sum(attention > 0.999 for *_, attention in small)
    gaps = {p: [_gap(6, N, p) for N in range(5, (12 if quick else 18), 2)] for p in (0.5, 0.7)}
    growing = all(np.diff(rows).min() > 0 for rows in gaps.values())
    slopes = {p: float(np.polyfit(np.arange(5, 5 + 2 * len(r), 2), r, 1)[0]) for p, r in gaps.items()}
    settled, short = _settled((8,), (0.9,)) if quick else _settled((5, 6, 8, 12), (0.5, 0.7, 0.9, 0.99))
    how = f"closed form of the second step on long walks, K from 5 to {LARGEST}, lags to {LAGS}, float64"
    exact = "computed exactly"
    figure = go.Figure()
    for i, K in enumerate((6, 12, 20, 40)):
        figure.add_scatter(x=np.arange(1, 16), y=preference(K, 0.8, 15), name=f"K = {K}", line=style(i))
    title = "What the second step adds to a token's logit, less the parent's (p = 0.8, long walks)"
    titled(figure, title, "steps before the label", "preference over the parent")
    return Measured(
        [
            Finding(
                "optimal_accuracy",
                f"another token than the parent from K = {told}",
                holds(not best),
                how,
                "proved",
                case="large circles",
                number=f"lag {best[0.8]} at K ≥ {border[0.8]}, p = 0.8",
                proof=PROOF,
            ),
            Finding(
                "selects_parent",
                f"another token than the parent from K = {told}",
                holds(not best),
                how,
                "proved",
                case="large circles",
                number=f"lag {best[0.8]} at K ≥ {border[0.8]}, p = 0.8",
                proof=PROOF,
            ),
            Finding(
                "lemma_E4",
                f"Σ [(Πᵀ)^i Π^k] is not largest at k = 1 from K = {told}",
                holds(not best),
                how,
                exact,
                number=f"lag {best[0.8]} at K ≥ {border[0.8]}, p = 0.8",
            ),
            Finding(
                "optimal_accuracy",
                f"the best possible accuracy to 1e-9 in {good} of {len(small)} cases, steps 2, 3 and 10",
                holds(good == len(small)),
                "all walks of K = 6, N = 9 to 15, p = 0.6, 0.7, 0.9, M = 1000, float64",
                exact,
                case="six states",
                number=f"best possible in {good} of {len(small)} cases",
            ),
            Finding(
                "selects_parent",
                f"attention above 0.999 in {selected} of {len(small)} cases, steps 2, 3 and 10",
                holds(selected == len(small)),
                "all walks of K = 6, N = 9 to 15, p = 0.6, 0.7, 0.9, M = 1000, float64",
                exact,
                case="six states",
                number=f"above 0.999 in {selected} of {len(small)} cases",
            ),
            Finding(
                "gap_grows",
                "logit of the parent less the largest other at step 2 grows by "
                + ", ".join(f"{slope:.2f} a token at p = {p:g}" for p, slope in slopes.items()),
                holds(growing),
                f"all walks of K = 6, N = 5 to {11 if quick else 17}, odd, M = N^1.5, float64",
                exact,
                number=f"{min(slopes.values()):.2f} nats a token",
            ),
            Finding(
                "length_needed",
                f"the parent is selected, and accuracy is best, from N = {settled}; before it attention "
                f"stays elsewhere at {short}",
                holds("(" in short),
                "all walks of up to N = 14 states, M = 1000, 20 steps, float64",
                exact,
                number=f"from N = {settled}",
            ),
        ],
        {"which-token": figure},
    )


def _gap(K: int, N: int, p: float) -> float:
    """By how much the parent's logit is above all others after two steps."""
    logits = descend(K, N, p, 2, positions=round(N**1.5)).logits(2)
    return float(logits[-2] - np.delete(logits, N - 2).max())


def _settled(states: tuple[int, ...], chances: tuple[float, ...]) -> tuple[str, str]:
    """From which N on the parent is selected, by K and p, and a case in which it is not, as text."""
    longest, first, short = 14, {}, "none"
    for K in states:
        for p in chances:
            failed = [1]
            for N in range(2, longest + 1):
                run = descend(K, N, p, 20)
                if not run.attention(20)[-2] > 0.999:
                    failed.append(N)
                    where = int(run.attention(20)[:-1][::-1].argmax()) + 1
                    short = f"lag {where}, accuracy {run.accuracy(20):.3f} (K = {K}, N = {N}, p = {p:g})"
            first[K, p] = max(failed) + 1
    late = {key: N for key, N in first.items() if N > 2}
    return ", ".join(f"{N} (K = {K}, p = {p:g})" for (K, p), N in late.items()), short


def away_from_half(quick: bool) -> Measured:
    """The paper's runs away from p = 1/2: six states, and the twenty of figures 8 and 9."""
    seeds, findings = range(2 if quick else 16), []
    for family, p in (("walk-k6", 0.7), ("walk-k20", 0.8)):
        (runs,) = trained([mm.load_recipe(f"{family}-half").with_set([f"source.p={p}"])], seeds)
        found = [outcome(run, 50, 1000 if quick else 2000) for run in runs]
        lags = [int(one.attention.argmax()) + 1 for one in found]
        best = [one.accuracy[2] > p for one in found]
        parent = [bool(one.attention[0] > 0.999) for one in found]
        how = f"{len(seeds)} seeds; sizes of {FIGURES[family]}, with p = {p:g}; 1000 sequences, step 50"
        told = f"accuracy {over_seeds([one.accuracy[1] for one in found])}; most attention at {sorted(lags)}"
        shared = {"case": f"trained, sizes of {FIGURES[family]}, p = {p:g}"}
        for key, hits in (("optimal_accuracy", best), ("selects_parent", parent)):
            n = sum(hits)
            setting = f"{how}; accuracy: the 95 % interval of 2000 walks reaches p; parent: above 0.999"
            findings.append(
                Finding(
                    key,
                    f"{share(n, len(hits))} seeds; {told}",
                    holds(n > len(hits) / 2),
                    setting,
                    "trained at another",
                    (n, len(hits)),
                    **shared,
                )
            )
    return Measured(findings)


def long_walks(quick: bool) -> Measured:
    """Long walks of twenty states, sampled, their rotations added: does the theorem's long N help?"""
    lengths, samples, walks = (LONG[:1], 2, 8000) if quick else (LONG, SAMPLES, SAMPLED)
    found = {N: [_settles(N, walks, sample) for sample in range(samples)] for N in lengths}
    hits = [one for group in found.values() for one in group]
    n = sum(lag == LAG and mass > 0.99 for lag, mass, _ in hits)
    told = "; ".join(
        f"N = {N}: lag {', '.join(map(str, sorted({lag for lag, _, _ in group})))}, attention "
        f"{over_seeds([mass for _, mass, _ in group])}, accuracy {over_seeds([right for *_, right in group])}"
        for N, group in found.items()
    )
    finding = Finding(
        "stays_elsewhere",
        f"{share(n, len(hits))} samples; {told}",
        holds(n == len(hits)),
        f"{samples} independent samples of {walks} walks, with their rotations, at each of N = "
        f"{', '.join(map(str, lengths))}; K = {CIRCLE}, p = {CHANCE:g}, M = max(1000, N^1.5), 20 steps of "
        f"the reduced system; settles: more than 0.99 of attention at lag {LAG}",
        "sampled",
        (n, len(hits)),
    )
    return Measured([finding])


def _settles(N: int, walks: int, seed: int) -> tuple[int, float, float]:
    """The lag with most attention after 20 steps on one sample of walks, how much it has, the accuracy."""
    rng = np.random.default_rng([N, seed])
    moves = np.where(rng.random((walks, N - 1)) < CHANCE, 1, -1)
    ahead = np.cumsum(moves[:, ::-1], axis=1)[:, ::-1] % CIRCLE
    weights = np.full(walks, 1 / walks)
    norm_sq = (max(1000, round(N**1.5)) + 1) / 2
    last = reduced_walk.descend(
        ahead, weights, n_states=CIRCLE, position_norm_sq=norm_sq, eta=1.0, eps=EPS, steps=20
    )[-1]
    attention = reduced_walk.forward(last, ahead).attention[:-1][::-1]
    return int(attention.argmax()) + 1, float(attention.max()), reduced_walk.accuracy(last, ahead, weights)
