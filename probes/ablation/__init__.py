"""What the model needs: which component, which path, which token, by taking it away."""

from typing import Any

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import listed

from . import figures, measure
from .claims import ORDER_LOSS, claims, headline, swap_followed
from .components import ranked_effects
from .needed import MIN_EFFECT_NATS, largest_effect, matters, tied


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: some edits are of attention weights, so all heads need them."""
    blocks: list[Any] = list(subject.decoder.blocks)
    without = [str(layer) for layer, block in enumerate(blocks) if not block.attn.has_attention_weights]
    if len(without) == len(blocks):
        return "no layer has attention weights"
    return f"layer {listed(without)} has no attention weights" if without else None


def has_null(subject: Subject) -> bool:
    """Returns whether fresh models say what chance gives: not where random scores are read as impossible."""
    # Scores below zero are read as impossible, at 28 nats each: their effects tell nothing.
    return subject.objective.kind == "cross_entropy"


def _largest_of(data: xr.Dataset, name: str, dim: str, null: str) -> Score:
    """The largest of the last model, with its interval."""
    values = last_model(data)[name]
    if not values.size:
        return Score(None, "nats", reason=f"no {dim} to ablate")
    label = values[dim].values[int(values.argmax(dim))]
    return Score(float(values.max()), "nats", 0.0, interval_at(data, name, **{dim: label}), null)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The component the loss needs most, and what the prediction owes to the parent and to the rest."""
    name, value, interval = largest_effect(data)
    largest = score_with_null(
        lambda d: ranked_effects(d).max("component"), data, null, "nats", interval=interval
    )
    if data.attrs["objective"] != "cross_entropy":  # and so without null models: see `has_null`
        largest = Score(value, "nats", 0.0, interval, "a part without information")
    why = f"no head, MLP or direct path is worth {MIN_EFFECT_NATS} nats, or the largest effect is not sure"
    is_needed, last = matters(value, interval), last_model(data)
    together = [name, *tied(data, name, value, interval)]
    order = float(last["shuffle_effect"].sel(ORDER_LOSS))
    around = interval_at(data, "shuffle_effect", **ORDER_LOSS)
    return {
        "largest_effect": largest,
        "largest_effect_component": Score(name, "") if is_needed else Score(None, "", reason=why),
        "largest_effect_components": Score(" + ".join(together), "")
        if is_needed
        else Score(None, "", reason=why),
        "self_repair": _largest_of(data, "self_repair", "part", "parts that no later part reads"),
        "redundancy": _largest_of(data, "redundancy", "pair", "pairs whose effects add up"),
        "history_effect": Score(order, "nats", 0.0, around, "a model of only the parent"),
        "parent_swap_followed": swap_followed(data),
    }


probe = Probe(
    name="ablation",
    question="Which part, which path and which token does the prediction need?",
    cites=(
        "Path patching: Wang et al. 2022 (arXiv 2211.00593); context shuffles: Park et al. 2024 "
        "(arXiv 2412.01003)"
    ),
    applies=applies, measure=measure.measure, scores=scores, claims=claims, headline=headline,
    figures=figures.draw,
    formula="effect of a part = E[loss with its output replaced] − E[loss], on the same sequences (nats)\n"
    "replaced by: zero · its mean at each position · its output on another sequence\n"
    "largest effect = the largest over heads, MLPs and the direct path, at their mean",
    formulas={
        "largest_effect_component": "the part with the largest effect",
        "largest_effect_components": "that part and those within its interval, and it within theirs",
        "self_repair": "max over parts of (effect of only its direct path − effect of the part)",
        "redundancy": "max over pairs of (effect of both − effect of one − effect of the other)",
        "history_effect": "E[loss with all but the last token shuffled] − E[loss], at the last prediction",
        "parent_swap_followed": "share of predictions that another parent, put in its place, moves from "
        "the true "
        "parent's law to its own, and nearer to its own",
    },
    has_null=has_null,
    with_bos=True,
)  # fmt: skip
