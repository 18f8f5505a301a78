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
    matters, last = _matters(value, interval), last_model(data)
    tied = [name, *_tied(data, name, value, interval)]
    order = float(last["shuffle_effect"].sel(ORDER_LOSS))
    around = interval_at(data, "shuffle_effect", **ORDER_LOSS)
    return {
        "largest_effect": largest,
        "largest_effect_component": Score(name, "") if matters else Score(None, "", reason=why),
        "largest_effect_components": Score(" + ".join(tied), "") if matters else Score(None, "", reason=why),
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
        return " ".join([_unsure(data, name, value, f"{rises} from {clean:.3g}", others), *_together(data)])
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
        if _matters(effects[second], interval_at(data, "effect", component=second, **MEAN_LOSS)):
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
    said.append(f"For the last prediction the order of all that came before its token is worth {worth}.")
    return " ".join(said)


def _unsure(data: xr.Dataset, name: str, value: float, rises: str, others: list[str]) -> str:
    """What can be said where no part surely raises the loss: which may, which lower it, or how little."""
    effects, said = ranked(data), "No part is surely needed"
    clean = float(last_model(data)["clean"].sel(measure="loss"))
    ends = {part: interval_at(data, "effect", component=part, **MEAN_LOSS) for part in effects}
    if value > MIN_EFFECT_NATS:  # not surely; but the next may be
        said = f"{name} may be needed most, not surely. {rises}"
        for second in others[:1]:
            low, high = ends[second]
            said += f". Next is {second}, {effects[second]:.3g} nats ({low:.3g} to {high:.3g})"
    harmful = sorted(part for part in effects if effects[part] < -MIN_EFFECT_NATS and ends[part][1] < 0)
    if harmful:
        falls = [-effects[part] for part in harmful]
        harm = format_range(min(falls), max(falls), 3)
        do, its = ("does", "its output at its") if len(harmful) == 1 else ("do", "one of them at its")
        said += (
            f". {listed(harmful)} {do} harm: with {its} mean the loss falls by {harm} nats from {clean:.3g}"
        )
    elif value <= MIN_EFFECT_NATS:
        largest = max(map(abs, effects.values()))
        is_little = all(max(map(abs, pair)) < MIN_EFFECT_NATS for pair in ends.values())
        said += (
            f": with any head, MLP or the direct path at its mean the loss changes by at most {largest:.3g} "
            f"nats. {'That' if is_little else 'Whether that'} is under {MIN_EFFECT_NATS}"
            f"{'' if is_little else ' these sequences do not tell'}"
        )
    return f"{said}."


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
    "largest_effect_components": "that part and those within its interval, and it within theirs",
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
