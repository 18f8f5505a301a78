"""What the model needs: which part, which path, which token, by taking it away."""

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.effects import sequences_for
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars, heatmap, lines

from .measure import NOT_RANKED, catalogue, means_alone

# A part that changes the loss by less than this is not named as one that matters (nats).
NOTHING = 1e-3

MOST_BARS = 24


def applies(subject: Subject) -> str | None:
    """Always: every model has parts."""
    del subject
    return None


def measure(subject: Subject) -> xr.Dataset:
    """Effects of every intervention: with it, less without it, on the same sequences.

    All effects are in nats, over `measure`: the `loss` on the sampled next states, and the KL from the exact
    bigram and unigram (in context where the source redraws its chain). `*_low` and `*_high` are 95 %
    bootstrap intervals over sequences.

    Returns:
        `clean` [axis, measure]: without any intervention;
        `effect` [axis, component, kind, measure]: a part's output replaced by zero, by its mean at each
        position, by that of another sequence ("resample"), or by that of another sequence with the same
        current token there ("same_token"); a head's attention made uniform or put on the parent. NaN where a
        kind is none for a part, or cannot change it;
        `path_effect` [axis, path, path_kind, measure], with `sender` and `receiver`: the same in what one
        later part reads, and nowhere else;
        `window_effect` [axis, window, measure]: no head sees beyond that lag (1 is the parent);
        `shuffle_effect` [axis, shuffle, measure]: the context in another order, for the last prediction;
        `swap_kl` [axis, row] (nats), `swap_followed` [axis] (probability): another parent for the last
        prediction, KL from the exact bigram behind it ("swapped") and behind the true one ("original") to the
        model, and how often the first is smaller.
        On null models only the `effect` of means, of the parts that are ranked.
    """
    batch = sequences_for(subject)
    data = means_alone(subject, batch) if subject.axis == "seed" else catalogue(subject, batch)
    return data.assign_attrs(
        source=subject.source.title(),
        objective=subject.objective.kind,
        sequences=len(batch.tokens),
        bigram="in-context bigram" if subject.source.redraws else "bigram",
    )


def _ranked(data: xr.Dataset) -> xr.DataArray:
    """Effects on the loss of putting parts at their mean, [axis, component]."""
    mine = [name for name in data["component"].values if name not in NOT_RANKED]
    return data["effect"].sel(kind="mean", measure="loss", component=mine)


def _largest(data: xr.Dataset) -> tuple[str, float, tuple[float, float]]:
    """At the last step: the part whose mean costs the most, what it costs, and the interval of that."""
    last = _ranked(data)[-1]
    name = str(last["component"].values[int(last.argmax("component"))])
    at = {"component": name, "kind": "mean", "measure": "loss"}
    low, high = (float(data[f"effect_{end}"][-1].sel(at)) for end in ("low", "high"))
    return name, float(last.sel(component=name)), (low, high)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The part the loss needs most, and what the prediction owes to the parent and to the rest."""
    name, value, interval = _largest(data)
    band: tuple[float, float, float] | float | None
    band, kind = None if null is None else null_band(_ranked(null).max("component")), NULL_KIND
    if data.attrs["objective"] != "cross_entropy":
        # Random scores below zero are read as impossible, at 28 nats each: their effects tell nothing.
        band, kind = 0.0, "parts that say nothing"
    found = {
        "largest_effect": Score(value, "nats", band, interval, kind),
        "largest_effect_component": Score(name, ""),
    }
    if not _matters(value, interval):
        why = f"no head, MLP or direct path is worth {NOTHING} nats, or more than the sampling error"
        found["largest_effect_component"] = Score(None, "", reason=why)
    rest = {"shuffle": "all but last", "measure": "loss"}
    low, high = (float(data[f"shuffle_effect_{end}"][-1].sel(rest)) for end in ("low", "high"))
    found["history_effect"] = Score(
        float(data["shuffle_effect"][-1].sel(rest)),
        "nats",
        0.0,
        (low, high),
        "a model of the parent alone",
    )
    followed = float(data["swap_followed"][-1])
    alike = "all sequences end in the same state: there is no other to swap it for"
    found["parent_swap_followed"] = Score(
        followed,
        "probability",
        0.5,
        null_kind="a model that ignores the parent",
        reason=None if np.isfinite(followed) else alike,
    )
    return found


def _matters(value: float, interval: tuple[float, float]) -> bool:
    return value > NOTHING and interval[0] > 0


def verdict(data: xr.Dataset) -> str:
    """Which part matters, and what of the context, in one sentence."""
    name, value, interval = _largest(data)
    clean = float(data["clean"][-1].sel(measure="loss"))
    if not _matters(value, interval):
        last = _ranked(data)[-1]
        worst = str(last["component"].values[int(last.argmin("component"))])
        harm = -float(last.sel(component=worst))
        at = {"component": worst, "kind": "mean", "measure": "loss"}
        if harm > NOTHING and float(data["effect_high"][-1].sel(at)) < 0:
            return (
                f"No part is needed, and {worst} does harm: with its output at its mean the loss falls by "
                f"{harm:.3g} nats from {clean:.3g}."
            )
        return (
            f"No part is surely needed: with any head, MLP or the direct path at its mean the loss changes "
            f"by at most {float(abs(last).max()):.3g} nats (from {clean:.3g}), no more than sampling does."
        )
    said = (
        f"{name} is needed most: with its output at its mean the loss rises by {value:.3g} nats "
        f"({interval[0]:.3g} to {interval[1]:.3g}) from {clean:.3g}"
    )
    others = _ranked(data)[-1].drop_sel(component=name)
    if others.size:
        second = int(others.argmax("component"))
        said += f", with {others['component'].values[second]}'s by {float(others[second]):.3g}"
    followed = float(data["swap_followed"][-1])
    if np.isfinite(followed):
        said += f"; another parent is followed in {followed:.0%} of the sequences"
    rest = float(data["shuffle_effect"][-1].sel(shuffle="all but last", measure="loss"))
    return f"{said}, and the order of all that came before the parent is worth {rest:.2g} nats."


def figures(data: xr.Dataset) -> list[Figure]:
    """Effects of parts by kind, of paths, of the window, and over training."""
    axis = str(data["clean"].dims[0])
    last = data.isel({axis: -1})
    loss = last["effect"].sel(measure="loss")
    components, kinds = ([str(x) for x in data[dim].values] for dim in ("component", "kind"))
    names = [kind.replace("_", " ") for kind in kinds]
    found = [
        Figure(
            "What each part is worth",
            "Loss with the part ablated, less the loss without. Columns: output set to zero, to its mean, to "
            "that of another sequence, of another sequence with the same current token; attention made "
            "uniform, put on the parent. Empty where a kind is none for a part.",
            "plotly",
            heatmap(loss.values, components, names, diverging=True, value_title="nats"),
        )
    ]
    kind = "mean" if "mean" in data["path_kind"].values else str(data["path_kind"].values[0])
    by_path = last.sel(measure="loss")
    effect = by_path["path_effect"].sel(path_kind=kind).values
    order = [i for i in np.argsort(-np.abs(np.nan_to_num(effect))) if np.isfinite(effect[i])][:MOST_BARS]
    if order:
        ends = [by_path[f"path_effect_{end}"].sel(path_kind=kind).values[order] for end in ("low", "high")]
        found.append(
            Figure(
                "What each path is worth",
                f"Loss with the sender's output at its {kind} in what the receiver reads, and nowhere else, "
                "less the loss without; with 95 % intervals over sequences.",
                "plotly",
                bars(
                    [str(data["path"].values[i]) for i in order],
                    effect[order],
                    y_title="nats",
                    errors=(ends[0], ends[1]),
                ),
            )
        )
    window = last["window_effect"].sel(measure="loss")
    if window.size > 1:
        ends = [last[f"window_effect_{end}"].sel(measure="loss").values for end in ("low", "high")]
        found.append(
            Figure(
                "How far back the model needs to see",
                "Loss with no head seeing beyond a lag, less the loss without; lag 1 is the parent.",
                "plotly",
                lines(
                    data["window"].values.astype(float),
                    {"effect": window.values},
                    bands={"effect": (ends[0], ends[1])},
                    x_title="farthest lag seen",
                    y_title="nats",
                    log_x=True,
                ),
            )
        )
    shuffled = last.sel(measure="loss")
    found.append(
        Figure(
            "What the order of the context is worth",
            "Loss of the last prediction with the context in another order, less the loss without.",
            "plotly",
            bars(
                [str(x) for x in data["shuffle"].values],
                shuffled["shuffle_effect"].values,
                y_title="nats",
                errors=(shuffled["shuffle_effect_low"].values, shuffled["shuffle_effect_high"].values),
            ),
        )
    )
    if axis == "step" and data.sizes["step"] > 1:
        ranked = _ranked(data)
        series = {str(name): ranked.sel(component=name).values for name in ranked["component"].values}
        found.append(
            Figure(
                "Worth of each part over training",
                "Loss with the part's output at its mean, less the loss without.",
                "plotly",
                lines(data["step"].values.astype(float), series, x_title="step", y_title="nats"),
            )
        )
    return found


probe = Probe(
    name="ablation",
    question="Which part, which path and which token does the prediction need?",
    cites=(
        "Path patching: Wang et al. 2022 (arXiv 2211.00593); context shuffles: Park et al. 2024 "
        "(arXiv 2412.01003)"
    ),
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="effect of a part = E[loss with its output replaced] − E[loss], on the same sequences (nats)\n"
    "replaced by: zero · its mean at each position · its output on another sequence\n"
    "largest effect = the largest over heads, MLPs and the direct path, at their mean",
)
