"""How far is a program from the model in the worst case, over every sequence, and which sequence is worst?"""

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import MODEL, Claim, Condition
from mechmarkov.probing import Probe, Score
from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.score import DIVERGENCE

from . import figures, measure

CERTAIN = "no chance in it: for certain between the largest seen and the bound"
NO_BOUND = "the program is not certified: {why}"
INFINITE = "in some context the model may give a state that the program holds possible the probability 0"


def scores(data: xr.Dataset, _: xr.Dataset | None) -> dict[str, Score]:
    """The bounds of the last step, the largest seen, and how far the certificate got."""
    last = last_model(data)
    why = NO_BOUND.format(why=data.attrs["why"])

    def score(name: str, unit: str, reason: str, value: float | None = None) -> Score:
        value = float(last[name]) if value is None else value
        return (
            Score(value, unit, null_kind=CERTAIN) if np.isfinite(value) else Score(None, unit, reason=reason)
        )

    seen, bound = float(last["worst_kl_seen"]), float(last["worst_kl"])
    infinite = INFINITE if data.attrs["tier"] in ("1", "1b", "2") else why
    ratio = max(-float(last["log_ratio_low"]), float(last["log_ratio_high"]))
    worst = Score(bound, "nats", interval=(seen, bound), null_kind=CERTAIN)
    states = " ".join(str(data.attrs["labels"][state]) for state in last["witness"].values)
    return {
        "worst_kl": worst if np.isfinite(bound) else Score(None, "nats", reason=why),
        "worst_kl_seen": Score(seen, "nats"),
        "worst_log_ratio": score("log_ratio_high", "nats", infinite, ratio),
        "worst_logit_error": score("logit_error", "nats", infinite),
        "mean_kl_bound": Score(float(last["mean_kl_bound"]), "nats", reason=data.attrs["why_no_mean"] or why),
        "mean_kl": Score(float(last["mean_kl"]), "nats", reason=data.attrs["why_no_mean"] or why),
        "mean_reverse_kl_bound": Score(
            float(last["mean_reverse_kl_bound"]), "nats", reason=data.attrs["why_no_mean"] or infinite
        ),
        "tier": Score(data.attrs["tier"], ""),
        "certified_program": Score(data.attrs["program"], ""),
        "witness": Score(states, ""),
        "seconds": Score(float(last["seconds"]), "seconds"),
    }


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """The bound that holds for every sequence, or why there is none, and the worst that was seen."""
    worst, last = scores["worst_kl"], last_model(data)
    seen = float(last["worst_kl_seen"])
    premises = [
        Condition("certified program", value=float(data.attrs["numbers"]),
                  words=(data.attrs["program"], *map(str, np.atleast_1d(data.attrs["lags"])))),
        Condition("sequences", bool(data.attrs["is_exact"]), words=(data.attrs["sequences"],)),
        Condition("largest seen", value=seen, unit="nats"),
    ]  # fmt: skip
    if not isinstance(worst.value, float):
        why = Condition("no bound", words=(data.attrs["why"],))
        return [Claim((MODEL,), "is_bounded", (data.attrs["program"],), None, None, unit="nats",
                      status="open", evidence="law", because=(why, *premises))]  # fmt: skip
    ratio = scores["worst_log_ratio"].value
    if isinstance(ratio, float):
        premises.append(Condition("log ratio at most", value=ratio, unit="nats"))
    premises.append(Condition("every evaluation in float32", data.attrs["arithmetic"] == "float32"))
    return [Claim((MODEL,), "is_bounded", (data.attrs["program"],), worst.value, worst.interval,
                  unit="nats", evidence="law", because=tuple(premises))]  # fmt: skip


probe = Probe(
    name="certificate",
    question="How far is a small program from the model in the worst case, over every sequence?",
    cites="Fractional maximum: Dinkelbach 1967; mean: Maurer & Pontil 2009 (arXiv 0907.3740)",
    measure=measure.measure, scores=scores, claims=claims, figures=figures.draw,
    formula="a head's largest output in a direction f is the root of Σⱼ max_y wⱼ(y) (fⱼ(y) − λ) = 0, over "
    "allowed paths where transitions are forbidden\n"
    "log odds off by at most D: log-probabilities within D, KL ≤ its value at a corner of the odds' box",
    ranges={"worst_kl*": DIVERGENCE, "mean_*kl*": DIVERGENCE},
    formulas={
        "worst_kl": "max over all sequences of KL(program ‖ model), an upper bound",
        "worst_kl_seen": "the largest KL(program ‖ model) of any prediction that the model was seen to make",
        "worst_log_ratio": "max over all sequences and states of |log(model / program)|, an upper bound",
        "worst_logit_error": "max over all sequences and pairs of states of |error of log odds|, an upper "
        "bound",
        "mean_kl_bound": "E[KL(program ‖ model)] ≤ mean + √(2 var log(2/δ) / n) + 7 worst_kl log(2/δ) / "
        "3(n − 1)",
        "mean_kl": "mean KL(program ‖ model) over fresh sequences",
        "mean_reverse_kl_bound": "E[KL(model ‖ program)], bounded likewise with the largest log(model / "
        "program)",
        "tier": "1: support functions; 1b: what is behind attention relaxed; 2: several layers; norm: only "
        "a final norm; 0: no bound",
        "certified_program": "the smallest program within 0.001 nats in the worst case, else the nearest",
        "seconds": "the time that the search took",
        "witness": "the last states in front of the worst prediction that was seen",
    },
    has_null=lambda _: False,  # a fresh model is another model: its certificate says nothing of chance
    on_request=True,
)  # fmt: skip
