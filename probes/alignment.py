"""Which path holds the chain: by weights, its value circuit against the target the loss gives it."""

from itertools import islice

import numpy as np
import plotly.graph_objects as go
import torch
import xarray as xr

from mechmarkov.models.components import head_index
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.preconditions import why_no_table
from mechmarkov.probing.recording import ATTENTION, SCORES
from mechmarkov.probing.score import Score
from mechmarkov.probing.value_circuits import path_tables
from mechmarkov.report.figures import heatmap, lines
from mechmarkov.sources import FixedChain, Stationary
from mechmarkov.theory import kernel as k

# A circuit whose state-dependent part is this small against the whole says nothing of the state: float32
# weights carry a relative rounding of 6e-8, and a K-term sum of them a few times that.
CONSTANT = 1e-6

# Laws of m steps this close are one law: float64 rounding is 1e-15.
SAME = 1e-9

# A path that takes off less than this share of what the unigram is away holds nothing of the kernel.
NOTHING = 0.05


def applies(subject: Subject) -> str | None:
    """Only where one process is behind all sequences: a value circuit is one table."""
    return why_no_table(subject.source)


def measure(subject: Subject) -> xr.Dataset:
    """Every path's value circuit against the target at the lag the path looks at.

    P^m is here the law of m steps: of the state given only the one m before.

    Returns, over [axis, path]:
        `circuit` [.., state_from, state_to] (score units): the full circuit;
        `attended_lag`, `attended_mass` (lag; probability): where the path's head looks, with its attention
        on all lags that the chain cannot tell from that one, as P^m repeats (1 and 1 for other paths);
        `lags_alike`: how many those are;
        `kernel_cosine` (cosine), `directional_distance`: centred circuit against the centred target;
        `kernel_slope` (1 is exact; NaN where the objective or P has none);
        `kernel_kl` (nats): KL from P^m at that lag, with all other paths at their data mean;
        `gain` (nats): by how much that is better than the unigram is at P^m; it ranks the paths;
        `best_lag`, `lag_margin`: the m whose P^m the circuit is nearest to, and by how much (NaN: constant);
        `recall` (probability); `circulant_share` (circle sources);
        `unigram` [.., state_to]: the state-independent part of the circuit, which is left out of the above.
        `constant`: whether the circuit says nothing of the state.
        `kernel` [state_from, state_to]: P; `law` [path, state_from, state_to]: P^m where the last model's
        path looks; `unigram_kl` (nats): how far the unigram is from P^m at the lag that tells most.
    """
    source, objective, axis = subject.source, subject.objective, subject.axis
    assert isinstance(source, Stationary)
    P, pi = np.array(source.P), np.array(source.pi)
    n = source.n_states
    tables = path_tables(subject)
    circuit = np.stack(list(tables.values()), axis=1)
    lags = range(1, min(subject.batch.history.shape[1], max(4, n, source.order or 0)) + 1)
    powers = {m: source.step_law(m) for m in lags}
    same = _same_lags(source, powers, subject.recorded(ATTENTION).lag_mass.shape[-1])
    lag, mass = _attended(subject, list(tables), same)
    mean_scores = subject.recorded(SCORES).mean((1, 2))[:, None, None, :]
    carried = mass[..., None, None] * circuit
    unigram = np.einsum("i,apij->apj", pi, circuit)
    # The path's own mean on these sequences, so that what is left of the mean is the other paths'.
    own = mass[..., None] * np.einsum("api,apij->apj", _frequencies(subject, len(lags))[lag - 1], circuit)
    full = carried - own[:, :, None, :] + mean_scores
    predicted = objective.predict(torch.from_numpy(full)).numpy()
    softmax = objective.kind == "cross_entropy"
    variation = np.abs(k.double_centred(circuit)).max((-2, -1))
    constant = variation <= CONSTANT * np.maximum(np.abs(circuit).max((-2, -1)), 1e-30)
    shape = circuit.shape[:2]
    fields = ("kernel_cosine", "directional_distance", "kernel_slope", "kernel_kl", "gain", "recall")
    out = {name: np.full(shape, np.nan) for name in (*fields, "best_lag", "lag_margin")}
    for where in np.ndindex(shape):
        m = int(lag[where])
        name, target = k.target_for(objective.kind, powers[m])
        compared = predicted[where] if softmax and name == "P" else circuit[where]
        centre = k.row_centred if softmax else k.double_centred
        out["kernel_cosine"][where] = 0.0 if constant[where] else k.cosine(centre(compared), centre(target))
        out["directional_distance"][where] = np.sqrt(
            2 - 2 * out["kernel_cosine"][where]
        )  # cosines are clipped
        if name == "log P":
            out["kernel_slope"][where] = k.slope(carried[where], target)
        out["kernel_kl"][where] = k.kernel_kl(predicted[where], powers[m], pi)
        out["gain"][where] = (
            k.kernel_kl(np.broadcast_to(pi, P.shape), powers[m], pi) - out["kernel_kl"][where]
        )
        out["recall"][where] = (
            k.chance_recall(powers[m]) if constant[where] else k.recall(circuit[where], powers[m])
        )
        if not constant[where]:
            far = _distances(circuit[where], predicted[where], powers, objective.kind, pi)
            nearest = int(np.flatnonzero(far <= far.min() + 1e-9)[0])  # the first of equals: P^m may repeat
            distinct = far[np.abs(far - far[nearest]) > 1e-9]
            out["best_lag"][where] = nearest + 1
            out["lag_margin"][where] = distinct.min() - far[nearest] if distinct.size else np.nan
    per_path = (axis, "path")
    units = {
        "kernel_cosine": "cosine",
        "kernel_kl": "nats",
        "gain": "nats",
        "recall": "probability",
        "best_lag": "lag",
    }
    data = xr.Dataset(
        {name: (per_path, value, {"unit": units.get(name, "")}) for name, value in out.items()}
        | {
            "circuit": ((*per_path, "state_from", "state_to"), circuit, {"unit": "score"}),
            "unigram": ((*per_path, "state_to"), unigram, {"unit": "score"}),
            "attended_lag": (per_path, lag, {"unit": "lag"}),
            "attended_mass": (per_path, mass, {"unit": "probability"}),
            "lags_alike": (per_path, same.sum(-1)[lag - 1], {"unit": "lags"}),
            "constant": (per_path, constant.astype(int), {"unit": "yes or no"}),
            "kernel": (("state_from", "state_to"), P, {"unit": "probability"}),
            "law": (
                ("path", "state_from", "state_to"),
                np.stack([powers[int(m)] for m in lag[-1]]),
                {"unit": "probability"},
            ),
            "unigram_kl": (
                (),
                max(k.kernel_kl(np.broadcast_to(pi, P.shape), law, pi) for law in powers.values()),
                {"unit": "nats"},
            ),
        },
        coords={axis: subject.coordinates, "path": list(tables)},
        attrs={
            "source": source.title(),
            "labels": list(source.labels),
            "objective": objective.kind,
            "n_states": n,
            "first_order": isinstance(source, FixedChain),
        },
    )
    if source.kind == "circle":
        data["circulant_share"] = (per_path, k.circulant_share(circuit), {"unit": "share"})
    return data


def _attended(subject: Subject, paths: list[str], same: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each path reads, and with how much attention: a head's most attended lag, else the parent.

    A lag that few predictions reach counts as little as they are: a head that always looks at the first
    token looks at no lag. Lags with one and the same P^m tell the same, so their attention adds up.
    """
    lag_mass = subject.recorded(ATTENTION).lag_mass
    over_all = lag_mass * subject.batch.reach.numpy()
    lag = np.ones((lag_mass.shape[0], len(paths)), dtype=int)
    mass = np.ones(lag.shape)
    for i, path in enumerate(paths):
        if (index := head_index(path)) is None:
            continue
        layer, head = index
        lag[:, i] = over_all[:, layer, head, 1 : len(same) + 1].argmax(-1) + 1
        for member, m in enumerate(lag[:, i]):
            others = over_all[member, layer, head, same[m - 1]].sum() - over_all[member, layer, head, m]
            mass[member, i] = min(1.0, lag_mass[member, layer, head, m] + others)
    return lag, mass


def _same_lags(source: Stationary, powers: dict[int, np.ndarray], n_lags: int) -> np.ndarray:
    """Which lags 0, 1, … have the same law of m steps as each of the first ones, `[first lag, lag]`."""
    first = np.stack(list(powers.values()))
    same = np.zeros((len(first), n_lags), dtype=bool)
    for m, law in enumerate(islice(source.step_laws(), n_lags)):
        if m:
            same[:, m] = np.abs(first - law).max((-2, -1)) < SAME
    return same


def _frequencies(subject: Subject, n_lags: int) -> np.ndarray:
    """How often each state is at each of the first lags of the predictions that reach it, `[lag, state]`."""
    history, known = subject.batch.history, subject.batch.known
    at = [history[:, known[known >= m - 1] - (m - 1)].flatten() for m in range(1, n_lags + 1)]
    return np.stack([np.bincount(x.numpy(), minlength=subject.source.n_states) / len(x) for x in at])


def _distances(
    circuit: np.ndarray, predicted: np.ndarray, powers: dict[int, np.ndarray], kind: str, pi: np.ndarray
) -> np.ndarray:
    """Distance to each P^m: in nats where scale is meaning (softmax), by direction where it is not."""
    if kind == "cross_entropy":
        return np.array([k.kernel_kl(predicted, power, pi) for power in powers.values()])
    targets = [k.double_centred(k.target_for(kind, power)[1]) for power in powers.values()]
    centred = k.double_centred(circuit)
    return np.array([k.directional_distance(centred, target) for target in targets])


def _best(data: xr.Dataset) -> xr.DataArray:
    """For each model, the path that alone predicts the chain best: by the most nats better than the unigram.

    Not by the smallest KL: far lags are near the unigram whatever the weights, and would win with nothing.
    """
    # A path that is constant is nobody's answer while there is one that says something.
    gain = data["gain"].where(data["constant"] == 0, -np.inf)
    return (gain >= gain.max("path") - SAME).argmax("path")  # the first of equals, whatever their rounding


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The best path at the last step; nulls take their best path too."""
    now = data.isel({data["kernel_kl"].dims[0]: -1})
    here = now.isel(path=int(_best(data)[-1]))
    best_null = None if null is None else null.isel(path=_best(null))

    def score(name: str, unit: str, why: str = "") -> Score:
        value = float(here[name])
        band = None if best_null is None else null_band(best_null[name])
        if not np.isfinite(value):
            return Score(None, unit, reason=why)
        return Score(value, unit, band, null_kind=NULL_KIND)

    name, _ = k.target_for(data.attrs["objective"], here["law"].values)
    if data.attrs["objective"] != "cross_entropy":
        no_slope = "only a softmax gives the scale of a circuit a meaning"
    elif name == "P":
        no_slope = "P has zeros, so log P is not finite: probabilities are compared"
    else:
        no_slope = "all rows of the target are uniform: there is nothing to have a slope on"
    constant = "the circuit is constant: it says nothing of the state, whatever the lag"
    result = {"path": Score(str(here["path"].item()), "")}
    if data.attrs["n_states"] > 2:  # at two states a double-centred table has one degree of freedom: ±1
        result["kernel_cosine"] = score("kernel_cosine", "cosine")
    result |= {
        "kernel_slope": score("kernel_slope", "1 is exact", no_slope),
        "kernel_kl": score("kernel_kl", "nats"),
        "best_lag": score("best_lag", "lag", constant),
        "recall": score("recall", "probability"),
        "target": Score(name, ""),
    }
    if "circulant_share" in data:
        result["circulant_share"] = score("circulant_share", "share", "the circuit is zero")
    return result


def _law_name(data: xr.Dataset, m: int) -> str:
    """What the law of m steps is called: of a first-order chain it is a power of P."""
    return "P" if m == 1 else f"P^{m}" if data.attrs["first_order"] else f"the {m}-step law"


def verdict(data: xr.Dataset) -> str:
    """Which path holds the kernel, and how well, in one sentence."""
    here = data.isel({data["kernel_kl"].dims[0]: -1}).isel(path=int(_best(data)[-1]))
    path, m = str(here["path"].item()), int(here["attended_lag"])
    name, _ = k.target_for(data.attrs["objective"], here["law"].values)
    nats, gain = float(here["kernel_kl"]), float(here["gain"])
    if bool(here["constant"]):
        return (
            f"No path holds the kernel: the value circuit of {path} is constant over states, so it cannot "
            f"tell one state's successors from another's ({nats:.3g} nats from P)."
        )
    power = _law_name(data, m)
    of = "" if name == "P" or power.startswith("P") else "of "
    target = name.replace("P", of + power)
    circuit = "its value circuit"
    if data.attrs["n_states"] > 2:
        circuit += f" has cosine {float(here['kernel_cosine']):.4f} with {target}"
    elif np.isfinite(float(here["kernel_slope"])):
        circuit += f" has slope {float(here['kernel_slope']):.3f} on {target} (1 is exact)"
    else:
        circuit += f" has its largest entries where P has in {float(here['recall']):.0%} of the rows"
    if "H" in path:
        alike = " and lags alike" if int(here["lags_alike"]) > 1 else ""
        circuit += f", read with {float(here['attended_mass']):.3f} of its attention at lag {m}{alike}"
    alone = f"alone it predicts {power} to {nats:.3g} nats, where the unigram is {nats + gain:.3g} away"
    if gain < NOTHING * float(data["unigram_kl"]):
        return f"No path holds the kernel: {path} comes nearest, but {alone}; {circuit}."
    return f"{path} is nearest to the kernel: {circuit}; {alone}."


def figures(data: xr.Dataset) -> list[Figure]:
    """The best path's circuit beside its target, and alignment over training."""
    labels = [str(label) for label in data.attrs["labels"]]
    axis = str(data["kernel_kl"].dims[0])
    here = data.isel({axis: -1}).isel(path=int(_best(data)[-1]))
    path, m = str(here["path"].item()), int(here["attended_lag"])
    name, target = k.target_for(data.attrs["objective"], here["law"].values)
    centre = k.row_centred if data.attrs["objective"] == "cross_entropy" else k.double_centred
    seen = "row-centred" if data.attrs["objective"] == "cross_entropy" else "double-centred"

    def table(matrix: np.ndarray, value: str) -> go.Figure:
        figure = heatmap(matrix, labels, labels, diverging=True, value_title=value)
        return figure.update_layout(xaxis_title="next state", yaxis_title="state read")

    found = [
        Figure(
            f"Value circuit of {path}",
            f"{seen.capitalize()}: what is left is what this path says of the next state.",
            "plotly",
            table(centre(here["circuit"].values), "score"),
            key="value circuit",
        ),
        Figure(
            f"Its target: {name}" + (f" of {_law_name(data, m)}" if m > 1 else ""),
            f"{seen.capitalize()} in the same way; under this objective the circuit should point this way.",
            "plotly",
            table(centre(target), "target"),
            key="target",
        ),
    ]
    if axis == "step" and data.sizes["step"] > 1:
        shown = "kernel_cosine" if data.attrs["n_states"] > 2 else "kernel_kl"
        series = {str(p): data[shown].sel(path=p).values for p in data["path"].values}
        found.append(
            Figure(
                "Alignment over training",
                "Every path against its target.",
                "plotly",
                lines(
                    data["step"].values.astype(float), series, x_title="step", y_title=shown.replace("_", " ")
                ),
            )
        )
    return found


probe = Probe(
    name="alignment",
    question="Which path holds the transition matrix in its weights, and how well?",
    cites="Shi & Cao 2025 (arXiv 2511.23239), theorem 3.1, with the target corrected to sqrt(P) for raw log "
    "scores; recall: Bietti et al. 2023 (arXiv 2306.00802)",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="C = W_E W_V W_O W_U, rows: state read, columns: next state (Elhage et al. 2021)\n"
    "target T = log P under cross-entropy, √P under −log(score + ε), P under squared error\n"
    "kernel cosine = ⟨C, T⟩ / (|C| |T|), both centred · kernel KL = Σᵢ πᵢ KL(Pᵢ ‖ prediction of C "
    "alone for i)",
)
