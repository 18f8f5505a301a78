"""What the model needs: which component, which path, which token, by taking it away."""

from typing import Any

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.score import Score
from mechmarkov.theory.bootstrap import wilson
from mechmarkov.utils.text import format_range, format_share, listed

from . import figures, measure
from .measure import ranked, ranked_effects

# A component that changes the loss by less than this is not named as one that matters.
MIN_EFFECT_NATS = 1e-3

# What later parts change is named where it is more than this, and more than this share of the whole.
MIN_REPAIR_NATS = 0.01
MIN_REPAIR_SHARE = 0.25

# Each of two that stand in for each other costs at most this share of both. Of two that merely add it is
# more: KL is convex in the logits, so that either half of a logit costs a quarter of the whole.
MAX_ALONE_SHARE = 0.1

MEAN_LOSS = {"kind": "mean", "measure": "loss"}
ORDER_LOSS = {"shuffle": "all but last", "measure": "loss"}


def applies(subject: Subject) -> str | None:
    """Only where every head has attention weights: some edits are of what it attends to."""
    blocks: list[Any] = list(subject.decoder.blocks)
    without = [str(layer) for layer, block in enumerate(blocks) if not block.attn.has_attention_weights]
    if len(without) == len(blocks):
        return "no layer has attention weights"
    return f"layer {listed(without)} has no attention weights" if without else None


def _largest(data: xr.Dataset) -> tuple[str, float, tuple[float, float]]:
    """At the last step: the component whose mean costs the most, what it costs, and its interval."""
    effects = ranked(data)
    name = max(effects, key=effects.__getitem__)
    last = last_model(data)
    return name, effects[name], (float(last["largest_low"]), float(last["largest_high"]))


def _largest_of(data: xr.Dataset, name: str, dim: str, null: str) -> Score:
    """The largest of the last model, with its interval."""
    values = last_model(data)[name]
    if not values.size:
        return Score(None, "nats", reason=f"no {dim} to ablate")
    label = values[dim].values[int(values.argmax(dim))]
    return Score(float(values.max()), "nats", 0.0, interval_at(data, name, **{dim: label}), null)


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
        largest = Score(value, "nats", 0.0, interval, "a part without information")
    why = f"no head, MLP or direct path is worth {MIN_EFFECT_NATS} nats, or the largest effect is not sure"
    last = last_model(data)
    order = float(last["shuffle_effect"].sel(ORDER_LOSS))
    around = interval_at(data, "shuffle_effect", **ORDER_LOSS)
    return {
        "largest_effect": largest,
        "largest_effect_component": Score(name, "")
        if _matters(value, interval)
        else Score(None, "", reason=why),
        "self_repair": _largest_of(data, "self_repair", "part", "parts that no later part reads"),
        "redundancy": _largest_of(data, "redundancy", "pair", "pairs whose effects add up"),
        "history_effect": Score(order, "nats", 0.0, around, "a model of the parent alone"),
        "parent_swap_followed": _swap_followed(data),
    }


def _swap_followed(data: xr.Dataset) -> Score:
    followed, reason, interval = float(last_model(data)["swap_followed"]), None, None
    if not data.attrs["one_parent"]:
        followed, reason = np.nan, "the next state depends on no single token: there is no parent to swap"
    elif not np.isfinite(followed):
        reason = "all sequences have one state there, or all states one law: a swap tells nothing"
    else:
        interval = wilson(followed, float(last_model(data)["swaps"]))
    null_kind = "a model that ignores the parent"
    return Score(followed, "probability", 0.5, interval, null_kind, reason=reason)


def verdict(data: xr.Dataset) -> str:
    """Which component matters, and what of the context, in one sentence."""
    name, value, interval = _largest(data)
    last, effects = last_model(data), ranked(data)
    clean = float(last["clean"].sel(measure="loss"))
    low, high = interval
    rises = f"With its output at its mean the loss rises by {value:.3g} nats ({low:.3g} to {high:.3g})"
    others = sorted((part for part in effects if part != name), key=lambda part: -effects[part])
    if not _matters(value, interval):
        worst, unsure = min(effects, key=effects.__getitem__), "No part is surely needed"
        if value > MIN_EFFECT_NATS:  # not surely; but the next may be
            unsure = f"{name} may be needed most, not surely. {rises} from {clean:.3g}"
            for second in others[:1]:
                low, high = interval_at(data, "effect", component=second, **MEAN_LOSS)
                unsure += f". Next is {second}, {effects[second]:.3g} nats ({low:.3g} to {high:.3g})"
        harm = -effects[worst]
        if harm > MIN_EFFECT_NATS and interval_at(data, "effect", component=worst, **MEAN_LOSS)[1] < 0:
            unsure += f". {worst} does harm: with its output at its mean the loss falls by "
            return f"{unsure}{harm:.3g} nats from {clean:.3g}."
        if value > MIN_EFFECT_NATS:
            return f"{unsure}."
        return (
            f"{unsure}: with any head, MLP or the direct path at its mean the loss changes by at most "
            f"{max(map(abs, effects.values())):.3g} nats. That is under 0.001, or sampling error."
        )
    tied = _tied(data, name, value, interval)
    if tied:
        least = min(effects[other] for other in tied)
        most = format_range(least, value, 3)
        said = [
            f"{listed([name, *tied])} are needed most.",
            f"With one of them at its mean the loss rises by {most} nats from {clean:.3g}.",
        ]
    else:
        said = [f"{name} is needed most. {rises} from {clean:.3g}."]
    for second in [other for other in others if other not in tied][:1]:
        said.append(f"Next is {second}, {effects[second]:.3g} nats.")
    said += _together(data)
    followed, order = _swap_followed(data), float(last["shuffle_effect"].sel(ORDER_LOSS))
    low, high = interval_at(data, "shuffle_effect", **ORDER_LOSS)
    if isinstance(followed.value, float) and followed.interval is not None:
        share, *ends = (format_share(part) for part in (followed.value, *followed.interval))
        said.append(
            f"Another parent is followed in {share} ({' to '.join(ends)}) of the predictions, "
            "by chance in 50%."
        )
    worth = f"{order:.2g} nats ({format_range(low, high, 2)})"
    if max(abs(low), abs(high)) < MIN_EFFECT_NATS:
        worth = f"less than {MIN_EFFECT_NATS} nats"
    said.append(f"The order of all that came before the last token is worth {worth}.")
    return " ".join(said)


def _tied(data: xr.Dataset, name: str, value: float, interval: tuple[float, float]) -> list[str]:
    """The other components whose effect is within the largest one's interval, and it within theirs."""
    found = []
    for other, effect in ranked(data).items():
        low, high = interval_at(data, "effect", component=other, **MEAN_LOSS)
        if other != name and effect >= interval[0] and low <= value <= high:
            found.append(other)
    return found


def _together(data: xr.Dataset) -> list[str]:
    """What later parts change most where one is cut, and the pair that stands in for each other most."""
    last, said = last_model(data), []
    if part := _most(data, "self_repair", "part", of="direct_effect"):
        direct = float(last["direct_effect"].sel(part=part))
        left = direct - float(last["self_repair"].sel(part=part))
        said.append(
            f"Cut from the logits alone {part} costs {direct:.3g} nats, cut everywhere {left:.3g}: "
            "later parts change with it."
        )
    alone, worth = ranked(data), last["joint_effect"].to_series()
    stand_in = [
        pair
        for pair in worth.index
        if max(alone[part] for part in pair.split(" + ")) <= MAX_ALONE_SHARE * worth[pair]
    ]
    if pair := _most(data.sel(pair=stand_in), "redundancy", "pair", of="joint_effect"):
        joint, more = worth[pair], float(last["redundancy"].sel(pair=pair))
        said.append(
            f"{pair.replace(' + ', ' and ')} stand in for each other: together they are worth {joint:.3g} "
            f"nats, {more:.3g} more than one by one."
        )
    return said


def _most(data: xr.Dataset, name: str, dim: str, *, of: str) -> str | None:
    """Where `name` is largest, if it is above 0 and not small next to the effect `of`."""
    last = last_model(data)
    if not last.sizes[dim]:
        return None
    most = last.isel({dim: int(last[name].argmax(dim))})
    if not float(most[name]) > max(MIN_REPAIR_NATS, MIN_REPAIR_SHARE * float(most[of])):
        return None
    found = str(most[dim].values)
    low, _ = interval_at(data, name, **{dim: found})
    return found if low > 0 else None


FORMULAS = {
    "largest_effect_component": "the part with the largest effect",
    "self_repair": "max over parts of (effect of its direct path alone − effect of the part)",
    "redundancy": "max over pairs of (effect of both − effect of one − effect of the other)",
    "history_effect": "E[loss with all but the last token shuffled] − E[loss], at the last prediction",
    "parent_swap_followed": "share of predictions that another parent, put in its place, moves from the true "
    "parent's law to its own, and nearer to its own",
}

probe = Probe(
    name="ablation",
    question="Which part, which path and which token does the prediction need?",
    cites=(
        "Path patching: Wang et al. 2022 (arXiv 2211.00593); context shuffles: Park et al. 2024 "
        "(arXiv 2412.01003)"
    ),
    applies=applies,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formulas=FORMULAS,
    formula="effect of a part = E[loss with its output replaced] − E[loss], on the same sequences (nats)\n"
    "replaced by: zero · its mean at each position · its output on another sequence\n"
    "largest effect = the largest over heads, MLPs and the direct path, at their mean",
)
