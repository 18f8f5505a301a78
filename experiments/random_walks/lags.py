"""The parent of the label further back: selection, and the condition of the trap."""

from itertools import product

import numpy as np
import plotly.graph_objects as go
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.exactness import exactly
from experiments.figures import titled
from experiments.harness import Measured, over_seeds, trained
from experiments.random_walks.common import NO_INFORMATION, curve, fresh, outcome
from mechmarkov.theory.walk.first_step import first_step_information


def lag_information(source: mm.LaggedChain, length: int) -> float:
    """First-step information where tokens whose distance is no multiple of the lag are independent."""
    gradient = sum(source.step_law(m).T * source.pi for m in range(1, length))
    return first_step_information(np.asarray(gradient))


def right_answers(run: mm.Run, lag: int) -> float:
    """The share of 1000 fresh sequences to which the model predicts a most likely state."""
    tokens, _ = fresh(run, 1000)
    law = torch.tensor(run.source.P)[tokens[:, -1 - lag]]
    with torch.no_grad():
        predicted = run.model(-1)(tokens)[:, -1].argmax(-1)
    return float((law.gather(1, predicted[:, None])[:, 0] == law.amax(1)).double().mean())


def lags(quick: bool) -> Measured:
    """The label's parent is `x_{N-lag}`: selection, and the condition of the trap."""
    shown = (2,) if quick else (1, 2, 3, 5)
    fair, seeds = mm.Circle(n_states=6, p=0.5).P.tolist(), range(1 if quick else 16)
    found, learned = [], {}
    for lag in shown:
        chain = {"kind": "lagged_chain", "P": fair, "lag": lag}
        recipe = mm.load_recipe("walk-k6-half").replace(**{"source": chain, "steps": 10})
        (runs,) = trained([recipe], seeds if lag == 2 else [0])
        results = [outcome(run, 10, 1000) for run in runs]
        best = [right_answers(run, lag) for run in runs]
        looks = [float(one.attention[lag - 1]) for one in results]
        found.append(f"lag {lag}: a best answer to {over_seeds(best, 4)}, attention {over_seeds(looks, 5)}")
        learned[lag] = [a > 0.99 and b > 0.999 for a, b in zip(best, looks, strict=True)]
    solved, flat = _runs(quick)
    return Measured(
        [
            Finding(
                "lag_fair",
                f"{share(sum(learned[2]), len(learned[2]))} seeds at lag 2; step 10: " + "; ".join(found),
                holds(all(learned[2])),
                "walk-k6-half with mm.LaggedChain; fresh sequences after 10 steps; learned: a best answer to "
                "99 %, and attention above 0.999; best possible accuracy 0.5; one seed at other lags",
                "trained at another",
                (sum(learned[2]), len(learned[2])),
            ),
            Finding(
                "lag_trap",
                f"{share(solved[0] + flat[0], solved[1] + flat[1])} runs: attention stays flat in "
                f"{flat[0]} of "
                f"{flat[1]} with K lag dividing N - 1, accuracy above 0.99 in {solved[0]} of "
                f"{solved[1]} others",
                holds(solved[0] == solved[1] and flat[0] == flat[1]),
                "K = 5, 300 sequences, |p|² = 64, float64: flat at step 5, learned by step 50. The first "
                "step is flat where the label's own walk makes whole turns, but on a sample that keeps "
                "nothing: where the other walks do not, the token mean varies, and its chance correlation "
                "with the label moves attention",
                "trained at another",
                (solved[0] + flat[0], solved[1] + flat[1]),
            ),
        ],
        {"lags": _lag_figure()},
    )


def _lag_figure() -> go.Figure:
    """Where the deterministic walk's first step is flat (K = 6), and where every walk makes whole turns."""
    turn, lengths, shown = mm.Circle(n_states=6, p=1.0).P.tolist(), np.arange(6, 43), np.arange(1, 5)
    kinds = np.zeros((len(shown), len(lengths)))
    for (i, lag), (j, n) in product(enumerate(shown.tolist()), enumerate(lengths.tolist())):
        flat = lag_information(mm.LaggedChain(turn, lag), n + 1) < NO_INFORMATION
        kinds[i, j] = flat + (n % (6 * lag) == 0)
    colours = ["#DDDDDD", "#88CCEE", "#332288"]
    scale = [[edge / 3, colours[k]] for k in range(3) for edge in (k, k + 1)]
    names = {"tickvals": [1 / 3, 1, 5 / 3], "ticktext": ["learned", "flat first step", "and a trap"]}
    figure = go.Figure(
        go.Heatmap(
            x=lengths, y=shown, z=kinds, zmin=0, zmax=2, colorscale=scale, colorbar=names, xgap=1, ygap=3
        )
    )
    title = "The deterministic walk with its parent further back: what the first step tells (K = 6)"
    return titled(figure, title, "tokens before the label, N - 1", "lag of the parent", yaxis_dtick=1)


@exactly
def lag_information_grid(quick: bool) -> Measured:
    """The first step in closed form, where the parent is further back."""
    cells = agree = 0
    for K in (5,) if quick else (5, 6):
        turn = mm.Circle(n_states=K, p=1.0).P.tolist()
        for lag in range(1, 5):
            source = mm.LaggedChain(turn, lag)
            for n in range(12, 37):
                cells += 1
                trapped = lag_information(source, n + 1) < NO_INFORMATION
                agree += trapped == ((n // lag) % K == 0)
    return Measured(
        [
            Finding(
                "lag_first_step",
                f"flat exactly where K divides floor((N-1)/lag): {agree} of {cells} cells (K, lag, N)",
                holds(agree == cells),
                "closed form, float64, K = 5 and 6, lag 1 to 4, N - 1 from 12 to 36",
                "computed exactly",
                number=f"{agree} of {cells} (K, lag, N)",
            )
        ]
    )


def _runs(quick: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Trained: (solved, of), (flat, of)."""
    solved, flat = [], []
    turn = mm.Circle(n_states=5, p=1.0).P.tolist()
    for lag in (2,) if quick else (2, 3):
        for n in (20, 21, 23) if quick else range(5 * lag, 10 * lag + 1):
            changes = {
                "source": {"kind": "lagged_chain", "P": turn, "lag": lag},
                "model.n_ctx": n + 1,
                "model.n_positions": 127,
                "model.dtype": "float64",
                "data": {"n_train": 300},
                "checkpoints": [50],
            }
            run = mm.train(mm.load_recipe("walk-k6-one").replace(**changes))
            accuracy, spread = curve(run, "accuracy"), curve(run, "attention_spread")
            if n % (5 * lag) == 0:
                flat.append(bool(spread[5] < 1e-3 and accuracy[5] < 0.3))
            else:
                solved.append(bool(accuracy[50] > 0.99))
    return (sum(solved), len(solved)), (sum(flat), len(flat))
