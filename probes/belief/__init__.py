"""Does the residual stream carry the belief over hidden states, and does the prediction come from it?"""

from functools import partial

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.score import Score
from mechmarkov.sources import Hidden

from . import figures
from .claims import claims, headline
from .measure import mean_kls, measure


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: something must be hidden behind the tokens."""
    if not isinstance(subject.source, Hidden):
        return "nothing is hidden behind the tokens of this source, so there is no belief to carry"
    if subject.objective.query:
        return "the prediction is made at a query token, where a belief is not moved"
    return None


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The R² of the best stream, what it tells beyond predictions, and the KLs of forced states, by name."""
    last = last_model(data)
    stream = str(last["stream"].values[int(last["best"])])
    determined = (
        f"the law of the next token and the last tokens give the belief "
        f"(R² {float(last['baseline_r2']):.4f}): nothing else is left to tell"
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


probe = Probe(
    name="belief",
    question="Does the residual stream carry the belief over hidden states, and do predictions follow it?",
    cites="Shai et al. 2024 (arXiv 2405.15943); patterns of linear readings: Haufe et al. 2014, equation 6",
    applies=applies, measure=measure, scores=scores, claims=claims, headline=headline, figures=figures.draw,
    formula="R² = 1 − E|belief − (W x + b)|² / E|belief − mean|², W and b fitted to other sequences\n"
    "beyond = 1 − error of the stream / error of reading the law of the next token and the last 8 tokens"
    "\n"
    "forced: x + (e_state − W x − b) · pattern, pattern = (Wᵀ Σ W)⁺ Wᵀ Σ, Σ the covariance of x",
    formulas={
        "belief_stream": "the earliest residual stream with 1 − R² ≤ 2 · the least + 0.001",
        "belief_r2": "R² at that stream",
        "baseline_r2": "R² of reading the law of the next token and the last 8 tokens",
        "beyond_next_token": "1 − error of the stream / error of that reading",
        "clean_kl": "E[KL(exact law ‖ prediction)]",
        "random_kl": "the same KL as forced, after a move as long in a random direction",
        "forced_kl": "E[KL(exact law of the forced state ‖ prediction)] after the forced state",
        "attention_r2": "R² at the output of attention",
        "additive_r2": "R² of a sum of one update for each token and distance",
    },
    with_bos=True,
)  # fmt: skip
