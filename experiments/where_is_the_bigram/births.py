"""The memories of the induction head over training, and the bigram (figures 3 and 4)."""

from typing import Any

import numpy as np

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.harness import Measured, first_time, over_seeds, trained, when
from experiments.where_is_the_bigram.shared import (
    FEED_FORWARD,
    HALF,
    KEYS_1,
    KEYS_2,
    OUTPUT,
    Followed,
    band_of,
    follow,
    mean_of,
    only,
    recipe,
)
from mechmarkov.report.figures import lines

MORE = 0.05  # a recall that falls by less has not fallen: one of ten outputs is 0.1
SETTING = (
    "K=12, 3 triggers, context 32, d=64, batch 32, AdamW 0.005 on all keys, W_O of layer 1 and its MLP, from "
    "zero, on frozen random embeddings; loss at every position (paper: K=65, T=256, d=128, batch 512, SGD)"
)


def learned(quick: bool, **changes: Any) -> mm.Recipe:
    """The recipe with what the paper's simplified model learns; quick batches are smaller."""
    names = KEYS_1, KEYS_2, OUTPUT, *FEED_FORWARD
    return recipe("triggers", trainable=only(*names), data__batch=16 if quick else 32, **changes)


def fleet(quick: bool) -> list[mm.Run]:
    """The runs that several measurements look at."""
    return trained([learned(quick, steps=800)], range(2 if quick else 16))[0]


def births(quick: bool) -> Measured:
    """Which comes first: the bigram or the induction head, and of its memories, which?"""
    found = [follow(run) for run in fleet(quick)]
    n = len(found)
    bigram = [first_time(one.bigram < HALF * one.unigram, one.step, stays=3) for one in found]
    head = [first_time(one.accuracy > HALF, one.step, stays=3) for one in found]
    copy, match, back, early = (
        [first_time(getattr(one, name) > HALF, one.step, stays=3) for one in found]
        for name in ("copy", "match", "back", "early")
    )
    before = sum(b < h for b, h in zip(bigram, head, strict=True))
    in_order = sum(a < b < c for a, b, c in zip(copy, match, back, strict=True))
    top_down = sum(max(a, b) < c for a, b, c in zip(copy, match, back, strict=True))
    earlier = sum(a < b for a, b in zip(early, back, strict=True))
    how = f"{n} seeds, medians with ranges over seeds; {SETTING}"
    claims = [
        Finding(
            "bigrams_first",
            f"half of the bigram's nats at step {when(bigram)}, in-context accuracy above one half at step "
            f"{when(head)}; bigram first in {share(before, n)} seeds",
            holds(before == n and np.isfinite(head).all()),
            how,
            "trained at another",
            (before, n),
        ),
        Finding(
            "top_down",
            f"recall above one half at step {when(copy)}, {when(match)} and {when(back)}; in that order in "
            f"{share(in_order, n)} seeds, layer 1's two before layer 0's in {share(top_down, n)} seeds",
            holds(in_order == n),
            how + "; recalls over outputs, over triggers and over positions, as the task needs them",
            "trained at another",
            (in_order, n),
        ),
        Finding(
            "early_positions",
            f"recall above one half at step {when(early)} over the first quarter of the positions, "
            f"{when(back)} over all; earlier in {share(earlier, n)} seeds",
            holds(earlier == n, corrected=earlier > n / 2),
            how,
            "trained at another",
            (earlier, n),
        ),
        *_compete(found),
    ]
    return Measured(claims, _figures(found))


def _compete(found: list[Followed]) -> list[Finding]:
    """Do W_O of layer 1 and the MLP drift away from what they were first thought to store?"""
    n, accuracy = len(found), over_seeds([one.accuracy[-1] for one in found])
    copy = [(one.copy.max(), one.copy[-1]) for one in found]
    nats = [(one.feed_forward.min(), one.feed_forward[-1]) for one in found]
    fallen = sum(bool(best - last > MORE) for best, last in copy)
    risen = sum(bool(last > 1.1 * best) for best, last in nats)
    findings = []
    for case, hits, pairs, told, rule in (
        ("W_O of layer 1", fallen, copy, "copy recall falls", f"fallen by more than {MORE:g}"),
        ("the feed-forward layer", risen, nats, "KL of the MLP rises", "risen by more than a tenth"),
    ):
        best, last = ([pair[i] for pair in pairs] for i in (0, 1))
        findings.append(
            Finding(
                "compete",
                f"{share(hits, n)} seeds; {told} from {over_seeds(best)} to {over_seeds(last)} while "
                f"accuracy ends at {accuracy}",
                holds(hits == n),
                f"best kept step against the last: {rule}; {SETTING}",
                "trained at another",
                (hits, n),
                case=case,
            )
        )
    return findings


def _figures(found: list[Followed]) -> dict:
    step = found[0].step
    recalls = {
        "W_O of layer 1 (copy)": "copy",
        "keys of layer 1 (match)": "match",
        "keys of layer 0 (one back)": "back",
        "in-context accuracy": "accuracy",
    }
    nats = {"bigram, whole model": "bigram", "bigram, MLP of layer 1 alone": "feed_forward"}
    return {
        "recalls": lines(
            step,
            {label: mean_of(found, name) for label, name in recalls.items()},
            bands={label: band_of(found, name) for label, name in recalls.items()},
            references={"chance, 1/12": 1 / 12},
            title="The memories of an induction head form from the top down",
            x_title="training step",
            y_title="recall (probability)",
            markers=False,
        ),
        "bigram": lines(
            step,
            {label: mean_of(found, name) for label, name in nats.items()},
            bands={label: band_of(found, name) for label, name in nats.items()},
            references={"best without a token": float(np.mean([one.unigram for one in found]))},
            title="The bigram is learned first, and the MLP holds it at first",
            x_title="training step",
            y_title="KL from the global bigram (nats)",
            markers=False,
        ),
    }
