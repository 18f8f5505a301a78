"""Where does the model look: at the parent, at another lag, or nowhere in particular?"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.special import entr

from mechmarkov.probing import Probe
from mechmarkov.probing.dataset import (
    best_heads,
    head_name,
    head_names,
    last_model,
    score_with_null,
)
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.preconditions import token_in_words
from mechmarkov.probing.probe import always
from mechmarkov.probing.score import Score
from mechmarkov.report.probe_figures import lag_heatmap, over_training
from mechmarkov.utils.text import format_share, listed

from . import measure
from .by_token import said_by_tokens, token_figure
from .measure import UNITS

# Attention counts as flat if the most and the least attended token differ by less than this share of uniform.
FLAT_SHARE = 0.01

# Lag classes count as looked at together if they hold this share of the attention.
CLASS_SHARE = 0.95

LAGS_SHOWN = 24

# A head is named by what it looks at if that gets more than this share of the way from uniform attention to
# all of it.
MIN_ATTENTION = 0.5
# A lag that fewer predictions reach is not one that a head looks at.
MIN_REACH = 0.25
MOST_REACH = 0.9  # above, nearly all predictions do


def _is_looked_at(mass: float, uniform: float) -> bool:
    """Whether a head that gives something so much attention is named by it."""
    return mass > MIN_ATTENTION + (1 - MIN_ATTENTION) * uniform


def _parent_score(data: xr.Dataset) -> xr.DataArray:
    """Each head's attention on the parent, [axis, layer, head]: 0 where no prediction reaches that far."""
    return _on_parent(data, "lag_mass")


def _on_parent(data: xr.Dataset, name: str) -> xr.DataArray:
    lag = int(data.attrs["source_lag"])
    return data[name].reindex(lag=[lag], fill_value=0.0).isel(lag=0, drop=True)


def _best_lag(data: xr.Dataset) -> int:
    """For the last model, the lag with the most attention of any head (the query token's own apart).

    The attention is that over all predictions, those that do not reach so far too. A head that always looks
    at the first token has all its attention at lag N in the one prediction that reaches that far: that is not
    a lag it looks at.
    """
    over_all = (data["lag_mass"] * data["reach"]).sel(lag=slice(1, None))
    return int(over_all.max(("layer", "head")).idxmax("lag")[-1])


def _real_tokens(data: xr.Dataset) -> slice:
    """The keys the last prediction may look at, a query token apart."""
    return slice(int(data.attrs["first_seen"]), int(data.attrs["real_tokens"]))


def _uniform(last: xr.Dataset) -> float:
    """A real token's mean share of the last prediction's attention, for one model."""
    return float(last["last_mass"].isel(key=_real_tokens(last)).mean())


def _is_flat(last: xr.Dataset) -> bool:
    """Whether no head of one model tells real tokens apart: not in the last prediction, nor over all."""
    if float(last["spread"].max()) >= FLAT_SHARE * _uniform(last):
        return False
    if last.attrs["predictions"] == 1:
        return True
    mass, uniform = (last[name].sel(lag=slice(1, None)) for name in ("lag_mass", "uniform_mass"))
    return not bool((abs(mass - uniform) > FLAT_SHARE * uniform).any())


def _is_flat_everywhere(last: xr.Dataset) -> bool:
    """Whether one model's attention goes to as many tokens as it can, in every prediction of many."""
    tokens, uniform = last["effective_tokens"], last.attrs["uniform_tokens"]
    return last.attrs["predictions"] > 1 and bool(tokens.min() >= (1 - FLAT_SHARE**2) * uniform)


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Parent score, best lag, concentration and the trap's order parameter."""
    reader = head_name(best_heads(_parent_score(last_model(data))))
    constant = "the attention logits of the parent head are constant: there is no variance to share"

    def largest(of_heads: Callable[[xr.Dataset], xr.DataArray]) -> Score:
        return score_with_null(lambda d: of_heads(d).max(("layer", "head")), data, null, "probability")

    def of_parent_head(name: str, reason: str | None = None) -> Score:
        def of_best(one: xr.Dataset) -> xr.DataArray:
            return one[name].isel(best_heads(_parent_score(one)))

        score = score_with_null(of_best, data, null, UNITS[name], reason=reason)
        return replace(score, of=reader)

    parent = largest(_parent_score)
    result = {
        "parent_score": parent,
        "parent_head": Score(reader, ""),
        "best_lag": Score(_best_lag(data), "lag"),
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
    if _is_flat(last_model(data)):
        why = "attention is flat: no head and no lag stands out"
        result |= {"parent_head": Score(None, "", reason=why), "best_lag": Score(None, "lag", reason=why)}
    return result


def verdict(data: xr.Dataset) -> str:
    """Where the attention is, in one sentence; of a state space, in another, what its attention is."""
    if not data.attrs["is_linear"]:
        tokens, data = int(data.attrs["convolved"]), data.assign_attrs(is_linear=1)
        if tokens == 1:
            return f"{verdict(data)} Attention is here the share of a token's effective weight, signs apart."
        # What stands at a position need not be its token, so that none is the parent's.
        return (
            f"{verdict(data.assign_attrs(one_parent=0, at='position'))} Attention is here the share of a "
            f"position's effective weight, signs apart. A position holds a convolution of its last {tokens} "
            "tokens."
        )
    last = last_model(data)
    parent_head = best_heads(_parent_score(last))
    spread = float(last["spread"].max())
    n = _real_tokens(data).stop - _real_tokens(data).start
    if n == 1:
        if not data.attrs["parent_lag"]:
            return "There is one token to attend to, so attention says nothing."
        share = _shares(last["last_mass"].isel(key=_real_tokens(last)))
        return f"There is one known token; it gets {share} of the attention, the query token itself the rest."
    at_query = _at_query(last)
    if _is_flat(last):
        differ = f", the most and the least attended differ by {spread:.1e}" if spread else ""
        where = "Attention is" if _is_flat_everywhere(last) else "In the last prediction attention is"
        flat = (
            f"{where} {'' if spread else 'exactly '}flat: each of the {n} real tokens gets "
            f"{_uniform(last):.4f}{differ}; no head selects a {data.attrs.get('at', 'parent')}."
        )
        return " ".join([*at_query, flat])
    said = _at_lags(last, n) or _at_first(last) or _lag_classes(last, n) or said_by_tokens(last, _heads(last))
    if said := at_query + said:
        return " ".join(said)
    lag = _best_lag(data)
    mass = last["lag_mass"].sel(lag=lag)
    head = best_heads(mass)
    words = _lag_in_words(last, lag)
    of_parent = float(_parent_score(last).isel(parent_head))
    parent = "The parent" if last.attrs["one_parent"] else f"The last {data.attrs.get('at', 'state')}"
    return (
        f"No head settles on one lag. {parent} gets at most {of_parent:.3f} ({head_name(parent_head)}), "
        f"where uniform attention gives {float(_on_parent(last, 'uniform_mass')):.3f}. "
        f"Most attended is {words.rstrip(',')}, with {float(mass.max()):.3f} of {head_name(head)} "
        f"({_tokens(last.isel(head))} of {n})."
    )


def _lag_in_words(last: xr.Dataset, lag: int) -> str:
    source = int(last.attrs["source_lag"]) if last.attrs["one_parent"] else 0
    said = token_in_words(lag, int(last.attrs["parent_lag"]), source)
    return said.replace("token", last.attrs.get("at", "token"))


def _at_lags(last: xr.Dataset, n: int) -> list[str]:
    """A sentence for each head that looks at one lag."""
    over_all = (last["lag_mass"] * last["reach"]).sel(lag=slice(1, None))
    said = []
    for head in _heads(last):
        lag = int(over_all.isel(head).idxmax("lag"))
        mass, reach = float(last["lag_mass"].isel(head).sel(lag=lag)), float(last["reach"].sel(lag=lag))
        if reach < MIN_REACH or not _is_looked_at(mass, float(last["uniform_mass"].sel(lag=lag))):
            continue
        words = _lag_in_words(last, lag)
        if last.attrs["one_parent"] and lag != last.attrs["source_lag"]:
            words += ", not at the parent,"
        if reach < MOST_REACH:
            words += f" in the {format_share(reach)} of predictions that reach so far,"
        said.append(
            f"{head_name(head)} looks at {words} with {format_share(mass, 1)} of its attention "
            f"({_tokens(last.isel(head))} of {n})."
        )
    return said


def _at_query(last: xr.Dataset) -> list[str]:
    """A sentence for each head that looks at the query token, where there is one."""
    if not last.attrs["parent_lag"]:
        return []
    own, what = last["lag_mass"].sel(lag=0), "the query token itself"
    return [
        f"{head_name(head)} looks at {what} with {format_share(float(mass), 1)} of its attention."
        for head in _heads(last)
        if _is_looked_at(float(mass := own.isel(head)), float(last["uniform_mass"].sel(lag=0)))
    ]


def _shares(mass: xr.DataArray) -> str:
    """The least and the largest share of any head, one share where these are alike."""
    ends = [format_share(float(end), 1) for end in (mass.min(), mass.max())]
    return " to ".join(dict.fromkeys(ends))


def _at_first(last: xr.Dataset) -> list[str]:
    """A sentence for each head that looks at the first token."""
    return [
        f"{head_name(head)} looks at the first token with {format_share(float(mass), 1)} of its attention."
        for head in _heads(last)
        if _is_looked_at(float(mass := last["first_token"].isel(head)), last.attrs["uniform_first"])
    ]


def _heads(last: xr.Dataset) -> list[dict[str, int]]:
    """The heads that have attention weights."""
    found = last["lag_mass"].notnull().any("lag").transpose("layer", "head").values
    return [{"layer": int(layer), "head": int(head)} for layer, head in np.argwhere(found)]


def _tokens(head: xr.Dataset) -> str:
    tokens = f"{float(head['effective_tokens']):.3g}"
    return f"{tokens} effective token{'s' * (tokens != '1')}"


def _lag_classes(last: xr.Dataset, n: int) -> list[str]:
    """A sentence on the first head that looks at at most half of the lag classes, and all over these."""
    n_classes = last.sizes.get("modulo", 0)
    for head in _heads(last) if n_classes else ():
        one = last.isel(head)
        order = np.argsort(-one["lag_class"].values, kind="stable")
        share = one["lag_class"].values[order].cumsum()
        chosen = order[: int((share < CLASS_SHARE).sum()) + 1]
        looked_at = np.exp(entr(one["last_mass"].values).sum())
        if len(chosen) > n_classes / 2 or looked_at < len(chosen) * n / n_classes / 2:
            continue
        classes = [str(int(m)) for m in sorted(one["modulo"].values[chosen])]
        mass = format_share(float(share[len(chosen) - 1]), 1)
        return [
            f"{head_name(head)} attends by lag class: {mass} of its attention is on lags "
            f"that are {listed(classes)} modulo {n_classes}. They are {_tokens(one)} of {n}."
        ]
    return []


def figures(data: xr.Dataset) -> list[Figure]:
    """Attention on the end of a sequence, the lag profile, and selection over training."""
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
    on_parent = _parent_score(data).values.reshape(-1, len(heads))
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


FORMULAS = {
    "parent_head": "the head with the parent score",
    "best_lag": "the lag with the largest mean attention of any head",
    "effective_tokens": "of the parent head: exp of the entropy of its attention",
    "position_share": "of the parent head: share of the variance of its last logits that key "
    "positions explain",
}

probe = Probe(
    name="attention",
    question="Where does the model look: at the parent, at another lag, or nowhere in particular?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorems 3.1 and 4.1; lags count from the predicted token",
    applies=always,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formulas=FORMULAS,
    formula="parent score = max over heads of E[A(t, parent of the predicted token)]; lag 1 is the parent, "
    "unless the next token depends on another one alone\n"
    "spread = max over heads of E[max S − min S over the tokens], S the last prediction's attention; 0 in "
    "the trap (Shi & Cao, theorem 4.1)\n"
    "effective tokens = exp of the entropy of the parent head's attention",
)
