"""What the data change: how many triggers, how frequent, the law of their outputs (figure 4)."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from mechmarkov.probes.storage import memories

import mechmarkov as mm
from experiments.claims import Claim, Measured
from experiments.where_is_the_bigram.births import fleet, learned
from experiments.where_is_the_bigram.shared import (
    BIETTI,
    HALF,
    Followed,
    band_of,
    command,
    first,
    follow,
    mean_of,
    over_seeds,
    when,
)
from mechmarkov.report.figures import lines

FREQUENT, FEW, RARE = "3 frequent triggers", "1 frequent trigger", "3 rare triggers"
ARMS: dict[str, dict[str, Any]] = {FEW: {"source__triggers": [0]}, RARE: {"source__triggers": [7, 8, 9]}}
LAST = 400  # the step at which the arms are compared; accuracies still rise there
QUICK_LAST = 250


def trained(quick: bool, seeds: int, **changes: Any) -> list[mm.Run]:
    """Runs of the same setting but for what is changed."""
    last = QUICK_LAST if quick else LAST
    return mm.train(learned(quick, steps=last, **changes), seeds=range(1 if quick else seeds))


@cache
def frequent(quick: bool) -> list[mm.Run]:
    """The first of the runs with three frequent triggers."""
    return fleet(quick)[: 1 if quick else 3]


def triggers(quick: bool) -> Measured:
    """Fewer triggers, and rare ones: how much later does the induction head come?"""
    last = QUICK_LAST if quick else LAST
    found: dict[str, list[Followed]] = {FREQUENT: [follow(run) for run in frequent(quick)]}
    found |= {name: [follow(run) for run in trained(quick, 3, **arm)] for name, arm in ARMS.items()}
    head = {
        name: [first(one.step, (one.accuracy > HALF) & (one.step <= last)) for one in runs]
        for name, runs in found.items()
    }
    ends = {
        name: [float(one.accuracy[one.step == last].item()) for one in runs] for name, runs in found.items()
    }
    claims = []
    for name, claim in (
        (FEW, "A smaller number of triggers slows in-context learning down"),
        (RARE, "Rare fixed triggers slow in-context learning down"),
    ):
        slower = max(ends[name]) < min(ends[FREQUENT]) and min(head[name]) > max(head[FREQUENT])
        mostly = np.median(head[name]) > np.median(head[FREQUENT])
        claims.append(
            Claim(
                "triggers",
                claim,
                f"{BIETTI}, figure 4 (left), section 5",
                "no number given",
                f"accuracy above one half at step {when(head[name])}, {over_seeds(ends[name])} at step "
                f"{last}; with {FREQUENT} at step {when(head[FREQUENT])}, {over_seeds(ends[FREQUENT])}",
                "holds" if slower else "holds with a correction" if mostly else "does not hold",
                f"{len(ends[name])} seeds, {name} of 12 states; holds if the ranges over seeds are "
                "apart, with a correction if the median comes later",
                command("triggers"),
            )
        )
    claims.append(
        Claim(
            "triggers",
            "Random triggers, drawn for every sequence, slow in-context learning down",
            f"{BIETTI}, figure 4 (left), section 5",
            "no number given",
            "not measured",
            "not testable here",
            "mm.TriggerBigram has fixed triggers: with random ones the exact predictor has to weigh which "
            "states are triggers, and has no closed form here",
            command("triggers"),
        )
    )
    step = found[FEW][0].step
    figure = lines(
        step,
        {name: mean_of(runs, "accuracy")[: len(step)] for name, runs in found.items()},
        bands={
            name: (low[: len(step)], high[: len(step)])
            for name, runs in found.items()
            for low, high in [band_of(runs, "accuracy")]
        },
        references={"chance, 1/12": 1 / 12},
        title="In-context accuracy by the triggers in the data",
        x_title="training step",
        y_title="in-context accuracy (probability)",
        markers=False,
    )
    return Measured(claims, {"triggers": figure})


def accuracy(run: mm.Run, outputs: Any) -> float:
    """In-context accuracy of the last model where outputs have another law."""
    source = run.source.model_copy(update={"outputs": outputs})
    found = memories.outputs(mm.Subject.of(replace(run, source=source), sequences=256))
    assert found is not None
    return float(found[-1])


def outputs(quick: bool) -> Measured:
    """Outputs by the bigram or uniform, in training and in the test."""
    base = fleet(quick)[0].source
    law = base.given[list(base.triggers)].mean(0)
    law[list(base.triggers)] = 0
    by_bigram = tuple(float(p) for p in law / law.sum())
    last = QUICK_LAST if quick else LAST
    narrow = trained(quick, 3, source__outputs=list(by_bigram))
    wide = [_until(run, last) for run in frequent(quick)]
    at = {
        (training, test): [accuracy(run, law) for run in runs]
        for training, runs in (("bigram", narrow), ("uniform", wide))
        for test, law in (("bigram", by_bigram), ("uniform", "uniform"))
    }
    rows = "; ".join(
        f"trained on {training}, tested on {test}: {over_seeds(values)}"
        for (training, test), values in at.items()
    )
    drop = [a - b for a, b in zip(at["bigram", "bigram"], at["bigram", "uniform"], strict=True)]
    wide_drop = [a - b for a, b in zip(at["uniform", "bigram"], at["uniform", "uniform"], strict=True)]
    worse = max(at["bigram", "uniform"]) < min(at["uniform", "uniform"])
    claim = Claim(
        "outputs",
        "Outputs by the bigram in training cost accuracy on other outputs; uniform ones do well on both",
        f"{BIETTI}, figure 4 (centre), section 5",
        "no number given",
        rows,
        "holds" if worse and min(drop) > max(map(abs, wide_drop)) else "does not hold",
        f"{len(wide)} seeds, step {last}, 256 fresh sequences, mean and range over seeds; outputs by the "
        "triggers' mean row of the bigram (paper: each trigger's own row)",
        command("outputs"),
    )
    return Measured([claim])


def _until(run: mm.Run, step: int) -> mm.Run:
    """The run as if it had ended there."""
    index = run.steps.tolist().index(step)
    states = {
        name: value[index : index + 1] if len(value) > 1 else value for name, value in run.states.items()
    }
    return replace(run, steps=run.steps[index : index + 1], states=states)
