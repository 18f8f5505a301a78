"""Where a chain is stored: the direct path, attention or the MLP, by size, width and tying."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from mechmarkov.probes.storage.measure import shares
from plotly.subplots import make_subplots
from torch import Tensor

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import ranges, style, titled
from experiments.harness import Measured, over_seeds, trained
from experiments.where_is_the_bigram.shared import recipe

WIDTH = 16
MLP = {"model__attn_only": False, "model__d_mlp": 64, "model__act_fn": "relu"}
SHAPES: dict[str, dict[str, Any]] = {
    "untied": {},
    "untied, MLP": MLP,
    "tied": {"model__tied": True},
    "tied, MLP": MLP | {"model__tied": True},
}
PATHS = ("direct", "L0H0", "L0.mlp")
SLACK_NATS = 0.02  # what 64 sequences of 16 and the head's mean add or take; floors are ten times that
HOW = "one layer, d=16, context 16, 300 steps of AdamW; shares are Shapley values of the nats of all paths"


@dataclass(frozen=True, eq=False)
class Home:
    """Where one model keeps its chain.

    Attributes:
        share: Of each path.
        only: KL from the bigram to the direct path alone, the others at their mean (nats).
        full: KL to the whole model (nats).
        empty: KL to the model with every path at its mean (nats).
        floor: The least that the direct path alone could be away (nats).
    """

    share: dict[str, float]
    only: float
    full: float
    empty: float
    floor: float


Found = dict[tuple[str, int], list[Home]]  # by shape and number of states


def chain(n_states: int, seed: int) -> mm.Chain:
    """A chain whose rows are uniform on the simplex."""
    return mm.Chain(np.random.default_rng(seed).dirichlet(np.ones(n_states), size=n_states))


@cache
def floor(source: mm.Chain, *, tied: bool) -> float:
    """The least KL (nats) from a chain to softmax(W_E W_U + b) of width 16, tied or not.

    Up to rounding and local minima: the best of three starts of L-BFGS in float64. 0 for untied weights and
    no more states than dimensions; with tied ones the table is symmetric up to its columns' bias, and that
    of a random chain is not.
    """
    n = source.n_states
    if not tied and n <= WIDTH:
        return 0.0
    P, pi = torch.tensor(np.array(source.P)), torch.tensor(np.array(source.pi))
    entropy = -(pi[:, None] * torch.special.xlogy(P, P)).sum()
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(3):
        shape = (1 if tied else 2, n, WIDTH)
        weights = torch.randn(shape, generator=generator, dtype=torch.float64).mul_(0.3).requires_grad_()
        bias = torch.zeros(n, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([weights, bias], max_iter=400, line_search_fn="strong_wolfe")

        def loss(weights: Tensor = weights, bias: Tensor = bias) -> Tensor:
            table = weights[0] @ weights[-1].T + bias
            return -(pi[:, None] * P * table.log_softmax(-1)).sum() - entropy

        def closure(optimiser: Any = optimiser, loss: Any = loss) -> Tensor:
            optimiser.zero_grad()
            value: Tensor = loss()
            value.backward()
            return value

        optimiser.step(closure)
        found.append(float(loss().detach()))
    return min(found)


def homes_of(shape: str, n_states: int, quick: bool) -> list[Home]:
    """Models of one shape, each on a chain of its own."""
    changes = SHAPES[shape] | ({"data__batch": 16, "steps": 200} if quick else {})
    recipes = [
        recipe("chains", source=chain(n_states, seed).model_dump(mode="json"), **changes)
        for seed in range(1 if quick else 8)
    ]
    found = []
    for seed, chosen in enumerate(recipes):
        ((run,),) = trained([chosen], [seed])
        data = shares(mm.Subject.of(run, sequences=64)).isel(step=-1)
        share = {str(path): float(data["share"].sel(path=path)) for path in data["path"].values}
        only = float(data["kl_only"].sel(path="direct"))
        full, empty = float(data["kl_full"]), float(data["kl_empty"])
        found.append(
            Home(share, only, full, empty, floor(run.source, tied="tied" in shape and "untied" not in shape))
        )
    return found


def homes(quick: bool) -> Measured:
    """The share of every path, over sizes and shapes."""
    sizes = (8, 32) if quick else (4, 8, 32)
    found = {(shape, n): homes_of(shape, n, quick) for shape in SHAPES for n in sizes}
    claims = [*_untied_claims(found, sizes), *_tied_claims(found, sizes)]
    return Measured(claims, {"homes": _figure(found, sizes)})


def _shares(found: Found, shape: str, path: str, sizes: Sequence[int]) -> list[float]:
    return [home.share[path] for n in sizes for home in found[shape, n]]


def _untied_claims(found: Found, sizes: Sequence[int]) -> list[Finding]:
    """Which path holds the chain where the direct path could, and where it is short of rank."""
    small, large = sizes[0], sizes[-1]
    fits = [n for n in sizes if n <= WIDTH]
    direct, mlp = _shares(found, "untied", "direct", sizes), _shares(found, "untied, MLP", "L0.mlp", fits)
    low = found["untied", large]
    return [
        Finding(
            "direct_without_mlp",
            f"share of the direct path over K = {_listed(sizes)}: {over_seeds(direct)}",
            holds(min(direct) > 0.5),
            f"untied, attention only; {HOW}",
            "trained at another",
            (sum(value > 0.5 for value in direct), len(direct)),
        ),
        Finding(
            "mlp_takes_over",
            f"share of the MLP over K = {_listed(fits)}, none of them above d: {over_seeds(mlp)}",
            holds(min(mlp) > 0.5),
            f"untied, with an MLP of 64; the direct path's own floor is 0 there; {HOW}",
            "trained at another",
            (sum(value > 0.5 for value in mlp), len(mlp)),
        ),
        Finding(
            "short_of_rank",
            f"K = {large}, d = {WIDTH}: model {over_seeds([home.full for home in low])} nats, floor "
            f"{over_seeds([home.floor for home in low])} nats; at K = {small} "
            f"{over_seeds([home.full for home in found['untied', small]])} nats",
            holds(min(home.full / home.floor for home in low) > 0.5),
            f"untied, attention only; holds if no model is below half of the floor; {HOW}",
            "trained at another",
            (sum(home.full > home.floor / 2 for home in low), len(low)),
        ),
    ]


def _tied_claims(found: Found, sizes: Sequence[int]) -> list[Finding]:
    """Where a chain goes that a symmetric table cannot hold."""
    fits = [n for n in sizes if n <= WIDTH]
    small = [home for n in fits for home in found["tied", n]]
    crooked = [home.share["L0H0"] for home in small if home.floor > home.empty / 2]
    straight = [home.share["L0H0"] for home in small if home.floor <= home.empty / 2]
    mlp = _shares(found, "tied, MLP", "L0.mlp", sizes)
    alone = [home for shape in ("tied", "tied, MLP") for n in sizes for home in found[shape, n]]
    above = min(home.only - home.floor for home in alone)
    return [
        Finding(
            "tied_out_of_direct",
            f"share of the head over K = {_listed(fits)}: {over_seeds(crooked)} on {len(crooked)} chains"
            + (f", {over_seeds(straight)} on the {len(straight)} nearly symmetric" if straight else "")
            + f"; with an MLP, share of the MLP over all K: {over_seeds(mlp)}",
            holds(min(crooked) > 0.5 and min(mlp) > 0.5),
            "tied; not symmetric is a chain of which the best symmetric table misses more than half, nearly "
            f"symmetric another; {HOW}",
            "trained at another",
            (sum(value > 0.5 for value in crooked + mlp), len(crooked + mlp)),
        ),
        Finding(
            "tied_floor",
            f"smallest distance above the floor {above:.3f} nats; floors "
            f"{over_seeds([home.floor for home in alone])}",
            holds(above > -SLACK_NATS),
            f"tied, all K; {HOW}",
            "sampled",
            (sum(home.only - home.floor > -SLACK_NATS for home in alone), len(alone)),
            number=f"at least {above:.3f} nats above",
        ),
    ]


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _figure(found: Found, sizes: Sequence[int]) -> go.Figure:
    figure = make_subplots(cols=len(SHAPES), shared_yaxes=True, subplot_titles=[*SHAPES])
    for column, shape in enumerate(SHAPES, start=1):
        for i, path in enumerate(PATHS):
            rows = [[home.share.get(path, np.nan) for home in found[shape, n]] for n in sizes]
            if np.isnan(rows).all():
                continue
            figure.add_scatter(
                x=[str(n) for n in sizes],
                **ranges(rows),
                mode="lines+markers",
                line=style(i),
                name=path,
                legendgroup=path,
                showlegend="MLP" in shape and "untied" in shape,
                col=column,
                row=1,
            )
        figure.update_xaxes(title="states K", col=column, row=1)
    figure.update_yaxes(title="share of the bigram", col=1, row=1)
    return titled(figure, "Where a chain of K states is stored, d = 16")
