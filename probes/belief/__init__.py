"""Does the residual stream carry the belief over hidden states, and does the prediction come from it?"""

from collections.abc import Callable
from functools import partial

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import interval_at, last_model, score_with_null
from mechmarkov.probing.score import DIVERGENCE, Score
from mechmarkov.sources import Hidden

from . import figures
from .claims import claims, first_stream_of, headline
from .forcing import mean_kls
from .measure import measure

MAX_TOKENS = 40  # what it is compared with reads the last tokens and pairs: 1 920 numbers


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: something is hidden behind the tokens, and these are few."""
    if not isinstance(subject.source, Hidden):
        return "nothing is hidden behind the tokens of this source, so there is no belief to carry"
    tokens = subject.source.n_states
    if tokens > MAX_TOKENS:
        return f"the source has {tokens} tokens, and a belief is compared with pairs of at most {MAX_TOKENS}"
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
    return (
        sums
        | _of_parts(data, null, last)
        | {
            "belief_stream": Score(stream, ""),
            "belief_r2": share(lambda d: _best(d, "r2"), interval=around),
            "baseline_r2": Score(float(last["baseline_r2"]), "share"),
            "beyond_next_token": share(lambda d: _best(d, "beyond"), reason=determined),
            "clean_kl": Score(clean, "nats"),
            "random_kl": Score(random, "nats", clean, null_kind="the clean prediction"),
            "forced_kl": Score(forced, "nats", random, null_kind="moves as long in random directions"),
        }
    )


def _of_parts(data: xr.Dataset, null: xr.Dataset | None, last: xr.Dataset) -> dict[str, Score]:
    """Scores of each part of what is hidden, where and how well it is read, and of pairs: their overlap."""
    found: dict[str, Score] = {}
    if "part_r2" not in last:
        return found
    share = partial(score_with_null, data=data, null=null, unit="share")

    def at(name: str, **where: str) -> Callable[[xr.Dataset], xr.DataArray]:
        return lambda d: d[name].sel(where)

    for part in last["part"].values.tolist():
        stream, low, high = first_stream_of(last, part)
        name = part.replace(" ", "_")
        found[f"part_stream_{name}"] = Score(stream, "")
        found[f"part_r2_{name}"] = share(at("part_r2", part=part, stream=stream), interval=(low, high))
        if "part_forced_kl" in last:
            clean, random, forced = (
                float(last[f"part_{kind}_kl"].sel(part=part)) for kind in ("clean", "random", "forced")
            )
            kind = f"moves as long in random directions; without a move {clean:.3g}"
            found[f"part_forced_kl_{name}"] = Score(forced, "nats", random, null_kind=kind)
    for pair in last["pair"].values.tolist():
        name = pair.replace(" and ", "_").replace(" ", "_")
        found[f"part_overlap_{name}"] = share(at("part_overlap", pair=pair))
    return found


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
    ranges={"*_kl": DIVERGENCE},
    formulas={
        "belief_stream": "the earliest residual stream with 1 − R² ≤ 2 · the least + 0.001",
        "belief_r2": "R² at that stream",
        "baseline_r2": "R² of reading the law of the next token and the last 8 tokens",
        "beyond_next_token": "1 − error of the stream / error of that reading",
        "clean_kl": "E[KL(exact law ‖ prediction)]",
        "random_kl": "the same KL as forced, after a move as long in a random direction",
        "forced_kl": "E[KL(exact law of the forced state ‖ prediction)] after the forced state",
        "part_stream_*": "the earliest stream with that part's 1 − R² ≤ 2 · the least + 0.001",
        "part_r2_*": "R² of that part's belief at that stream",
        "part_forced_kl_*": "E[KL(exact law of the forced value ‖ prediction)] after that part is forced",
        "part_overlap_*": "mean squared cosine of the principal angles between the parts' subspaces",
        "attention_r2": "R² at the output of attention",
        "additive_r2": "R² of a sum of one update for each token and distance",
    },
    with_bos=True,
)  # fmt: skip
