"""Which exact predictor does the model imitate, to how many nats?"""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.theory.kernel import FLOOR, kl

# Predictors that agree to this many nats on the batch are one predictor (float64 rounding is 1e-15).
SAME = 1e-9

# Nearer than this share of the distance to the next predictor (or than 0.01 nats), a model imitates.
IMITATES = 0.1
NEAR = 0.01

# Where a source redraws its chain, "the unigram" and "the bigram" are the in-context ones.
IN_CONTEXT = {"unigram": "in_context_unigram", "bigram": "in_context_bigram"}


def applies(subject: Subject) -> str | None:
    """Always."""
    del subject
    return None


def measure(subject: Subject) -> xr.Dataset:
    """KL from each exact predictor to the model, losses and accuracies.

    Returns:
        `kl` and its standard error over sequences `kl_error` [axis, predictor] (nats);
        `floored` [axis, predictor]: how many probabilities the model gave below 1e-12 to what that predictor
        holds possible, so that its KL is the floor's;
        `kl_at` [axis, predictor, position] (nats);
        `loss` and `best_loss` [axis] (nats, on the sampled next states);
        `accuracy` and `optimal_accuracy` [axis] (probability: exact expectations where the
        Bayes-optimal predictor has a closed form, frequencies otherwise);
        `implied` [axis, state_from, state_to] (probability): the mean prediction after each parent state;
        `kernel` [state_from, state_to] (probability): P, for a source with one chain.
    """
    axis, source, batch = subject.axis, subject.source, subject.batch
    model = subject.probabilities.astype(np.float64)
    exact = subject.exact
    targets, parents = batch.targets.numpy(), batch.parents.numpy()
    per_sequence = np.stack([[kl(p, q) for p in exact.values()] for q in model])  # [axis, predictor, b, read]
    n_sequences = targets.shape[0]
    best = source.best()
    onehot = np.eye(source.n_states)[targets]
    truth = onehot if isinstance(best, str) else exact[best.name]
    top = model >= model.max(-1, keepdims=True)
    error = per_sequence.mean(-1).std(-1) / np.sqrt(max(n_sequences - 1, 1))
    floored = np.array([[((q < FLOOR) & (p > 0)).sum() for p in exact.values()] for q in model])
    parent_onehot = np.eye(source.n_states)[parents]
    count = parent_onehot.sum((0, 1))[:, None]
    implied = np.einsum("abrj,bri->aij", model, parent_onehot)
    with np.errstate(invalid="ignore"):
        implied = implied / count  # a parent never seen has no row
    data = xr.Dataset(
        {
            "kl": ((axis, "predictor"), per_sequence.mean((-2, -1)), {"unit": "nats"}),
            "kl_error": ((axis, "predictor"), error, {"unit": "nats"}),
            "floored": ((axis, "predictor"), floored, {"unit": "probabilities"}),
            "kl_at": ((axis, "predictor", "position"), per_sequence.mean(-2), {"unit": "nats"}),
            "loss": (
                axis,
                -np.log(np.maximum((model * onehot).sum(-1), FLOOR)).mean((1, 2)),
                {"unit": "nats"},
            ),
            "accuracy": (
                axis,
                ((top / top.sum(-1, keepdims=True)) * truth).sum(-1).mean((1, 2)),
                {"unit": "probability"},
            ),
            "implied": ((axis, "state_from", "state_to"), implied, {"unit": "probability"}),
        },
        coords={axis: subject.coordinates, "predictor": list(exact), "position": batch.read.numpy()},
        attrs={
            "source": source.title(),
            "n_states": source.n_states,
            "labels": list(source.labels),
            "redraws": int(source.redraws),
            "predictor_labels": [p.label for p in source.predictors().values()],
            "sequences": n_sequences,
        },
    )
    if isinstance(best, str):
        data.attrs["no_best"] = best
    else:
        data.attrs["best"] = best.name
        chosen = np.maximum((truth * onehot).sum(-1), FLOOR)
        data["best_loss"] = ((), -np.log(chosen).mean(), {"unit": "nats"})
        data["optimal_accuracy"] = ((), truth.max(-1).mean(), {"unit": "probability"})
    P = getattr(source, "P", None)
    if P is not None:
        data["kernel"] = (("state_from", "state_to"), np.array(P), {"unit": "probability"})
    return data


def nearest(data: xr.Dataset) -> tuple[str, list[str]]:
    """The nearest predictor at the last step (the simplest of equals), and those it equals on this batch."""
    values = data["kl"][-1]
    closest = [str(n) for n in data["predictor"].values[values <= values.min() + SAME]]
    return closest[0], closest[1:]


def _kl_name(data: xr.Dataset, name: str) -> str:
    return IN_CONTEXT.get(name, name) if data.attrs["redraws"] else name


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The nearest predictor, KLs, and what the model loses to the best predictor."""
    result = {"nearest_predictor": Score(nearest(data)[0], "")}

    def kl_score(name: str) -> Score:
        value, error = (float(data[v].sel(predictor=name)[-1]) for v in ("kl", "kl_error"))
        band = None if null is None else null_band(null["kl"].sel(predictor=name))
        interval = (max(0.0, value - 1.96 * error), value + 1.96 * error)
        return Score(value, "nats", band, interval, NULL_KIND)

    for name in ("uniform", "unigram", "bigram"):
        result[f"kl_{name}"] = kl_score(_kl_name(data, name))
    if "best" not in data.attrs:
        why = data.attrs["no_best"]
        result |= {name: Score(None, "nats", reason=why) for name in ("kl_best", "excess_loss")}
    else:
        result["kl_best"] = kl_score(data.attrs["best"])
        excess = data["loss"] - data["best_loss"]
        band = None if null is None else null_band(null["loss"] - null["best_loss"])
        result["excess_loss"] = Score(float(excess[-1]), "nats", band, null_kind=NULL_KIND)
    band = None if null is None else null_band(null["accuracy"])
    result["accuracy"] = Score(float(data["accuracy"][-1]), "probability", band, null_kind=NULL_KIND)
    if "optimal_accuracy" in data:
        result["optimal_accuracy"] = Score(float(data["optimal_accuracy"]), "probability")
    else:
        result["optimal_accuracy"] = Score(None, "probability", reason=data.attrs["no_best"])
    return result


def verdict(data: xr.Dataset) -> str:
    """What it predicts like, in one sentence."""
    name, equals = nearest(data)
    values = data["kl"][-1]
    at = float(values.sel(predictor=name))
    others = values.drop_sel(predictor=[name, *equals])
    runner = others.isel(predictor=int(others.argmin("predictor"))) if others.size else None
    called = " and ".join([name, *equals]) + (" (the same here)" if equals else "")
    accuracy, chance = float(data["accuracy"][-1]), 1 / data.attrs["n_states"]
    # A frequency over the sequences; three of its standard errors above chance is no longer chance.
    noise = 3 * np.sqrt(chance * (1 - chance) / data.attrs["sequences"])
    at_chance = name == "uniform" and accuracy < chance + noise
    imitates = at < NEAR or (runner is not None and at < IMITATES * float(runner))
    is_like = "predicts like the" if imitates else "imitates no exact predictor; the nearest is the"
    sentence = f"{'At chance: it' if at_chance else 'It'} {is_like} {called}, {at:.3g} nats away"
    if runner is not None:
        sentence += f" (next: {runner['predictor'].item()}, {float(runner):.3g} nats)"
    sentence += f"; accuracy {accuracy:.3f}"
    if "optimal_accuracy" in data:
        sentence += f" where {float(data['optimal_accuracy']):.3f} is possible"
    if int(data["floored"][-1].sel(predictor=name)):
        sentence += "; it calls impossible what is not, and its KL is that of the floor, 1e-12"
    return _in_words(sentence) + "."


def _in_words(name: str) -> str:
    return name.replace("in_context_", "in-context ").replace("_", " ")


def figures(data: xr.Dataset) -> list[Figure]:
    """KL to each predictor, over steps and positions, and the transition matrix the model implies."""
    names = [_in_words(str(name)) for name in data["predictor"].values]
    last = data.isel({data["kl"].dims[0]: -1})
    found = [
        Figure(
            "How far the model is from each exact predictor",
            "KL from the predictor to the model, mean over sequences and positions. Zero is imitation.",
            "plotly",
            bars(names, last["kl"].values, y_title="KL (nats)"),
        )
    ]
    if "step" in data.dims and data.sizes["step"] > 1:
        series = {n: data["kl"].values[:, i] for i, n in enumerate(names)}
        found.append(
            Figure(
                "KL over training",
                "When a line touches zero the model has that predictor.",
                "plotly",
                lines(data["step"].values.astype(float), series, x_title="step", y_title="KL (nats)"),
            )
        )
    if data.sizes["position"] > 1:
        series = {n: last["kl_at"].values[i] for i, n in enumerate(names)}
        found.append(
            Figure(
                "KL at each position",
                "In-context predictors get better with every token they have seen."
                if data.attrs["redraws"]
                else "KL from each exact predictor to the model, where the sequence is that long.",
                "plotly",
                lines(data["position"].values.astype(float), series, x_title="position", y_title="KL (nats)"),
            )
        )
    labels = [str(label) for label in data.attrs["labels"]]

    def table(matrix: np.ndarray) -> go.Figure:
        figure = heatmap(matrix, labels, labels, limits=(0, 1), value_title="probability")
        return figure.update_layout(xaxis_title="next state", yaxis_title="parent state")

    if "kernel" in data:
        found.append(
            Figure(
                "The transition matrix the model implies",
                "Mean prediction after each parent state. Compare with P beside it.",
                "plotly",
                table(last["implied"].values),
            )
        )
        found.append(
            Figure(
                "The transition matrix of the source",
                "P: the truth.",
                "plotly",
                table(data["kernel"].values),
            )
        )
    return found


probe = Probe(
    name="behaviour",
    question="Which exact predictor does the model imitate, and to how many nats?",
    cites="Predictors and KL over positions: Edelman et al. 2024 (arXiv 2402.11004), section 3",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="KL from a predictor = E[Σⱼ p(j | context) log(p(j | context) / q(j | context))], p exact, q "
    "the model\n"
    "bigram p = P(current, ·) · unigram p = π · where each sequence has its own chain: (count of "
    "the transition + 1) / (count of the state + K)",
)
