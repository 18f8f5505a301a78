"""The variance of the token mean over training at p = 1: zero in the trap, and an exponential way out."""

import numpy as np
import plotly.graph_objects as go
import torch
import torch.nn.functional as F

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import marker, style, titled
from experiments.harness import Measured, first_time, over_seeds, trained
from experiments.random_walks.common import FLOAT64, SHORT_WALK, curve, value_matrix
from experiments.random_walks.hand_set import SHORT
from mechmarkov.models.constructions.walk import attend, position_table
from mechmarkov.theory.walk.trap_spectrum import trap_spectrum

K, EPS = SHORT.n_states, 0.1
EXACT, STARTED = "p = 1, zero start, exact", "p = 1, start of sd 1e-10, float64"
# A token's share of the mean is a sum of N - 1 attentions, each rounded by at most 2^-53 of at most 1; the
# variance adds the squares over K states.
ROUNDING = K * ((SHORT.n_ctx - 1) * 2.0**-53) ** 2


SMALL = ["init.scheme=normal", "init.std=1e-10", FLOAT64]


def token_mean_variance(run: mm.Run) -> tuple[np.ndarray, np.ndarray]:
    """Variance over sequences of the attention-weighted token mean, and mean `S_N`, `[step]`."""
    if run.source.p == 1:  # all walks, which are K
        states = (torch.arange(K)[:, None] + torch.arange(SHORT.n_ctx - 1)) % K
    else:
        states = run.source.sample(300, SHORT.n_ctx - 1, generator=torch.Generator().manual_seed(1))
    x, table = F.one_hot(states, K).double(), position_table(SHORT)
    weights = run.states["blocks.0.attn.W_K"][:, 0, :, 0].double().expand(len(run.steps), -1)
    variance, query = [], []
    for u in weights:
        seen = attend(x, SHORT.norm * u, table)
        variance.append(float(torch.einsum("bn,bnk->bk", seen[:, :-1], x).var(0, correction=0).sum()))
        query.append(float(seen[:, -1].mean()))
    return np.array(variance), np.array(query)


def _train() -> dict[str, mm.Run]:
    """One run of each kind of start; every step is kept."""
    base = mm.load_recipe("walk-k6-one").with_set([*SHORT_WALK, "checkpoints={every=1}"])
    # The reduced system keeps the symmetry to the last bit. Tensors leave it at a step that depends on the
    # processor's order of summation: they are shown, and decide nothing.
    exact = mm.load_recipe("walk-k6-trap").with_set([*SHORT_WALK[:2], "checkpoints={every=1}"])
    recipes = {
        EXACT: exact,
        "p = 1, zero start, float64": base.with_set([FLOAT64]),
        "p = 1, zero start, float32": base,
        STARTED: base.with_set(SMALL),
        "p = 1/2, zero start": base.with_set(["source.p=0.5"]),
    }
    runs = trained(list(recipes.values()), [0])
    return {name: run for name, (run,) in zip(recipes, runs, strict=True)}


def token_mean(quick: bool) -> Measured:
    """The variance of the token mean over training: zero in the trap, and an exponential way out."""
    runs = _train()
    variance = {name: token_mean_variance(run)[0] for name, run in runs.items()}
    learned = {
        name: first_time(curve(run, "accuracy") > (0.9 if run.source.p == 1 else 0.45))
        for name, run in runs.items()
    }
    started, step = variance[STARTED], learned[STARTED]
    follows = np.isfinite(step) and started[int(step)] > 1e-3 and (started[: int(step) // 2] < 1e-3).all()
    found = "; ".join(
        f"{name}: {values[1]:.0e} at step 1, {values[-1]:.2g} at step 50, learned "
        + (f"at step {learned[name]:.0f}" if np.isfinite(learned[name]) else "never")
        for name, values in variance.items()
    )
    base = mm.load_recipe("walk-k6-one").with_set([*SHORT_WALK, "checkpoints={every=1}", *SMALL])
    (runs,) = trained([base], range(2 if quick else 16))
    pairs = [_growth(run, token_mean_variance(run)[0])[:2] for run in runs]
    near = [abs(growth / predicted - 1) < 0.1 for growth, predicted in pairs]
    ratios = [growth / predicted for growth, predicted in pairs]
    claims = [
        Finding(
            "mean_grows",
            f"{share(sum(near), len(near))} runs; growth of the standard deviation over the predicted one "
            f"{over_seeds(ratios)}. One run of each start: {found}",
            holds(all(near) and follows),
            "K = 6, N = 25, |p|² = 32, 50 steps; starts of sd 1e-10, float64; sum over steps of log(1 + eta "
            "lambda), lambda of attention by lag class (mechmarkov.theory.walk.trap_spectrum) at each step's "
            "mean of V and S_N; agreement within 10 %",
            "sampled",
            (sum(near), len(near)),
        ),
    ]
    return Measured(claims, {"token-mean": _figure(variance)})


@exactly
def mean_stays(quick: bool) -> Measured:
    """The variance of the attention-weighted token mean in the trap."""
    del quick
    recipe = mm.load_recipe("walk-k6-trap").with_set([*SHORT_WALK[:2], "checkpoints={every=1}"])
    ((run,),) = trained([recipe], [0])
    variance = token_mean_variance(run)[0]
    accuracy = curve(run, "accuracy")
    return Measured(
        [
            Finding(
                "mean_stays",
                f"variance at most {variance.max():.0e}, accuracy {accuracy.max():.4f}, at every step",
                holds(variance.max() < ROUNDING and accuracy.max() < 0.2),
                "all walks, K = 6, N = 25, |p|² = 32, 50 steps of the reduced system, float64; "
                "rounding of the "
                f"forward pass {ROUNDING:.0e}",
                "computed exactly",
                number=f"variance at most {variance.max():.0e}",
            )
        ]
    )


def _figure(variance: dict[str, np.ndarray]) -> go.Figure:
    figure = go.Figure()
    for i, (name, values) in enumerate(variance.items()):
        shown = np.maximum(values, 1e-33)
        figure.add_scatter(y=shown, name=name, mode="lines+markers", marker=marker(i, 5), line=style(i))
    title = "Variance of the attention-weighted token mean over training (drawn from 1e-33 up)"
    figure.update_yaxes(type="log", exponentformat="power", dtick=6)
    return titled(figure, title, "training step", "variance, summed over states")


def _growth(run: mm.Run, variance: np.ndarray) -> tuple[float, float, tuple[int, int]]:
    """Log growth of the standard deviation while small, measured and predicted, and between which steps."""
    _, query = token_mean_variance(run)
    last = int(np.flatnonzero(variance < 1e-6)[-1])
    first = last // 2  # before, other modes and the transient of the start are as large
    predicted = 0.0
    for step in range(first, last):
        alpha = float(value_matrix(run, step).mean())
        z = alpha * (1 - query[step])
        rates = trap_spectrum(
            n_states=K,
            length=SHORT.n_ctx,
            position_norm=SHORT.norm,
            alpha=alpha,
            query_mass=query[step],
            slope=-1 / (z + EPS),
        )
        predicted += float(np.log1p(rates.growth_position))
    return float(np.log(variance[last] / variance[first]) / 2), predicted, (first, last)
