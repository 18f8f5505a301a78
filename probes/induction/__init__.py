"""Is there an induction circuit: which previous-token head feeds which induction head, carrying what?"""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from mechmarkov.models.components import head_index, head_name
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars, heatmap, lines

from .matches import MAX_MATCHED
from .measure import CAUSAL, headline, measure
from .recorded import INDUCTION

# A path carries a head's induction if, once it is cut, less than this share of the score is left.
LEFT = 0.5

# A head looks at the previous token, or at copies, if these get more than this much of its attention.
MOST = 0.5

# Nats that are nobody's loss: below, a path carries no predictions.
NOTHING = 0.01

RANDOM_KIND = "random matrices of the same shapes"


def applies(subject: Subject) -> str | None:
    """Where some query has two keys with a predecessor: with fewer there is nothing to choose from."""
    known = subject.batch.history.shape[1]
    if known < 3:
        return f"a context of {known} known token{'s' * (known > 1)} has no two keys with a predecessor"
    return None


def _best(values: xr.DataArray) -> tuple[str, float]:
    """The head with the largest value, for one model, and that value."""
    where = {name: int(at) for name, at in values.fillna(-np.inf).argmax(("layer", "head")).items()}
    return head_name(where["layer"], where["head"]), float(values.isel(where))


def _here(data: xr.Dataset) -> tuple[xr.Dataset, str]:
    """The last model's headline head, and its name."""
    index = {name: int(where[-1]) for name, where in headline(data).items()}
    now = data.isel({data["effect"].dims[0]: -1})
    return now.isel(index), head_name(index["layer"], index["head"])


def _feeder(here: xr.Dataset) -> str | None:
    """The head that feeds the headline head by its keys, if cutting it there takes most of the score."""
    if int(here["feeder_layer"]) < 0:
        return None
    intact, cut = float(here["intact"]), float(here["cut"].sel(input="K"))
    if not cut < LEFT * intact:
        return None
    return head_name(int(here["feeder_layer"]), int(here["feeder_head"]))


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The induction head and what feeds it, at the last step; nulls take the same maxima."""
    here, name = _here(data)
    nothing = "no query has a key that matches it"

    def score(of: Callable[[xr.Dataset], xr.DataArray], unit: str, why: str, half: float = np.nan) -> Score:
        value = float(of(data)[-1])
        if not np.isfinite(value):
            return Score(None, unit, reason=why)
        band = None if null is None else null_band(of(null))
        interval = (value - half, value + half) if np.isfinite(half) else None
        return Score(value, unit, band, interval, NULL_KIND)

    def at_best(variable: str, **where: Any) -> Callable[[xr.Dataset], xr.DataArray]:
        return lambda d: d[variable].sel(where).isel(headline(d))

    def over_heads(variable: str, **where: Any) -> Callable[[xr.Dataset], xr.DataArray]:
        return lambda d: d[variable].sel(where).max(("layer", "head"))

    now = data.isel({data["effect"].dims[0]: -1})
    half = 1.96 * float(here["induction_error"].sel(matched=1))
    result = {
        "induction_score": score(at_best("induction", matched=1), "probability", nothing, half),
        "induction_head": Score(name, "") if _causal(here) else Score(None, "", reason=_no_head(now)),
        "predecessor_effect": score(
            at_best("effect"), "of the ideal", _NO_EDIT, float(here["effect_high"] - here["effect"])
        ),
        "fidelity": score(at_best("fidelity", matched=1), "nats", nothing),
        "repeated_score": score(at_best("repeated"), "probability", nothing),
    }
    for k in range(2, MAX_MATCHED + 1):
        result[f"induction_score_{k}"] = score(over_heads("induction", matched=k), "probability", nothing)
    result["previous_token_score"] = score(over_heads("previous_token"), "probability", nothing)
    before, value = _best(now["previous_token"])
    why = "no head gives the previous token more than half of its attention"
    named = value > MOST or before == _feeder(here)
    result["previous_token_head"] = Score(before, "") if named else Score(None, "", reason=why)
    result["duplicate_token_score"] = score(over_heads("duplicate_token"), "probability", nothing)
    if data.attrs["n_states"] == 2:
        why = "two states leave one eigenvalue, so that the score is 1 or -1 for any model"
        result["copying_score"] = Score(None, "balance of eigenvalues", reason=why)
    else:
        why = f"the OV circuit of {name} is constant over states"
        result["copying_score"] = score(at_best("copying"), "balance of eigenvalues", why)
    return result | {"k_composition": _composition(here, name), "path_effect": _path_effect(here, now)}


_NO_EDIT = "no query has a key behind it to edit and a match before that"


def _causal(here: xr.Dataset) -> bool:
    return float(here["effect_low"]) > CAUSAL


def _no_head(now: xr.Dataset) -> str:
    """Why there is no induction head, for one model."""
    _, effect = _best(now["effect"])
    if not np.isfinite(effect):
        return _NO_EDIT
    return f"editing a key's predecessor moves no head's attention to it (at most {effect:.2f} of the ideal)"


def _composition(here: xr.Dataset, name: str) -> Score:
    """Of the feeder with the head's keys; of the most composed earlier head, where patching names none."""
    feeder, unit = _feeder(here), "composition"
    index = head_index(name)
    assert index is not None  # the headline is a head
    earlier = here["k_composition"].values[: index[0]].ravel()
    if not earlier.size:
        return Score(None, unit, reason=f"{name} is in the first layer: there is no head to compose with")
    if feeder is None:
        value, of = float(np.nan_to_num(earlier, nan=-np.inf).max()), earlier.size
    else:
        at = {"from_layer": int(here["feeder_layer"]), "from_head": int(here["feeder_head"])}
        value, of = float(here["k_composition"].isel(at)), 1
    # The q-quantile of the largest of n is the q^(1/n)-quantile of one.
    low, middle, high = np.quantile(here["random_composition"], np.array([0.025, 0.5, 0.975]) ** (1 / of))
    why = "one of the two heads has zero weights"
    return Score(value, unit, (float(low), float(middle), float(high)), null_kind=RANDOM_KIND, reason=why)


def _path_effect(here: xr.Dataset, now: xr.Dataset) -> Score:
    """How far KL from the reference rises when the feeder is cut from the head's keys."""
    change = float(here["kl_cut"].sel(input="K") - here["kl_intact"])
    half = 1.96 * float(here["kl_error"].sel(input="K"))
    if not np.isfinite(change):
        return Score(None, "nats", reason=f"there is no path to cut: {_no_head(now)}")
    return Score(change, "nats", 0.0, (change - half, change + half), null_kind="a path that carries nothing")


def verdict(data: xr.Dataset) -> str:
    """Which head feeds which and what that path carries, or why there is no circuit, in one sentence."""
    now, (here, name) = data.isel({data["effect"].dims[0]: -1}), _here(data)
    if not np.isfinite(float(here["induction"].sel(matched=1))):
        return "No query has a key that could match it, so nothing can be said of induction."
    if not _causal(here):
        return f"No induction circuit: {_no_head(now)}{_lookalikes(data)}."
    score, most = (float(v.sel(matched=1)) for v in (here["induction"], data["ideal"]))
    mass = float(here["match_mass"].sel(matched=1))
    reads = (
        f"{mass:.3f} of its attention to keys that follow a copy of the current token ({score:.3f} beyond "
        f"what lag and tokens explain, of {most:.3f} at most; editing only a key's predecessor moves "
        f"{float(here['effect']):.2f} of the ideal)"
    )
    feeder = _feeder(here)
    if feeder is None:
        return (
            f"{name} is an induction head that no earlier head alone feeds: it gives {reads}, and no single "
            "cut from its keys takes half of that."
        )
    at = {"layer": int(here["feeder_layer"]), "head": int(here["feeder_head"])}
    previous, left = float(now["previous_token"].isel(at)), float(here["cut"].sel(input="K"))
    intact, cut = float(here["kl_intact"]), float(here["kl_cut"].sel(input="K"))
    error, simpler = float(here["kl_error"].sel(input="K")), float(data["kl_simpler"])
    reference, scale = (str(data.attrs[key]).replace("in_context_", "in-context ") for key in _REFERENCES)
    if cut - intact <= max(1.96 * error, NOTHING):
        carries = "carries no predictions"
    elif intact > simpler:
        carries = "carries predictions, but not the bigram's"
    else:
        all_of_it = cut - intact > LEFT * (simpler - intact)
        carries = "carries the bigram" if all_of_it else "carries some of the bigram"
    return (
        f"{feeder} feeds {name}, an induction circuit: {feeder} gives the previous token {previous:.3f} of "
        f"its attention, {name} gives {reads}; cutting {feeder} from the keys of {name} alone takes "
        f"{score:.3f} to {left:.3f}, and KL from the {reference} from {intact:.3g} to {cut:.3g} nats "
        f"({scale}: {simpler:.3g}): that path {carries}."
    )


_REFERENCES = ("reference", "simpler")


def _lookalikes(data: xr.Dataset) -> str:
    """Heads that a score alone would take for parts of a circuit."""
    now = data.isel({data["effect"].dims[0]: -1})
    said = ""
    best, score = _best(now["induction"].sel(matched=1))
    if score > 0.1 * float(data["ideal"].sel(matched=1)) > 0:
        said += (
            f"; {best} has {score:.3f} on matches beyond lag and tokens, but not for their predecessors' sake"
        )
    previous, copies = now["previous_token"], now["duplicate_token"]
    # On a sticky chain the token before mostly is a copy: the larger of the two names the head.
    for values, others, chance, kind in (
        (previous, copies, now["previous_chance"], "the previous token"),
        (copies, previous, now["duplicate_chance"], "copies of the current token"),
    ):
        head, value = _best(values.where(values >= others))
        if value > MOST + (1 - MOST) * float(chance):
            said += f"; {head} looks at {kind} ({value:.3f} of its attention)"
    return said + ("; a single layer has no head that could feed another" if data.sizes["layer"] == 1 else "")


def figures(data: xr.Dataset) -> list[Figure]:
    """All heads' scores, attention of the circuit, what cutting its path does, and how it formed."""
    axis = str(data["effect"].dims[0])
    now = data.isel({axis: -1})
    heads = [head_name(*where) for where in np.ndindex(data.sizes["layer"], data.sizes["head"])]
    k = [now["induction"].sel(matched=m).values.ravel() for m in now["matched"].values]
    columns = {f"induction, {m + 1} token{'s' * (m > 0)}": v for m, v in enumerate(k)}
    columns["predecessor effect"] = now["effect"].values.ravel()
    named = {"repeated": "repeated", "previous": "previous_token", "copies": "duplicate_token"}
    columns |= {title: now[name].values.ravel() for title, name in named.items()}
    columns["copying"] = now["copying"].values.ravel()
    found = [
        Figure(
            "Heads by what they do",
            "Mass on matches beyond lag, tokens and one match fewer; how far editing a key's predecessor "
            "moves attention (1 is ideal); repeated sequences, less chance; attention on the token before "
            f"(uniform: {float(data['previous_chance']):.2f}) and on copies (uniform: "
            f"{float(data['duplicate_chance']):.2f}); eigenvalues of the OV circuit.",
            "plotly",
            heatmap(
                np.stack(list(columns.values()), axis=1),
                heads,
                list(columns),
                row_title="head",
                value_title="score",
                diverging=True,
                limits=(-1, 1),
            ),
        )
    ]
    if "example" in data:
        shown = [str(label) for label in data["shown"].values]
        tokens = [str(token) for token in data.attrs["example_tokens"]]
        caption = "Rows attend, columns are attended to."
        if shown[-1] == "ideal":
            caption += " An ideal head is uniform on the keys that follow a copy of the current token."
        view = AttentionView(tokens, now["example"].values, shown)
        found.append(Figure("Attention on the end of a sequence", caption, "attention", view))
    if "kl_cut" in data and np.isfinite(float(now["kl_intact"])):
        found.append(_cut_figure(data))
    if axis == "step" and data.sizes["step"] > 1:
        series = {
            "induction score": data["induction"].sel(matched=1).isel(headline(data)).values,
            "predecessor effect": data["effect"].isel(headline(data)).values,
            "previous-token score": data["previous_token"].max(("layer", "head")).values,
        }
        steps = data["step"].values.astype(float)
        caption = "The best head of each step; an ideal head's induction score is drawn across."
        ideal = {"ideal": float(data["ideal"].sel(matched=1))}
        figure = lines(steps, series, x_title="step", y_title="score", references=ideal)
        found.append(Figure("The circuit over training", caption, "plotly", figure))
    return found


def _cut_figure(data: xr.Dataset) -> Figure:
    """KL from the reference with each path into the induction head cut."""
    here, name = _here(data)
    feeder = head_name(int(here["feeder_layer"]), int(here["feeder_head"]))
    value = np.array([float(here["kl_intact"]), *here["kl_cut"].values])
    error = 1.96 * np.array([0.0, *here["kl_error"].values])
    words = {"Q": "queries", "K": "keys", "V": "values"}
    reference, scale = (str(data.attrs[key]).replace("in_context_", "in-context ") for key in _REFERENCES)
    return Figure(
        f"Cutting {feeder} from {name}",
        f"KL from the {reference} to the model, whole and with the output of {feeder} at its mean in one "
        f"input of {name}, all else as it was.",
        "plotly",
        bars(
            ["whole", *(f"{feeder} → {words[str(into)]}" for into in here["input"].values)],
            value,
            x_title="path cut",
            y_title="nats",
            errors=(value - error, value + error),
            references={scale: float(data["kl_simpler"])},
        ),
        key="cut",
    )


probe = Probe(
    name="induction",
    question="Is there an induction circuit: which previous-token head feeds which induction head, and what "
    "does that path carry?",
    cites="Elhage et al. 2021; Olsson et al. 2022 (arXiv 2209.11895); Edelman et al. 2024 (2402.11004); "
    "Rajaraman et al. 2024 (2407.17686) for matches of k tokens",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="induction score = E[attention on keys whose predecessor is the current token] − the same "
    "expected from lag and tokens alone\n"
    "predecessor effect = how far editing only a key's predecessor moves the attention to it; 1 "
    "for an ideal head\n"
    "composition of W_A into W_B = |W_A W_B| / (|W_A| |W_B|) · copying = Σλ / Σ|λ|, λ the "
    "eigenvalues of OV (Elhage et al. 2021)",
    records=(INDUCTION,),
)
