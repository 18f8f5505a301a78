"""What the two layers attend to: the first over the last k tokens, the second to where those match."""

from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
import xarray as xr

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.figures import marker, style, titled
from experiments.harness import Measured, evaluation, over_seeds
from experiments.order_and_lag.orders import by_order

SHOWN = 8  # keys back
MORE = 1.3  # times as much as any other: a fresh head of this start tells keys apart by less


@lru_cache(maxsize=64)
def probed(run: mm.Run) -> tuple[xr.Dataset, dict[str, Any]]:
    """The attention probe's data, and the induction probe's scores."""
    result = mm.probe(run, ["attention", "induction"], sequences=256)
    return result["attention"].data, result["induction"].scores


def back(run: mm.Run) -> list[float]:
    """Of a run's layer 0: mean attention to the key m back, m = 0, 1, …, over the queries that have one."""
    data, _ = probed(run)
    mass = data["lag_mass"].isel(step=-1, layer=0, head=0) / data["reach"]
    return [float(mass.sel(lag=m + 1)) for m in range(SHOWN)]


def heads(quick: bool) -> Measured:
    """Two layers of one head: attention over the last k tokens, then to keys behind the same k."""
    found = {order: runs for (order, layers), runs in by_order(quick).items() if layers == 2}
    profile = {order: [back(run) for run in runs] for order, runs in found.items()}
    first = {
        order: [(sum(one[1 : order + 1]), max(one[order + 1 :])) for one in profiles]
        for order, profiles in profile.items()
    }
    ordered = {
        order: all(min(one[1 : order + 1]) > MORE * max(one[order + 1 :]) for one in profiles)
        for order, profiles in profile.items()
    }
    claims = [
        Finding(
            "first_layer_trained",
            "; ".join(
                f"k={order}: {over_seeds([a for a, _ in values])} together on them, at most "
                f"{max(b for _, b in values):.3f} on one beyond"
                for order, values in first.items()
            ),
            holds(all(ordered.values())),
            "mean attention of layer 0's head by how far back the key is; holds where each of the k keys "
            f"has {MORE} times as much as any key further back",
            "trained at another",
            (
                sum(
                    min(one[1 : order + 1]) > MORE * max(one[order + 1 :])
                    for order, profiles in profile.items()
                    for one in profiles
                ),
                sum(map(len, profile.values())),
            ),
        ),
    ]
    if not quick:  # an induction head takes more training
        claims.append(second_layer(found))
    return Measured(claims, {"first_layer": by_lag(profile)})


def second_layer(found: dict[int, list[mm.Run]]) -> Finding:
    """Whether the second layer's head is an induction head of order k."""
    scores = {order: [score(run, order) for run in runs] for order, runs in found.items()}
    text = []
    for order, values in scores.items():
        shares = np.mean([on_matches(run, order) for run in found[order]], axis=0)
        text.append(
            f"k={order}: score {over_seeds([value for value, _ in values])} (fresh models: at most "
            f"{max(null for _, null in values):.3f}); attention {shares[0]:.2f} on the matches, which are "
            f"{shares[1]:.2f} of the keys, {shares[2]:.2f} on those whose last token matches, "
            f"{shares[3]:.2f} of the keys"
        )
    return Finding(
        "second_layer_k",
        "; ".join(text),
        holds(all(value > null for values in scores.values() for value, null in values)),
        "induction score of k matched tokens: attention on the matches beyond what lag and tokens, and "
        "matches of k - 1, explain; holds above 97.5 % of 20 fresh models of the shape. Attention of the "
        "last query",
        "trained at another",
        (
            sum(value > null for values in scores.values() for value, null in values),
            sum(map(len, scores.values())),
        ),
    )


def on_matches(run: mm.Run, order: int) -> list[float]:
    """Layer 1, last query: attention on keys that match k tokens, their share; so for one token."""
    tokens = evaluation(run.source, 600, run.config.n_ctx)
    with torch.no_grad():
        _, cache = run.model().run_with_cache(tokens, names_filter=["blocks.1.attn.hook_pattern"])
    attention = cache["blocks.1.attn.hook_pattern"][:, 0, -1, order:]
    length = tokens.shape[1]
    # The token j before a key against the query's, from the key on that has k before it.
    matches = torch.stack(
        [tokens[:, order - j : length - j] == tokens[:, [length - j]] for j in range(1, order + 1)]
    )
    found: list[float] = []
    for match in (matches.all(0), matches[0]):
        found += [float((attention * match).sum(1).mean()), float(match.float().mean())]
    return found


def score(run: mm.Run, order: int) -> tuple[float, float]:
    """The induction score of `order` matched tokens, and the upper end of its null."""
    _, scores = probed(run)
    found = scores["induction_score" if order == 1 else f"induction_score_{order}"]
    return float(found.value), float(found.null[2])


def by_lag(profile: dict[int, list[list[float]]]) -> go.Figure:
    """Where the first layer looks, a line a run."""
    figure = go.Figure()
    for i, (order, profiles) in enumerate(profile.items()):
        for j, one in enumerate(profiles):
            figure.add_scatter(
                x=list(range(SHOWN)),
                y=np.round(one, 4).tolist(),
                name=f"order {order}",
                legendgroup=str(i),
                showlegend=j == 0,
                mode="lines+markers",
                line=style(i),
                marker=marker(i),
            )
    figure.update_xaxes(dtick=1).update_yaxes(rangemode="tozero")
    title = "Where the first layer of two looks, by the order of the chain"
    return titled(figure, title, "tokens before the query's own (0 is its own)", "mean attention")
