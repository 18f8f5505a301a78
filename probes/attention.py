"""Where does the model look: at the parent, at another lag, or nowhere in particular?"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import numpy as np
import xarray as xr
from scipy.special import entr

from mechmarkov.models.components import head_name
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.preconditions import parent_lag
from mechmarkov.probing.recording import ATTENTION
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import heatmap, lines

# Attention counts as flat if the most and the least attended token differ by less than this share of uniform.
FLAT = 0.01

# Lag classes count as looked at together if they hold this share of the attention.
CLASS = 0.95

# A whole pattern of 97 tokens is unreadable; the end of the sequence is where the prediction is made.
EXAMPLE_POSITIONS = 24
EXAMPLES = 4  # sequences, for a reader to choose from
EXAMPLES_OF_ALL = 256  # over all models: fewer sequences of a long trajectory


def applies(subject: Subject) -> str | None:
    """Always: every model here has attention."""
    del subject
    return None


def measure(subject: Subject) -> xr.Dataset:
    """Lag profiles and the trap's order parameters of every head.

    Returns:
        `lag_mass` [axis, layer, head, lag] (probability; lag 1 is the parent, lag 0 a query token itself);
        `previous_token`, `selector`, `spread`, `position_share`, `token_share` (probability),
        `effective_tokens` (tokens), `token_mean_variance` [axis, layer, head];
        `reach` [lag]: the share of predictions that have a token at that lag;
        `last_mass` [axis, layer, head, key]: mean attention of the last prediction;
        `lag_class` [axis, layer, head, modulo] (probability, circle sources): mean attention of the last
        prediction on lags 1, 2, …, K modulo K, which a deterministic walk cannot tell apart within a class;
        `example` [axis, sequence, layer, head, query, key_shown] (probability): attention on the end of the
        first sequences, whose states are `example_token` [sequence, key_shown].
    """
    stats = subject.recorded(ATTENTION)
    axis, batch = subject.axis, subject.batch
    per_head = (axis, "layer", "head")
    example, labels = _examples(subject)
    data = xr.Dataset(
        {
            "lag_mass": ((*per_head, "lag"), stats.lag_mass, {"unit": "probability"}),
            "reach": ("lag", batch.reach.numpy(), {"unit": "share"}),
            "last_mass": ((*per_head, "key"), stats.last_mass, {"unit": "probability"}),
            "previous_token": (per_head, stats.previous_token, {"unit": "probability"}),
            "selector": (per_head, stats.selector, {"unit": "probability"}),
            "effective_tokens": (per_head, stats.effective_tokens, {"unit": "tokens"}),
            "spread": (per_head, stats.spread, {"unit": "probability"}),
            "position_share": (per_head, stats.position_share, {"unit": "share of variance"}),
            "token_share": (per_head, stats.token_share, {"unit": "share of variance"}),
            "token_mean_variance": (per_head, stats.token_mean_variance, {"unit": "probability squared"}),
            "example": (
                (axis, "sequence", "layer", "head", "query", "key_shown"),
                example,
                {"unit": "probability"},
            ),
            "example_token": (("sequence", "key_shown"), labels),
        },
        coords={
            axis: subject.coordinates,
            "lag": np.arange(stats.lag_mass.shape[-1]),
            "key": np.arange(stats.last_mass.shape[-1]),
        },
        attrs={
            "source": subject.source.title(),
            "first_seen": batch.seen(subject.config.window).start,
            "real_tokens": batch.history.shape[1],
            "parent_lag": batch.parent_lag,
            "source_lag": parent_lag(subject.source),
            "uniform_parent": _uniform_parent(batch, subject.config.window),
        },
    )
    if subject.source.kind == "circle":
        n, real = subject.source.n_states, batch.history.shape[1]
        lag = real - np.arange(real)
        classes = [stats.last_mass[..., :real][..., lag % n == m % n].sum(-1) for m in range(1, n + 1)]
        data["lag_class"] = ((*per_head, "modulo"), np.stack(classes, axis=-1), {"unit": "probability"})
        data = data.assign_coords(modulo=np.arange(1, n + 1))
    return data


def _examples(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """Patterns [axis, sequence, layer, head, query, key] on the end of some sequences, and their states."""
    members = range(len(subject.decoder))
    tokens = subject.batch.tokens[: max(1, min(EXAMPLES, EXAMPLES_OF_ALL // len(members)))]
    shown = slice(max(0, tokens.shape[1] - EXAMPLE_POSITIONS), None)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(subject.config.n_layers)]
    found = []
    for member in members:  # one at a time: whole patterns of many models would fill the memory
        _, cache = subject.decoder[member].run_with_cache(tokens, names_filter=names)
        found.append(np.stack([cache[name][..., shown, shown].detach().numpy() for name in names], axis=1))
    labels = np.array([*subject.source.labels, "query"], dtype=object)
    return np.stack(found), labels[tokens[:, shown].numpy()]


def _uniform_parent(batch: Batch, window: int | None) -> float:
    """What uniform attention gives the parent, mean over predictions."""
    if window is not None and window < batch.parent_lag:
        return 0.0
    seen = batch.read + 1 if window is None else (batch.read + 1).clamp_max(window + 1)
    return float((1 / seen.double()).mean())


def _parent_head(data: xr.Dataset) -> dict[Hashable, xr.DataArray]:
    """For each model, the head with the most attention on the parent, as an indexer."""
    return data["lag_mass"].sel(lag=1).argmax(("layer", "head"))


def _lag_share(data: xr.Dataset) -> xr.DataArray:
    """Attention on each lag but the query token's own, over all predictions, far lags' blind ones too.

    A head that always looks at the first token has all its attention at lag N in the one prediction that
    reaches that far: that is no lag it looks at.
    """
    return (data["lag_mass"] * data["reach"]).sel(lag=slice(1, None))


def _best_lag(data: xr.Dataset) -> xr.DataArray:
    """For each model, the lag with the most attention of any head (the query token's own apart)."""
    return _lag_share(data).max(("layer", "head")).idxmax("lag")


def _real_tokens(data: xr.Dataset) -> slice:
    """The keys the last prediction may look at, a query token apart."""
    return slice(int(data.attrs["first_seen"]), int(data.attrs["real_tokens"]))


def _flat(now: xr.Dataset) -> bool:
    """Whether no head tells one real token from another, for one model."""
    uniform = float(now["last_mass"].isel(key=_real_tokens(now)).mean())
    return float(now["spread"].max()) < FLAT * uniform


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Parent score, best lag, concentration and the trap's order parameter."""
    head = _parent_head(data)
    index = {name: int(where[-1]) for name, where in head.items()}
    result = {
        "parent_score": _score(
            data, null, lambda d: d["lag_mass"].sel(lag=1).max(("layer", "head")), "probability"
        ),
        "parent_head": Score(_name(index), ""),
        "best_lag": Score(int(_best_lag(data)[-1]), "lag"),
        "effective_tokens": _score(
            data, null, lambda d: d["effective_tokens"].isel(_parent_head(d)), "tokens"
        ),
        "spread": _score(data, null, lambda d: d["spread"].max(("layer", "head")), "probability"),
    }
    parent = result["parent_score"]
    assert isinstance(parent.value, float)
    if isinstance(parent.null, tuple) and parent.value <= parent.null[2]:
        why = f"no head gives the parent more than fresh models give it (up to {parent.null[2]:.3g})"
        result["parent_head"] = Score(None, "", reason=why)
    if _flat(data.isel({data["lag_mass"].dims[0]: -1})):
        why = "attention is flat: no head and no lag stands out"
        result |= {"parent_head": Score(None, "", reason=why), "best_lag": Score(None, "lag", reason=why)}
    share = float(data["position_share"].isel(head)[-1])
    if np.isfinite(share):
        result["position_share"] = _score(
            data, null, lambda d: d["position_share"].isel(_parent_head(d)), "share of variance"
        )
    else:
        why = "the attention logits of the parent head are constant: there is no variance to share"
        result["position_share"] = Score(None, "share of variance", reason=why)
    return result


def _score(
    data: xr.Dataset, null: xr.Dataset | None, of: Callable[[xr.Dataset], xr.DataArray], unit: str
) -> Score:
    band = None if null is None else null_band(of(null))
    return Score(float(of(data)[-1]), unit, band, null_kind=NULL_KIND)


def verdict(data: xr.Dataset) -> str:
    """Where the attention is, in one sentence."""
    last = {name: int(where[-1]) for name, where in _parent_head(data).items()}
    now = data.isel({data["lag_mass"].dims[0]: -1})
    here = now.isel(last)
    parent, spread = float(here["lag_mass"].sel(lag=1)), float(now["spread"].max())
    n = _real_tokens(data).stop - _real_tokens(data).start
    if n == 1:
        return "There is one token to attend to, so attention says nothing."
    if _flat(now):
        uniform = float(now["last_mass"].isel(key=_real_tokens(data)).mean())
        differ = f", the most and the least attended differ by {spread:.1e}" if spread else ""
        return (
            f"Attention is {'' if spread else 'exactly '}flat: each of the {n} real tokens gets "
            f"{uniform:.4f}{differ}; no head selects a parent."
        )
    if parent > 0.5:
        return (
            f"{_name(last)} looks at the parent of the predicted token with {parent:.4f} of its attention "
            f"({_tokens(here)} of {n})."
        )
    lag = int(_best_lag(data)[-1])
    mass = now["lag_mass"].sel(lag=lag)
    where = {name: int(at) for name, at in mass.argmax(("layer", "head")).items()}
    if lag != 1 and float(mass.max()) > 0.5:
        whose = "where this source has the parent" if lag == data.attrs["source_lag"] else "not at the parent"
        return f"{_name(where)} looks at lag {lag}, {whose}, with {float(mass.max()):.4f} of its attention."
    if "lag_class" in now:
        classes = _classes(now, n)
        if classes is not None:
            return classes
    chance = f"{float(data.attrs['uniform_parent']):.3f}"
    return (
        f"No head settles on one lag: the parent gets at most {parent:.3f} ({_name(last)}; of uniform "
        f"attention {chance}), and the most "
        f"attended lag is {lag} with {float(mass.max()):.3f} ({_name(where)}, {_tokens(now.isel(where))} of "
        f"{n})."
    )


def _name(head: Mapping[Hashable, int]) -> str:
    return head_name(head["layer"], head["head"])


def _tokens(head: xr.Dataset) -> str:
    tokens = f"{float(head['effective_tokens']):.3g}"
    return f"{tokens} effective token{'s' * (tokens != '1')}"


def _classes(now: xr.Dataset, n: int) -> str | None:
    """A sentence if a head looks at at most half of the lag classes, and all over these."""
    n_classes = now.sizes["modulo"]
    for layer, head in np.ndindex(now.sizes["layer"], now.sizes["head"]):
        here = now.isel(layer=layer, head=head)
        order = np.argsort(-here["lag_class"].values, kind="stable")
        share = here["lag_class"].values[order].cumsum()
        chosen = order[: int((share < CLASS).sum()) + 1]
        looked_at = np.exp(entr(here["last_mass"].values).sum())
        if len(chosen) > n_classes / 2 or looked_at < len(chosen) * n / n_classes / 2:
            continue
        classes = [str(int(m)) for m in sorted(here["modulo"].values[chosen])]
        said = " and ".join([", ".join(classes[:-1]), classes[-1]] if len(classes) > 1 else classes)
        return (
            f"{head_name(layer, head)} attends by lag class: {share[len(chosen) - 1]:.3f} of its attention "
            f"is on lags that are {said} modulo {n_classes}, spread over {_tokens(here)} of {n}."
        )
    return None


def figures(data: xr.Dataset) -> list[Figure]:
    """Attention on the end of a sequence, the lag profile, and selection over training."""
    heads = [head_name(*head) for head in np.ndindex(data.sizes["layer"], data.sizes["head"])]
    now = data.isel({data["lag_mass"].dims[0]: -1})
    views = [
        AttentionView(
            [str(token) for token in now["example_token"].values[i]],
            now["example"].values[i].reshape(len(heads), *data["example"].shape[-2:]),
            heads,
        )
        for i in range(data.sizes["sequence"])
    ]
    found = [
        Figure(
            "Attention on the end of a sequence",
            "Rows attend, columns are attended to; the last row makes the last prediction.",
            "attention",
            replace(views[0], others=tuple(views[1:])),
        )
    ]
    lags = now["lag"].values[1 : min(data.sizes["lag"], 25)]
    profile = now["lag_mass"].sel(lag=lags).values.reshape(len(heads), -1)
    found.append(
        Figure(
            "Attention by lag",
            "Mean attention mass on each lag, counted from the predicted token: 1 is its parent.",
            "plotly",
            heatmap(
                profile,
                heads,
                [str(lag) for lag in lags],
                row_title="head",
                column_title="lag",
                value_title="mass",
                limits=(0, 1),
            ),
        )
    )
    if "step" in data.dims and data.sizes["step"] > 1:
        series = {
            name: data["lag_mass"].sel(lag=1).values.reshape(-1, len(heads))[:, i]
            for i, name in enumerate(heads)
        }
        found.append(
            Figure(
                "Selection over training",
                "Attention on the parent.",
                "plotly",
                lines(data["step"].values.astype(float), series, x_title="step", y_title="parent score"),
            )
        )
    return found


probe = Probe(
    name="attention",
    question="Where does the model look: at the parent, at another lag, or nowhere in particular?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorems 3.1 and 4.1; lags count from the predicted token",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="parent score = max over heads of E[A(t, parent of the predicted token)]; lag 1 is the parent\n"
    "spread = max S − min S over the tokens, S the mean attention of the last prediction; 0 in "
    "the trap (Shi & Cao, theorem 4.1)\n"
    "effective tokens = exp of the entropy of the attention",
)
