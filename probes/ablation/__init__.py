"""What the model needs: which component, which path, which token, by taking it away."""

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.probe import always
from mechmarkov.probing.score import Score

from . import figures, measure
from .measure import ranked_effects

# A component that changes the loss by less than this is not named as one that matters.
MIN_EFFECT_NATS = 1e-3

MEAN_LOSS = {"kind": "mean", "measure": "loss"}
ORDER_LOSS = {"shuffle": "all but last", "measure": "loss"}


def _largest(data: xr.Dataset) -> tuple[str, float, tuple[float, float]]:
    """At the last step: the component whose mean costs the most, what it costs, and its interval."""
    last = ranked_effects(data)[-1]
    name = str(last["component"].values[int(last.argmax("component"))])
    return name, float(last.sel(component=name)), interval_at(data, "effect", component=name, **MEAN_LOSS)


def _matters(value: float, interval: tuple[float, float]) -> bool:
    return value > MIN_EFFECT_NATS and interval[0] > 0


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The component the loss needs most, and what the prediction owes to the parent and to the rest."""
    name, value, interval = _largest(data)
    largest = score_with_null(
        lambda d: ranked_effects(d).max("component"), data, null, "nats", interval=interval
    )
    if data.attrs["objective"] != "cross_entropy":
        # Random scores below zero are read as impossible, at 28 nats each: their effects tell nothing.
        largest = Score(value, "nats", 0.0, interval, "parts that say nothing")
    needed = Score(name, "")
    if not _matters(value, interval):
        why = f"no head, MLP or direct path is worth {MIN_EFFECT_NATS} nats, or more than the sampling error"
        needed = Score(None, "", reason=why)
    last = last_model(data)
    return {
        "largest_effect": largest,
        "largest_effect_component": needed,
        "history_effect": Score(
            float(last["shuffle_effect"].sel(ORDER_LOSS)),
            "nats",
            0.0,
            interval_at(data, "shuffle_effect", **ORDER_LOSS),
            "a model of the parent alone",
        ),
        "parent_swap_followed": Score(
            float(last["swap_followed"]),
            "probability",
            0.5,
            null_kind="a model that ignores the parent",
            reason=None
            if np.isfinite(last["swap_followed"])
            else "all sequences are in the same state there: there is no other to swap it for",
        ),
    }


def verdict(data: xr.Dataset) -> str:
    """Which component matters, and what of the context, in one sentence."""
    name, value, interval = _largest(data)
    last, effects = last_model(data), ranked_effects(data)[-1]
    clean = float(last["clean"].sel(measure="loss"))
    if not _matters(value, interval):
        worst = str(effects["component"].values[int(effects.argmin("component"))])
        harm = -float(effects.sel(component=worst))
        if harm > MIN_EFFECT_NATS and interval_at(data, "effect", component=worst, **MEAN_LOSS)[1] < 0:
            return (
                f"No part is needed, and {worst} does harm: with its output at its mean the loss falls by "
                f"{harm:.3g} nats from {clean:.3g}."
            )
        return (
            f"No part is surely needed: with any head, MLP or the direct path at its mean the loss changes "
            f"by at most {float(abs(effects).max()):.3g} nats (from {clean:.3g}), no more than sampling does."
        )
    said = (
        f"{name} is needed most: with its output at its mean the loss rises by {value:.3g} nats "
        f"({interval[0]:.3g} to {interval[1]:.3g}) from {clean:.3g}"
    )
    others = effects.drop_sel(component=name)
    if others.size:
        second = int(others.argmax("component"))
        said += f", with {others['component'].values[second]}'s by {float(others[second]):.3g}"
    followed = float(last["swap_followed"])
    if np.isfinite(followed):
        said += f"; another parent is followed in {followed:.0%} of the sequences"
    order = float(last["shuffle_effect"].sel(ORDER_LOSS))
    return f"{said}, and the order of all that came before the parent is worth {order:.2g} nats."


probe = Probe(
    name="ablation",
    question="Which part, which path and which token does the prediction need?",
    cites=(
        "Path patching: Wang et al. 2022 (arXiv 2211.00593); context shuffles: Park et al. 2024 "
        "(arXiv 2412.01003)"
    ),
    applies=always,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formula="effect of a part = E[loss with its output replaced] − E[loss], on the same sequences (nats)\n"
    "replaced by: zero · its mean at each position · its output on another sequence\n"
    "largest effect = the largest over heads, MLPs and the direct path, at their mean",
)
