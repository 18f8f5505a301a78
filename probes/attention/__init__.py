"""Where does the model look: at the parent, at another lag, or nowhere in particular?"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xarray as xr

from mechmarkov.probing import Probe
from mechmarkov.probing.dataset import best_heads, head_name, head_names, last_model, score_with_null
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.score import Score
from mechmarkov.report.probe_figures import lag_heatmap, over_training

from . import measure
from .by_token import token_figure
from .claims import claims, headline
from .measure import UNITS
from .reading import best_lag, is_flat, parent_score

LAGS_SHOWN = 24


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The last model's parent score, best lag, concentration and the trap's order parameter, by name."""
    reader = head_name(best_heads(parent_score(last_model(data))))
    constant = "the attention logits of the parent head are constant: there is no variance to share"

    def largest(of_heads: Callable[[xr.Dataset], xr.DataArray]) -> Score:
        return score_with_null(lambda d: of_heads(d).max(("layer", "head")), data, null, "probability")

    def of_parent_head(name: str, reason: str | None = None) -> Score:
        def of_best(one: xr.Dataset) -> xr.DataArray:
            return one[name].isel(best_heads(parent_score(one)))

        score = score_with_null(of_best, data, null, UNITS[name], reason=reason)
        return replace(score, of=reader)

    parent = largest(parent_score)
    result = {
        "parent_score": parent,
        "parent_head": Score(reader, ""),
        "best_lag": Score(best_lag(data), "lag"),
        "effective_tokens": of_parent_head("effective_tokens"),
        "spread": largest(lambda d: d["spread"]),
        "position_share": of_parent_head("position_share", constant),
    }
    assert isinstance(parent.value, float)
    if isinstance(parent.null, tuple) and parent.value <= parent.null[2]:
        why = f"no head gives the parent more than fresh models give it (up to {parent.null[2]:.3g})"
        result["parent_head"] = Score(None, "", reason=why)
    if not data.attrs["one_parent"]:
        why = "the next state depends on no single token: there is no parent to read"
        result["parent_head"] = Score(None, "", reason=why)
    elif not data.attrs["is_linear"] and data.attrs["convolved"] > 1:
        why = f"a position holds a convolution of its last {data.attrs['convolved']} tokens: any may be read"
        result["parent_head"] = Score(None, "", reason=why)
    if is_flat(last_model(data)):
        why = "attention is flat: no head and no lag stands out"
        result |= {"parent_head": Score(None, "", reason=why), "best_lag": Score(None, "lag", reason=why)}
    return result


def figures(data: xr.Dataset) -> list[Figure]:
    """Figures of attention on the end of a sequence, the lag profile, and selection over training."""
    heads, last = head_names(data), last_model(data)
    lags = last["lag"].values[1 : LAGS_SHOWN + 1]
    back = int(data.attrs["source_lag"]) - 1 + int(data.attrs["parent_lag"])  # from a query to its parent
    ideal = np.tile(np.eye(last.sizes["query"], k=-back, dtype=bool), (len(heads), 1, 1))
    first, *others = (
        AttentionView(
            [str(token) for token in tokens],
            np.concatenate(pattern),
            heads,
            n_keys=last.sizes["key"],
            ideal=ideal,
        )
        for tokens, pattern in zip(last["example_token"].values, last["example"].values, strict=True)
    )
    profile = last["lag_mass"].sel(lag=lags).values.reshape(len(heads), -1)
    on_parent = parent_score(data).values.reshape(-1, len(heads))
    parent = "the parent" if data.attrs["one_parent"] else "the last known token: no single one is the parent"
    return [
        Figure(
            "Attention on the end of a sequence",
            "Rows attend, columns are attended to; the last row makes the last prediction. "
            f"An ideal head reads {parent}.",
            "attention",
            replace(first, others=tuple(others)),
        ),
        Figure(
            "Attention by lag",
            "Mean attention mass on each lag, counted from the predicted token: 1 is the last known one.",
            "plotly",
            lag_heatmap(profile, heads, lags, "mass"),
        ),
        *token_figure(last),
        *over_training(
            "Selection over training",
            f"Attention on {parent}.",
            data,
            dict(zip(heads, on_parent.T, strict=True)),
            "parent score",
            score="parent_score",
        ),
    ]


probe = Probe(
    name="attention",
    question="Where does the model look: at the parent, at another lag, or nowhere in particular?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorems 3.1 and 4.1; lags count from the predicted token",
    measure=measure.measure, scores=scores, claims=claims, headline=headline, figures=figures,
    formula="parent score = max over heads of E[A(t, parent of the predicted token)]; lag 1 is the parent, "
    "unless the next token depends on another one only\n"
    "spread = max over heads of E[max S − min S over the tokens], S the last prediction's attention; 0 in "
    "the trap (Shi & Cao, theorem 4.1)\n"
    "effective tokens = exp of the entropy of the parent head's attention",
    formulas={
        "parent_head": "the head with the parent score",
        "best_lag": "the lag with the largest mean attention of any head",
        "effective_tokens": "of the parent head: exp of the entropy of its attention",
        "position_share": "of the parent head: share of the variance of its last logits that key "
        "positions explain",
    },
    with_bos=True,
)  # fmt: skip
