"""Does the residual stream carry the belief over hidden states, and does the prediction come from it?"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr
from jaxtyping import Bool

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.score import Score
from mechmarkov.sources import Hidden
from mechmarkov.utils.text import format_share

from . import figures
from .measure import DETERMINED, SAME_LAW, mean_kls, measure

CARRIED_R2 = 0.9  # from here on the stream carries the belief, if it also tells
CARRIED_BEYOND = 0.5  # of what predictions and tokens leave open
ROUNDING = 1e-6  # of an R²: streams that are no further apart are alike, and the earliest is named


def applies(subject: Subject) -> str | None:
    """Only where something is hidden behind the tokens."""
    if not isinstance(subject.source, Hidden):
        return "nothing is hidden behind the tokens of this source, so there is no belief to carry"
    if subject.objective.query:
        return "the prediction is made at a query token, where a belief is not moved"
    return None


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """R² of the best stream, what it tells beyond predictions, and the KLs of forced states."""
    last = last_model(data)
    stream = str(last["stream"].values[int(last["best"])])
    determined = (
        f"the law of the next token and the last tokens give the belief with an R² of "
        f"{float(last['baseline_r2']):.4f}: nothing is left that only a carried belief could tell"
    )
    clean, random, forced = mean_kls(last)
    share = partial(score_with_null, data=data, null=null, unit="share")
    sums = {}
    if "attention_r2" in data:
        sums = {
            "attention_r2": share(lambda d: d["attention_r2"].isel(layer=0)),
            "additive_r2": Score(float(last["additive_r2"]), "share"),
        }
    around = interval_at(data, "r2", stream=stream)
    return sums | {
        "belief_stream": Score(stream, ""),
        "belief_r2": share(lambda d: _best(d, "r2"), interval=around),
        "baseline_r2": Score(float(last["baseline_r2"]), "share"),
        "beyond_next_token": share(lambda d: _best(d, "beyond"), reason=determined),
        "clean_kl": Score(clean, "nats"),
        "random_kl": Score(random, "nats", clean, null_kind="the clean prediction"),
        "forced_kl": Score(forced, "nats", random, null_kind="moves as long in random directions"),
    }


def _best(data: xr.Dataset, name: str) -> xr.DataArray:
    """A quantity at each model's best stream."""
    return data[name].isel(stream=data["best"])


def _holding(last: xr.Dataset) -> tuple[Bool[np.ndarray, " stream"], Bool[np.ndarray, " stream"]]:
    """Which streams surely hold the belief beyond what predictions and tokens tell, and which may."""
    left = np.where(np.isnan(last["beyond"]), np.nan, 1 - float(last["baseline_r2"]))
    low, high = last["r2_low"].values, last["r2_high"].values
    surely = (low >= CARRIED_R2) & (1 - (1 - low) / left >= CARRIED_BEYOND)
    return surely, ~((high < CARRIED_R2) | (1 - (1 - high) / left < CARRIED_BEYOND))


def is_carried(last: xr.Dataset) -> bool | None:
    """Whether the stream that is named holds the belief, beyond what predictions and tokens tell.

    None if an interval holds its limit, or predictions and tokens leave nothing to tell. False only if no
    stream may hold it.
    """
    surely, may = _holding(last)
    return True if surely[_named(last)] else None if may.any() else False


def _named(last: xr.Dataset) -> int:
    """Of a model, the best stream if that surely holds the belief, else the one with the largest R²."""
    best, r2 = int(last["best"]), last["r2"].values
    return best if _holding(last)[0][best] else int(np.argmax(r2 >= r2.max() - ROUNDING))


def is_used(last: xr.Dataset) -> bool | None:
    """Whether predictions surely follow the belief when it is forced.

    None if sequences do not tell, or all hidden states have one law, so that there is nothing to follow.
    """
    if float(last["laws_apart"]) < SAME_LAW:
        return None
    _, low, high = (float(value) for value in last["short_of_used"])
    return None if low < 0 <= high else high < 0


def verdict(data: xr.Dataset) -> str:
    """Whether the belief is carried, whether that is more than predicting, and what forcing a state does."""
    last = last_model(data)
    named = _named(last)
    where = _where(last, named)
    r2, beyond = (float(last[name][named]) for name in ("r2", "beyond"))
    baseline = float(last["baseline_r2"])
    carries = {True: "carries", None: "may carry", False: "does not carry"}[is_carried(last)]
    states = f"{int(data.attrs['n_hidden'])} {data.attrs['hidden']}"
    said = [
        f"{where[0].upper()}{where[1:]} {carries} the belief over {states}: R² {r2:.3f} held out.",
        f"The law of the next token and the last tokens alone give {baseline:.3f}.",
    ]
    if baseline > DETERMINED:
        said.append("So a reading cannot tell a carried belief from a prediction.")
    else:
        said.append(f"Of what they leave open the stream tells {format_share(max(0.0, beyond), 1)}.")
    if "attention_r2" in last:
        first = last["attention_r2"].isel(layer=0)
        said.append(
            f"After the attention of block {int(first['layer'])} R² is {float(first):.3f}; "
            f"sums of one update a token reach {float(last['additive_r2']):.3f}."
        )
    return " ".join([*said, *_forced(last, named)])


def _where(last: xr.Dataset, stream: int) -> str:
    name = str(last["stream"].values[stream])
    return "the embedding" if name == "embed" else f"the stream after block {name[1:]}"


def _forced(last: xr.Dataset, named: int) -> Iterator[str]:
    """What forcing a state does, and at which stream."""
    best = int(last["best"])
    if best != named:
        at = f"{_where(last, best)} (R² {float(_best(last, 'r2')):.3f})"
        yield f"A state is forced in {at}, the earliest with at most about twice the least error."
    if best == last.sizes["stream"] - 1:
        yield "There a forced state moves the logits, and shows only that they are read from it."
    if str(last["stream"].values[best]) == "embed":
        yield "The embedding knows the current token alone: a forced state there is like a forced token."
    if float(last["laws_apart"]) < SAME_LAW:
        laws = f"The exact laws under different {last.attrs['hidden']}"
        yield f"{laws} are under {SAME_LAW:g} nats apart: there is nothing to follow."
        return
    clean, random, forced = mean_kls(last)
    follow = {True: "follow", None: "may follow", False: "do not follow"}[is_used(last)]
    yield (
        f"Predictions {follow} a forced state: KL to its exact law is {forced:.3g} nats, "
        f"clean {clean:.3g}, in random directions {random:.3g}."
    )


FORMULAS = {
    "belief_stream": "the earliest residual stream with 1 − R² ≤ 2 · the least + 0.001",
    "belief_r2": "R² at that stream",
    "baseline_r2": "R² of reading the law of the next token and the last 8 tokens",
    "beyond_next_token": "1 − error of the stream / error of that reading",
    "clean_kl": "E[KL(exact law ‖ prediction)]",
    "random_kl": "the same KL as forced, after a move as long in a random direction",
    "forced_kl": "E[KL(exact law of the forced state ‖ prediction)] after the forced state",
    "attention_r2": "R² at the output of attention",
    "additive_r2": "R² of a sum of one update for each token and distance",
}

probe = Probe(
    name="belief",
    question="Does the residual stream carry the belief over hidden states, and do predictions follow it?",
    cites="Shai et al. 2024 (arXiv 2405.15943); patterns of linear readings: Haufe et al. 2014, equation 6",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formulas=FORMULAS,
    formula="R² = 1 − E|belief − (W x + b)|² / E|belief − mean|², W and b fitted to other sequences\n"
    "beyond = 1 − error of the stream / error of reading the law of the next token and the last 8 tokens"
    "\n"
    "forced: x + (e_state − W x − b) · pattern, pattern = (Wᵀ Σ W)⁺ Wᵀ Σ, Σ the covariance of x",
)
