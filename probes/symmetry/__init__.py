"""Why is it stuck, or why is it not: the symmetries of the data, and what they let a first gradient see."""

import numpy as np
import xarray as xr

from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.curvature.trainable_vector import Coordinates, symmetry_of
from mechmarkov.curvature.walk_parts import walk_parts
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.preconditions import why_no_chain
from mechmarkov.probing.recording import ATTENTION
from mechmarkov.probing.score import Score
from mechmarkov.probing.value_circuits import path_tables
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.sources import FixedChain
from mechmarkov.theory.first_step import first_step_gradient, first_step_information
from mechmarkov.theory.symmetry import Permutation, commutant_share, orbitals
from mechmarkov.theory.token_mean import token_mean_variance

from .equivariance import equivariance_error
from .reduced_run import Beside, beside
from .token_mean import token_mean_accuracy

# A first step whose information is below this is flat: float64 leaves about 1e-30 of a flat one.
FLAT_STEP = 1e-9

# Attention is flat, and the rows of the circuit are constant, up to this share of their size.
FLAT = 0.01

# Beyond, the powers of P and its automorphisms take minutes.
MOST_STATES = 256


def applies(subject: Subject) -> str | None:
    """Only where one chain is behind all sequences."""
    why = why_no_chain(subject.source, "there is no one chain to be symmetric")
    if why is not None:
        return why
    if subject.source.n_states > MOST_STATES:
        return f"{subject.source.n_states} states are more than the {MOST_STATES} whose symmetries are sought"
    return None


def measure(subject: Subject) -> xr.Dataset:
    """The symmetries of source, model and gradient, and how far the model is from the symmetric trap.

    Returns, over [axis]:
        `equivariance_error` (share; NaN without symmetries or for zero scores);
        `symmetric_share` (share of squared norm; NaN for a zero circuit): of all token-to-logit circuits, and
        `path_share` [.., path] of each;
        `gradient_norm` (nats a unit of weight) and `gradient_outside`, the share of its squared norm outside
        what the symmetries leave alone (trainable numbers only; NaN where that is not defined);
        `attention_spread`: max S - min S over tokens of any head, in units of a token's mean share;
        `circuit_variation`: the share of the circuits' norm that depends on the state read;
        `trapped`: attention flat, rows of the circuits constant, and a first step that is flat;
        `reduced_spread`, `reduced_gap`, `reduced_accuracy`: of the reduced walk beside the run, where there
        is one.
    And of the source: `first_step` [state_to, state_from] (tokens), the exact first gradient of V up to its
    factor; `first_step_information` (share); `one_step_accuracy`, `token_mean_accuracy` and `chance`
    (probability; intervals in attrs); `between_class`, `token_mean_variance` (squared probability).
    """
    source, axis = subject.source, subject.axis
    assert isinstance(source, FixedChain)
    population, coordinates = population_of(subject), Coordinates.of(subject.run)
    symmetry = symmetry_of(subject.run, coordinates)
    gradient = loss_surface(subject, population, coordinates).gradients().mean(1)
    inside = symmetry.inside(gradient)
    total = gradient.square().sum(-1).numpy()
    outside = (gradient - inside).square().sum(-1).numpy()
    group = population.relabellings if population.images > 1 else _group(source, symmetry.order)
    length = subject.batch.history.shape[1] + 1
    first_step = first_step_gradient(source.P, np.array(source.pi), length)
    information = first_step_information(first_step)
    between, variance = token_mean_variance(source.P, np.array(source.pi), length)
    circuits = np.stack(list(path_tables(subject).values()), axis=1)
    if subject.objective.kind == "cross_entropy":
        circuits = circuits - circuits.mean(-1, keepdims=True)
    varying = circuits - circuits.mean(-2, keepdims=True)
    size = np.sqrt((circuits**2).sum((1, 2, 3)))
    variation = np.sqrt((varying**2).sum((1, 2, 3))) / np.where(size > 0, size, 1)
    attention = subject.recorded(ATTENTION)
    seen = slice(subject.batch.seen(subject.config.window).start, subject.batch.history.shape[1])
    uniform = attention.last_mass[..., seen].mean(-1)  # 0 where a query sees itself alone
    spread = (attention.spread / np.where(uniform > 0, uniform, 1)).max((1, 2))
    trapped = (spread < FLAT) & (variation < FLAT) & (information < FLAT_STEP)
    nothing = np.full(len(subject.coordinates), np.nan)
    symmetric = symmetry.order > 1
    orbital = orbitals(symmetry.generators, source.n_states)
    shares = commutant_share(circuits, orbital)
    weight = (circuits**2).sum((-2, -1))
    with np.errstate(invalid="ignore"):
        share = np.nansum(shares * weight, axis=1) / weight.sum(1)
        outside_share = outside / total
    known = token_mean_accuracy(subject, population, first_step)
    data = xr.Dataset(
        {
            "equivariance_error": (
                axis,
                equivariance_error(subject, population, group) if symmetric else nothing,
                {"unit": "share"},
            ),
            "symmetric_share": (axis, share if symmetric else nothing, {"unit": "share"}),
            "path_share": ((axis, "path"), shares, {"unit": "share"}),
            "gradient_norm": (axis, np.sqrt(total), {"unit": "nats a unit of weight"}),
            "gradient_outside": (axis, nothing if symmetry.trivial else outside_share, {"unit": "share"}),
            "attention_spread": (axis, spread, {"unit": "share of uniform"}),
            "circuit_variation": (axis, variation, {"unit": "share"}),
            "trapped": (axis, trapped.astype(int), {"unit": "yes or no"}),
            "first_step": (("state_to", "state_from"), first_step, {"unit": "tokens"}),
            "first_step_information": ((), information, {"unit": "share"}),
            "between_class": ((), between, {"unit": "squared probability"}),
            "token_mean_variance": ((), variance, {"unit": "squared probability"}),
            "chance": ((), float(np.max(source.pi)), {"unit": "probability"}),
        }
        | {
            name: ((), found.value, {"unit": "probability", "interval": list(found.interval)})
            for name, found in known.items()
        },
        coords={axis: subject.coordinates, "path": list(path_tables(subject))},
        attrs=_facts(subject, length, symmetry.order, symmetry.shifts, symmetry.acts)
        | {"population": population.describe()},
    )
    reduced = beside(subject, population) if axis == "step" else "a null starts at random"
    if isinstance(reduced, Beside):
        data["reduced_spread"] = (axis, reduced.spread, {"unit": "probability"})
        data["reduced_gap"] = (axis, reduced.gap, {"unit": "share"})
        data["reduced_accuracy"] = (axis, reduced.accuracy, {"unit": "probability"})
    else:
        data.attrs["no_reduced"] = reduced
    return data


def _group(source: FixedChain, order: int) -> list[Permutation]:
    """All relabellings where they are few, so that no choice of generators matters; else generators."""
    return source.automorphisms() if order <= MOST_STATES else source.automorphism_generators()


def _facts(subject: Subject, length: int, order: int, shifts: bool, acts: bool) -> dict[str, object]:
    source = subject.source
    assert isinstance(source, FixedChain)
    deterministic = bool(np.isin(source.P, (0.0, 1.0)).all()) and source.period == source.n_states
    recipe = subject.run.recipe or {}
    init = recipe.get("init") or {}
    return {
        "source": source.title(),
        "labels": list(source.labels),
        "n_states": source.n_states,
        "length": length,
        "automorphisms": str(order),  # may be larger than any integer of a file format
        "deterministic": deterministic,
        "shifts": shifts,
        "acts": acts,
        "walk": walk_parts(subject.run) is not None,
        "start": init.get("scheme", "unknown"),
        "start_std": float(init.get("std") or 0.0),
    }


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """Trapped or not, and the numbers that say so."""
    last = {str(data["trapped"].dims[0]): -1}
    only_identity = "only the identity is an automorphism of the chain"
    why_not = only_identity if data.attrs["automorphisms"] == "1" else "the scores are zero"

    def beside_null(name: str, why: str) -> Score:
        value = float(data[name].isel(last))
        band = None if null is None else null_band(null[name])
        reason = None if np.isfinite(value) else why
        return Score(value, data[name].attrs["unit"], band, null_kind=NULL_KIND, reason=reason)

    no_gradient = (
        only_identity
        if data.attrs["automorphisms"] == "1"
        else "relabelling does not act on what is trained"
        if not data.attrs["acts"]
        else "the gradient is zero"
    )
    accuracy = data["token_mean_accuracy"]
    low, high = accuracy.attrs["interval"]
    return {
        "trapped": Score(bool(data["trapped"].isel(last)), ""),
        "first_step_information": Score(float(data["first_step_information"]), "share"),
        "equivariance_error": beside_null("equivariance_error", why_not),
        "symmetric_share": beside_null(
            "symmetric_share",
            only_identity if data.attrs["automorphisms"] == "1" else "the circuit is zero",
        ),
        "gradient_outside": beside_null("gradient_outside", no_gradient),
        "attention_spread": beside_null("attention_spread", ""),
        "circuit_variation": beside_null("circuit_variation", ""),
        "token_mean_accuracy": Score(
            float(accuracy), "probability", float(data["chance"]), (low, high), "the likeliest state"
        ),
    }


def verdict(data: xr.Dataset) -> str:
    """Why it is trapped, or why it is not, in one sentence."""
    now = data.isel({str(data["trapped"].dims[0]): -1})
    a, information = data.attrs, float(data["first_step_information"])
    K, N = int(a["n_states"]), int(a["length"])
    spread, variation = float(now["attention_spread"]), float(now["circuit_variation"])
    here = (
        f"the most and the least attended token differ by {spread:.2g} of a token's mean share, and "
        f"{variation:.2g} of the circuits' size depends on the state read"
    )
    told = _told(data)
    if bool(now["trapped"]) and a["shifts"]:
        return (
            f"Trapped by symmetry: {K} divides N - 1 = {N - 1}, so every state is read {(N - 1) // K} times "
            "whatever the label, shifting tokens and positions along the cycle leaves every sequence as it "
            f"is, and the first gradient is flat (information {information:.0e}); so gradient descent keeps "
            f"the rows of V constant (here up to {variation:.1e} of its size) and attention flat (up to "
            f"{spread:.1e} of uniform){_reduced(now)}."
        )
    if bool(now["trapped"]):
        return (
            f"Trapped: {told}, attention is flat (up to {spread:.1e} of uniform) and no circuit depends on "
            f"the state it reads (up to {variation:.1e} of its size)."
        )
    if not a["walk"]:
        return (
            f"Not the symmetric trap of the walk model: {told}, and here a state that predicts also reaches "
            f"the output by other ways than that mean; {here}; if it is stuck, the Hessian must say why."
        )
    if a["shifts"]:
        return (
            f"Not trapped, though {K} divides N - 1 = {N - 1} and the first step from zero is flat "
            f"(information {information:.0e}): {_why_it_left(now)}, and the trap is a saddle; {here}."
        )
    if a["deterministic"]:
        return (
            f"Not trapped: the walk is deterministic, but {K} does not divide N - 1 = {N - 1}, so some "
            f"states are read once more than others and {told}; one step from zero already predicts with "
            f"accuracy {float(data['one_step_accuracy']):.2f}."
        )
    flat = spread < FLAT and variation < FLAT
    return (
        f"Not trapped: {told}, so {'the next' if flat else 'the first'} step tells states apart; {here}"
        f"{_reduced(now)}."
    )


def _told(data: xr.Dataset) -> str:
    information = float(data["first_step_information"])
    if information < FLAT_STEP:
        flat = f"(information of the first gradient {information:.0e})"
        return f"the token mean tells nothing of the label {flat}"
    low, high = data["token_mean_accuracy"].attrs["interval"]
    between = f", {low:.3f} to {high:.3f}" if high > low else ""
    return (
        f"the token mean tells of the label (information of the first gradient {information:.2g}; the "
        f"nearest class mean is right {float(data['token_mean_accuracy']):.3f} of the time{between}, the "
        f"likeliest state {float(data['chance']):.3f})"
    )


def _reduced(now: xr.Dataset) -> str:
    if "reduced_gap" not in now:
        return ""
    K, N = int(now.attrs["n_states"]), int(now.attrs["length"])
    return (
        f"; the reduced system of K + N = {K + N} numbers, integrated beside the run, has V within "
        f"{float(now['reduced_gap']):.1e} of its size and a spread of {float(now['reduced_spread']):.1e}"
    )


def _why_it_left(now: xr.Dataset) -> str:
    start = str(now.attrs["start"])
    if start == "zero":
        exact = ""
        if "reduced_gap" in now:
            exact = f" (the reduced system's spread is {float(now['reduced_spread']):.0e})"
        return f"it started from zero, where exact arithmetic stays{exact}, so rounding took it out"
    if start in ("normal", "gpt2"):
        return f"it started at random (sd {float(now.attrs['start_std']):g}), which breaks the symmetry"
    return "its start is unknown, and must have broken the symmetry"


def figures(data: xr.Dataset) -> list[Figure]:
    """The first gradient, what the token mean tells, and the way out of the symmetric subspace."""
    labels = [str(label) for label in data.attrs["labels"]]
    axis = str(data["trapped"].dims[0])
    first = heatmap(
        data["first_step"].values,
        labels,
        labels,
        row_title="label",
        column_title="state read",
        value_title="tokens",
    )
    accuracy = np.array([float(data[name]) for name in ("token_mean_accuracy", "one_step_accuracy")])
    bands = np.array([data[name].attrs["interval"] for name in ("token_mean_accuracy", "one_step_accuracy")])
    told = bars(
        ["nearest class mean", "one step from zero"],
        accuracy,
        y_title="accuracy",
        errors=(np.minimum(bands[:, 0], accuracy), np.maximum(bands[:, 1], accuracy)),
        references={"the likeliest state": float(data["chance"])},
    )
    found = [
        Figure(
            "The first gradient of V, from zero",
            "How many earlier tokens are in each state, by label: exact. Rows alike are a first step that "
            "tells nothing.",
            "plotly",
            first,
        ),
        Figure(
            "What the token mean tells of the label",
            "A model with flat attention reads nothing else. On fresh sequences; nothing was fitted.",
            "plotly",
            told,
        ),
    ]
    if axis == "step" and data.sizes["step"] > 1:
        series = {
            "attention spread": data["attention_spread"].values,
            "circuit variation": data["circuit_variation"].values,
        }
        if "reduced_spread" in data:
            series["reduced system's spread"] = data["reduced_spread"].values * (
                int(data.attrs["length"]) - 1
            )
        found.append(
            Figure(
                "Distance to the trap",
                "Spread of the attention over tokens against uniform, and the share of the circuits that "
                "depends on the state read; both are zero in the trap.",
                "plotly",
                lines(data["step"].values.astype(float), series, x_title="step", y_title="share"),
            )
        )
    return found


probe = Probe(
    name="symmetry",
    question="Why is it stuck, or not: what do the symmetries of the data let a first gradient see?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorem 4.1; the first step in closed form",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="first step from zero: ∂L/∂V ∝ G = Σₘ (Pᵐ)ᵀ diag(μ Pᴺ⁻¹⁻ᵐ), m = 1 … N − 1\n"
    "first-step information = |G − product of its margins|² / |G|²; 0 for p = 0 or 1 and K | N − "
    "1 (theorem 4.1)\n"
    "trapped = no such information, and attention flat, and rows of the circuit constant",
)
