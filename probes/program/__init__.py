"""How much of the model does a program explain that selects tokens and looks them up in a table?"""

import numpy as np
import torch
import xarray as xr

from mechmarkov.models.components import head_index, head_name
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.batch import Batch, draw
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.theory.kernel import kl

from .match_mass import MATCH_MASS
from .measure import Program, contributions, extract, model_scores

# Other sequences than any subject's batch, whose seeds count on from `EVALUATION_SEED`.
FRESH_SEED = 0x5851F42D

# Predictions that vary by less than this (nats from their own mean) are float32 rounding: constant.
CONSTANT = 1e-9

# Under this many nats what is left of a model is not worth a word.
NEAR = 0.01

SHOWN = 6  # predictions, and the tokens in front of them, where the program fails most


def applies(subject: Subject) -> str | None:
    """Always: every model has tables and selectors; whether they explain it is the question."""
    del subject
    return None


def measure(subject: Subject) -> xr.Dataset:
    """Extract each model's program and run both on sequences that neither has seen."""
    fresh = draw(
        subject.source,
        subject.objective,
        subject.config,
        seed=FRESH_SEED,
        sequences=len(subject.batch.tokens),
    )
    return compare(subject, extract(subject), fresh)


def compare(subject: Subject, program: Program, fresh: Batch) -> xr.Dataset:
    """The models against their programs on a batch.

    Returns, over [axis]:
        `kl` and its standard error over sequences `kl_error` (nats): KL(model ‖ program);
        `kl_mean` (nats): KL(model ‖ its mean prediction), what there is to explain;
        `explained` (share): 1 - kl / kl_mean; negative where the mean alone does better, NaN where the
        predictions are constant;
        `kl_at` [.., position], `kl_after` [.., state_from] (nats): KL by position and by parent state;
        `kl_without` [.., path] (nats): KL of the program with that path at its mean (not on null models);
        `lag_weight` [.., layer, head, lag], `match_bonus` [.., layer, head] (log odds): the selectors;
        `table` [.., path, state_from, state_to], `base` [.., state_to] (scores);
        and for the last model `worst_*` [rank]: the predictions where the program fails most, with the last
        tokens in front of them (-1 in front of the first), `worst_model` and `worst_program` (probability).
    """
    axis, objective, n = subject.axis, subject.objective, subject.source.n_states
    parents, positions = fresh.parents.numpy(), fresh.read.numpy()
    rows: dict[str, list[np.ndarray]] = {}
    mean = subject.probabilities.mean((1, 2))
    count = np.bincount(parents.ravel(), minlength=n)
    last: tuple[np.ndarray, ...] = ()

    def predict(scores: np.ndarray) -> np.ndarray:
        return np.asarray(objective.predict(torch.from_numpy(scores)).numpy())

    for member, model_score in model_scores(subject, fresh):
        model = predict(model_score.astype(np.float64))
        added = contributions(program, fresh, member)
        total = program.base[member] + sum(added.values())
        predicted = predict(total)
        off = np.maximum(kl(model, predicted), 0.0)  # equal laws: rounding either way
        kl_mean = max(0.0, float(kl(model, mean[member]).mean()))
        after = np.bincount(parents.ravel(), off.ravel(), n)
        parts = added.values() if axis == "step" else ()
        without = [kl(model, predict(total - part + part.mean((0, 1)))).mean() for part in parts]
        found = {
            "kl": off.mean(),
            "kl_error": off.mean(-1).std() / np.sqrt(max(1, len(off) - 1)),
            "kl_mean": kl_mean,
            "explained": 1 - off.mean() / kl_mean if kl_mean > CONSTANT else np.nan,
            "kl_at": off.mean(0),
            "kl_after": np.where(count > 0, after / np.maximum(count, 1), np.nan),
        }
        if axis == "step":
            found["kl_without"] = np.array(without)
        for name, value in found.items():
            rows.setdefault(name, []).append(np.asarray(value))
        last = off, model, predicted
    dims = {"kl_at": ("position",), "kl_after": ("state_from",), "kl_without": ("path",)}
    data = xr.Dataset(
        {
            name: ((axis, *dims.get(name, ())), np.stack(value), {"unit": "nats"})
            for name, value in rows.items()
        },
        coords={axis: subject.coordinates, "position": positions, "path": list(program.tables)},
        attrs={"source": subject.source.title(), "labels": list(subject.source.labels)},
    )
    data["explained"].attrs["unit"] = "share"
    data["lag_weight"] = ((axis, "layer", "head", "lag"), program.lag_weight, {"unit": "weight"})
    data["match_bonus"] = ((axis, "layer", "head"), program.match_bonus, {"unit": "log odds"})
    tables = np.stack(list(program.tables.values()), axis=1)
    data["table"] = ((axis, "path", "state_from", "state_to"), tables, {"unit": "score"})
    data["base"] = ((axis, "state_to"), program.base, {"unit": "score"})
    data = data.assign_coords(lag=np.arange(data.sizes["lag"]))
    return data.assign(_worst(fresh, *last))


def _worst(fresh: Batch, off: np.ndarray, model: np.ndarray, predicted: np.ndarray) -> dict[str, xr.Variable]:
    """The predictions with the largest KL, at most one for each run of tokens in front of them."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for flat in np.argsort(-off, axis=None, kind="stable"):
        b, read = (int(i) for i in np.unravel_index(flat, off.shape))
        known = int(fresh.known[read])
        tokens = fresh.history[b, max(0, known + 1 - SHOWN) : known + 1].tolist()
        found.setdefault((*[-1] * (SHOWN - len(tokens)), *tokens), (b, read))
        if len(found) == SHOWN:
            break
    at = tuple(np.array(list(found.values())).T)
    read = fresh.read.numpy()[at[1]]
    return {
        "worst_kl": xr.Variable("rank", off[at], {"unit": "nats"}),
        "worst_position": xr.Variable("rank", read, {"unit": "position"}),
        "worst_tokens": xr.Variable(("rank", "token"), np.array(list(found)), {"unit": "state"}),
        "worst_model": xr.Variable(("rank", "state_to"), model[at], {"unit": "probability"}),
        "worst_program": xr.Variable(("rank", "state_to"), predicted[at], {"unit": "probability"}),
    }


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """What the program leaves unexplained, in nats and as a share."""
    now = _now(data)
    value, error = float(now["kl"]), float(now["kl_error"])
    left = Score(
        value,
        "nats",
        float(now["kl_mean"]),
        (max(0.0, value - 1.96 * error), value + 1.96 * error),
        "a program that always says the model's mean prediction",
    )
    if not np.isfinite(float(now["explained"])):
        why = "the model's predictions are constant: there is nothing to explain"
        return {"kl_model_program": left, "explained": Score(None, "share", reason=why)}
    band = None if null is None else null_band(null["explained"])
    explained = Score(float(now["explained"]), "share", band, null_kind=NULL_KIND)
    return {"kl_model_program": left, "explained": explained}


def _now(data: xr.Dataset) -> xr.Dataset:
    return data.isel({data["kl"].dims[0]: -1})


def _paths(now: xr.Dataset) -> list[str]:
    """The paths without which the program would be worse, by a tenth of what there is to explain or more."""
    worth = now["kl_without"] - now["kl"]
    order = np.argsort(-worth.values, kind="stable")
    least = max(CONSTANT, 0.1 * float(now["kl_mean"]))
    return [str(now["path"].values[i]) for i in order if float(worth[i]) > least]


def _said(now: xr.Dataset, path: str) -> str:
    """A path of the program in words."""
    before, _, last = path.rpartition("→")
    head = head_index(last)
    if head is None:
        return f"look up the parent in {'the direct table' if path == 'direct' else f'the table of {path}'}"
    weight, bonus = now["lag_weight"][head], float(now["match_bonus"][head])
    if bonus > np.log(2):
        what = (
            f"the tokens after earlier copies of the current one (favoured {np.exp(min(bonus, 40)):.3g} to 1)"
        )
    else:
        lag = int(weight.values.argmax())
        what = f"the token at lag {lag}" if lag != 1 else "the parent"
        share = float(weight[lag])
        what += f" with weight {share:.3f}" if share > 0.5 else f" most, with weight {share:.3f}, of many"
    through = f" what {before} selects at" if before else ""
    return f"look up{through} {what} in the table of {path}"


def _failures(data: xr.Dataset, now: xr.Dataset) -> str:
    """Where the program fails, in words."""
    labels = [str(label) for label in data.attrs["labels"]]
    after, at = now["kl_after"], now["kl_at"]
    state = int(np.nanargmax(after.values))
    said = f"most after state {labels[state]} ({float(after[state]):.3g} nats)"
    if at.size > 1:
        place = int(at.values.argmax())
        said += f" and at position {int(at['position'][place])} ({float(at[place]):.3g} nats)"
    return said


def verdict(data: xr.Dataset) -> str:
    """The program in words, and how much of the model it is."""
    now = _now(data)
    left, kl_mean, explained = (float(now[name]) for name in ("kl", "kl_mean", "explained"))
    if not np.isfinite(explained):
        return "The model's predictions are constant: a program that always says their mean is all of it."
    paths = _paths(now)
    program = ", and ".join(_said(now, path) for path in paths)
    amounts = f"{left:.3g} nats of {kl_mean:.3g} are left"
    if left < NEAR and explained > 0.5:
        what = program or "add up every path, none of which matters alone"
        return f"A program explains {explained:.2%} of the model on fresh sequences: {what} ({amounts})."
    what = f"'{program}'" if program else "of lags, matches and tables"
    share = f"{max(0.0, explained):.0%}"
    return f"The program {what} explains {share} of the model: {amounts}, {_failures(data, now)}."


def figures(data: xr.Dataset) -> list[Figure]:
    """The selectors, and where the program fails."""
    now = _now(data)
    labels = [str(label) for label in data.attrs["labels"]]
    heads = [head_name(*head) for head in np.ndindex(now.sizes["layer"], now.sizes["head"])]
    lags = now["lag"].values[1:25]
    weight = now["lag_weight"].sel(lag=lags).values.reshape(len(heads), -1)
    bonus = now["match_bonus"].values.ravel()
    names = [f"{h}, matches {b:+.1f}" if b else h for h, b in zip(heads, bonus, strict=True)]
    found = [
        Figure(
            "The program's selectors",
            "Weight of each lag, counted from the predicted token (1 is its parent); the number behind a "
            "head is the log odds it gives to tokens whose predecessor is the current token.",
            "plotly",
            heatmap(
                weight,
                names,
                [str(lag) for lag in lags],
                row_title="head",
                column_title="lag",
                value_title="weight",
                limits=(0, 1),
            ),
        ),
        Figure(
            "What each path is worth to the program",
            "KL(model ‖ program) with one path at its mean; a line marks the whole program.",
            "plotly",
            bars(
                [str(path) for path in now["path"].values],
                now["kl_without"].values,
                y_title="KL (nats)",
                references={"whole program": float(now["kl"]), "always the mean": float(now["kl_mean"])},
            ),
        ),
        Figure(
            "Where the program fails: after which state",
            "KL(model ‖ program) by the parent of the predicted token.",
            "plotly",
            bars(labels, now["kl_after"].values, x_title="parent state", y_title="KL (nats)"),
        ),
    ]
    if now.sizes["position"] > 1:
        found.append(
            Figure(
                "Where the program fails: at which position",
                "KL(model ‖ program) by position.",
                "plotly",
                lines(
                    now["position"].values.astype(float),
                    {"KL": now["kl_at"].values},
                    x_title="position",
                    y_title="KL (nats)",
                ),
            )
        )
    if float(now["kl"]) > NEAR:
        found.append(_worst_figure(now, labels))
    return found


def _worst_figure(now: xr.Dataset, labels: list[str]) -> Figure:
    rows, names = [], []
    for rank in range(now.sizes["rank"]):
        here = now.isel(rank=rank)
        tokens = [labels[int(token)] for token in here["worst_tokens"].values if token >= 0]
        where = f"{' '.join(tokens)} | {int(here['worst_position'])}"
        for who in ("model", "program"):
            names.append(f"{where} {who}")
            rows.append(here[f"worst_{who}"].values)
    return Figure(
        "Where the program fails most",
        "Predictions of model and program after the tokens on the left; the number is their last position.",
        "plotly",
        heatmap(np.array(rows), names, labels, limits=(0, 1), value_title="probability").update_layout(
            xaxis_title="next state"
        ),
    )


probe = Probe(
    name="program",
    question="How much of the model does a program explain that selects tokens and looks them up in a table?",
    cites="A transformer as a program: Friedman et al. 2023 (arXiv 2306.01128); tables: Elhage et al. 2021",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="score = base + direct[parent] + Σ over MLPs of table[parent] + Σ over heads, lags m of aₘ · "
    "table[token at lag m], aₘ fitted to the attention\n"
    "explained = 1 − KL(model ‖ program) / KL(model ‖ the model's mean prediction)",
    records=(MATCH_MASS,),
)
