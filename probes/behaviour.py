"""Which exact predictor does the model imitate, to how many nats?"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xarray as xr
from einops import rearrange
from scipy.sparse import csr_array

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import (
    MIN_GAP_NATS,
    NORMAL_95,
    imitates,
    is_nearest,
    last_model,
    normal_interval,
    score_with_null,
    variables,
)
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.preconditions import has_one_parent, in_words, parent_lag, predictor_of
from mechmarkov.probing.probe import always
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars, lines, matched
from mechmarkov.report.probe_figures import over_training
from mechmarkov.sources import ChainMixture
from mechmarkov.theory.bootstrap import ratio, standard_error
from mechmarkov.theory.kernel import FLOOR, kl
from mechmarkov.utils.text import listed

# "At chance" needs an interval of the accuracy whose half is at most this share of the way to the best.
MAX_ERROR_SHARE = 0.25


def measure(subject: Subject) -> xr.Dataset:
    """KL from each exact predictor to the model, losses and accuracies.

    Where sequences share a chain of a mixture, errors are those of chains drawn anew with their sequences.

    Returns:
        `kl` and its standard error over sequences `kl_error` [axis, predictor] (nats);
        `floored` [axis, predictor]: how many probabilities the model gave below 1e-12 to what that predictor
        holds possible, so that its KL is the floor's;
        `further_error` [axis, predictor] (nats): the standard error of its KL less the smallest;
        `kl_at` [axis, predictor, position] (nats);
        `loss`, `best_loss` and the standard error of their difference `excess_loss_error` [axis], and
        `predictor_loss` [predictor] (nats, on the sampled next states);
        `excess` [axis] and `gap` (nats): what the model and the unigram lose to the best predictor, expected
        (without a Bayes-optimal one: on the sampled next states, to the predictor with the lowest loss);
        `left` and its standard error `left_error` [axis]: the first over the second;
        `accuracy`, `accuracy_error` and `optimal_accuracy` [axis] (probability: exact expectations where the
        Bayes-optimal predictor has a closed form, frequencies otherwise);
        `implied` [axis, state_from, state_to] (probability): the mean prediction after each parent state;
        `kl_after` [axis, state_from, predictor] (nats), `loss_after` [axis, state_from] (nats) and
        `accuracy_after` [axis, state_from] (probability): the same scores after each parent state;
        `kernel` [state_from, state_to] (probability): P, for a source with one chain.
    """
    axis, source, batch = subject.axis, subject.source, subject.batch
    model, exact = subject.probabilities.astype(np.float64), subject.exact
    onehot = np.eye(source.n_states)[batch.targets.numpy()]
    best, groups = source.best(), _components(subject)
    truth = onehot if isinstance(best, str) else exact[best.name]
    # [axis, predictor, sequence, read]
    per_sequence = np.stack([[kl(p, q) for p in exact.values()] for q in model])
    kl_of_each = rearrange(per_sequence, "member predictor b read -> member b read predictor")
    top = model >= model.max(-1, keepdims=True)
    right = ((top / top.sum(-1, keepdims=True)) * truth).sum(-1)
    losses, of_each = _losses(model, onehot), np.stack([_losses(p, onehot) for p in exact.values()])
    floored = np.array([[((q < FLOOR) & (p > 0)).sum() for p in exact.values()] for q in model])
    accuracy, accuracy_error = right.mean((1, 2)), standard_error(right.mean(-1), groups)
    kl_of_sequence = per_sequence.mean(-1)
    error, smallest = standard_error(kl_of_sequence, groups), kl_of_sequence.mean(-1).argmin(-1)
    further = kl_of_sequence - kl_of_sequence[np.arange(len(model)), smallest][:, None]
    unigram = [*exact].index(predictor_of(source, "unigram"))
    if isinstance(best, str):
        lowest = of_each[of_each.mean((1, 2)).argmin()]
        excess, gap = (losses - lowest).mean(-1), (of_each[unigram] - lowest).mean(-1)
    else:
        excess, gap = (
            kl_of_sequence[:, [*exact].index(best.name)],
            kl(truth, [*exact.values()][unigram]).mean(-1),
        )
    left, left_error = ratio(excess, gap, groups) if gap.any() else np.full((2, len(model)), np.nan)
    per_predictor, after = (axis, "predictor"), (axis, "state_from")
    before_is_parent = has_one_parent(source) and parent_lag(source) == 1
    data = xr.Dataset(
        variables("nats", per_predictor, kl=kl_of_sequence.mean(-1), kl_error=error)
        | variables("nats", per_predictor, further_error=standard_error(further, groups))
        | variables("probabilities", per_predictor, floored=floored)
        | variables("nats", (*per_predictor, "position"), kl_at=per_sequence.mean(-2))
        | variables("nats", axis, loss=losses.mean((1, 2)))
        | variables("nats", axis, excess=excess.mean(-1))
        | variables("nats", (), gap=gap.mean())
        | variables("share", axis, left=left, left_error=left_error)
        | variables("nats", "predictor", predictor_loss=of_each.mean((1, 2)))
        | variables("probability", axis, accuracy=accuracy, accuracy_error=accuracy_error)
        | variables("probability", (*after, "state_to"), implied=_after(subject, model))
        | variables("nats", (*after, "predictor"), kl_after=_after(subject, kl_of_each))
        | variables("nats", after, loss_after=_after(subject, losses[..., None])[..., 0])
        | variables("probability", after, accuracy_after=_after(subject, right[..., None])[..., 0]),
        coords={axis: subject.coordinates, "predictor": list(exact), "position": batch.read.numpy()},
        attrs={
            "source": source.title(),
            "n_states": source.n_states,
            "labels": list(source.labels),
            "redraws": int(source.redraws),
            "sequences": len(onehot),
            "unigram": predictor_of(source, "unigram"),
            "bigram": predictor_of(source, "bigram"),
            "objective": subject.objective.kind,
            "state_before": "parent state" if before_is_parent else "last state",
            # A lone checkpoint from elsewhere has step 0 where its step is not known.
            "starts_untrained": int(subject.run.recipe is not None or subject.run.n_steps > 1),
        },
    )
    P = getattr(source, "P", None)
    if P is not None:
        data = data.assign(variables("probability", ("state_from", "state_to"), kernel=np.array(P)))
    if isinstance(best, str):
        return data.assign_attrs(no_best=best)
    best_losses = _losses(truth, onehot)
    excess_error = standard_error((losses - best_losses).mean(-1), groups)
    return data.assign(
        variables("nats", (), best_loss=best_losses.mean())
        | variables("nats", axis, excess_loss_error=excess_error)
        | variables("probability", (), optimal_accuracy=truth.max(-1).mean())
    ).assign_attrs(best=best.name)


def _losses(q: np.ndarray, onehot: np.ndarray) -> np.ndarray:
    """Cross-entropies (nats) of probabilities `[.., sequence, read, state]` on the states that came."""
    return np.asarray(-np.log(np.maximum((q * onehot).sum(-1), FLOOR)))


def _components(subject: Subject) -> np.ndarray | None:
    """Which chain of a mixture each sequence most likely comes from; None for other sources."""
    if not isinstance(subject.source, ChainMixture):
        return None
    return np.asarray(subject.source.posterior(subject.batch.history.numpy())[:, -1].argmax(-1))


def _after(subject: Subject, values: np.ndarray) -> np.ndarray:
    """Means after each parent state: `[axis, batch, read, value]` to `[axis, state_from, value]`.

    NaN for a state that is never a parent.
    """
    parents = subject.batch.parents.numpy().ravel()
    one_hot = csr_array((np.ones(parents.size), (parents, np.arange(parents.size))))
    one_hot.resize(subject.source.n_states, parents.size)
    total = np.stack([one_hot @ rearrange(one, "b r j -> (b r) j") for one in values])
    with np.errstate(invalid="ignore"):
        return np.asarray(total / one_hot.sum(axis=1)[:, None])


def nearest(data: xr.Dataset) -> tuple[str, list[str]]:
    """The nearest predictor at the last step (the simplest of equals), and those it equals on this batch."""
    closest = data["predictor"].values[is_nearest(last_model(data)["kl"])].tolist()
    return closest[0], closest[1:]


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The nearest predictor, KLs, and what the model loses to the best predictor."""
    last = last_model(data)

    def score(
        quantity: Callable[[xr.Dataset], xr.DataArray],
        error: xr.DataArray,
        unit: str = "nats",
        least: float = -np.inf,
        most: float = np.inf,
    ) -> Score:
        low, high = normal_interval(float(quantity(last)), float(error), least)
        return score_with_null(quantity, data, null, unit, interval=(low, min(most, high)))

    def kl_score(name: str) -> Score:
        return score(lambda d: d["kl"].sel(predictor=name), last["kl_error"].sel(predictor=name), least=0.0)

    if "best" not in data.attrs:
        missing = Score(None, "nats", reason=data.attrs["no_best"])
        lost = {"kl_best": missing, "excess_loss": missing}
        optimal = replace(missing, unit="probability")
    else:
        excess = score(lambda d: d["loss"] - d["best_loss"], last["excess_loss_error"])
        lost = {"kl_best": kl_score(data.attrs["best"]), "excess_loss": excess}
        optimal = Score(float(data["optimal_accuracy"]), "probability")
    progress = score(lambda d: 1 - d["left"], last["left_error"], "share of the way")
    if float(data["gap"]) < MIN_GAP_NATS:
        why = f"the unigram is within {MIN_GAP_NATS:g} nats of the best predictor"
        progress = Score(None, progress.unit, reason=why)
    accuracy = score(lambda d: d["accuracy"], last["accuracy_error"], "probability", least=0.0, most=1.0)
    # The first three stand open in the report: they decide.
    return (
        {"nearest_predictor": Score(nearest(data)[0], "")}
        | lost
        | {"progress": progress}
        | {f"kl_{name}": kl_score(data.attrs[name]) for name in ("unigram", "bigram")}
        | {"kl_uniform": kl_score("uniform"), "accuracy": accuracy, "optimal_accuracy": optimal}
    )


def _is_at_chance(data: xr.Dataset) -> bool:
    """Whether the last model is uniform and right as often as chance, and sequences are enough to tell."""
    last = last_model(data)
    accuracy, error = float(last["accuracy"]), float(last["accuracy_error"])
    chance = 1 / last.attrs["n_states"]
    beyond = float(last["optimal_accuracy"]) - chance if "optimal_accuracy" in last else 1 - chance
    # Means of exact expectations have rounded.
    is_narrow = NORMAL_95 * error <= MAX_ERROR_SHARE * beyond + 1e-9
    # Three of its standard errors from chance is no longer chance.
    return nearest(data)[0] == "uniform" and is_narrow and abs(accuracy - chance) <= 3 * error + 1e-9


def verdict(data: xr.Dataset) -> str:
    """What it predicts like, in one sentence."""
    name, equals = nearest(data)
    last = last_model(data)
    distance = float(last["kl"].sel(predictor=name))
    others = last["kl"].drop_sel(predictor=[name, *equals])
    second = float(others.min()) if others.size else 0.0
    called = listed([name, *equals]) + (", which coincide here" if equals else "")
    accuracy = float(last["accuracy"])
    is_like = {
        True: "predicts like the",
        None: "may predict like the",
        False: "imitates no exact predictor closely; the nearest is the",
    }[imitates(last["kl"], last["kl_error"])]
    sentence = (
        f"{'At chance: it' if _is_at_chance(data) else 'It'} {is_like} {called}, {distance:.3g} nats away"
    )
    if others.size:
        other = others.idxmin("predictor").item()
        surely = second - distance > NORMAL_95 * float(last["further_error"].sel(predictor=other))
        sentence += f" (next: {other}, {second:.3g} nats{'' if surely else ', not surely further'})"
    sentence += f". Accuracy is {accuracy:.3f}"
    if "optimal_accuracy" in data:
        sentence += f" where {float(data['optimal_accuracy']):.3f} is possible"
    if floored := int(last["floored"].sel(predictor=name)):
        sentence += (
            f". {floored} possible next states have less than 1e-12 from it: its KL counts 1e-12 there"
        )
    return in_words(sentence) + "."


def figures(data: xr.Dataset) -> list[Figure]:
    """KL to each predictor, over steps and positions, and the transition matrix the model implies."""
    names = [in_words(str(name)) for name in data["predictor"].values]
    labels = [str(label) for label in data.attrs["labels"]]
    last = last_model(data)
    drawn = [
        Figure(
            "How far the model is from each exact predictor",
            "KL from the predictor to the model, mean over sequences and positions. Zero is imitation.",
            "plotly",
            bars(names, last["kl"].values, y_title="KL (nats)", lie=True),  # alike in every run
        ),
        *over_training(
            "KL over training",
            "When a line touches zero the model has that predictor.",
            data,
            dict(zip(names, data["kl"].values.T, strict=True)),
            "KL (nats)",
        ),
    ]
    if data.sizes["position"] > 1:
        caption = (
            "In-context predictors get better with every token they have seen."
            if data.attrs["redraws"]
            else "KL from each exact predictor to the model, where the sequence is that long."
        )
        series = dict(zip(names, last["kl_at"].values, strict=True))
        positions = data["position"].values.astype(float)
        figure = lines(positions, series, x_title="position", y_title="KL (nats)")
        drawn.append(Figure("KL at each position", caption, "plotly", figure))
    after = last["kl_after"].sel(predictor=data.attrs["bigram"]).values
    seen = np.flatnonzero(np.isfinite(after))
    before = str(data.attrs["state_before"])
    title = f"KL from the {in_words(data.attrs['bigram'])} after each {before}"
    caption = "A mean over the predictions that follow each state: where the model is wrong."
    by_state = bars([labels[i] for i in seen], after[seen], y_title="KL (nats)")
    drawn.append(Figure(title, caption, "plotly", by_state))
    if "kernel" in data:
        pair = matched(
            last["implied"].values,
            data["kernel"].values,
            labels,
            row_title=before,
            column_title="next state",
            value_title="probability",
            names=("the model", "the source"),
        )
        caption = f"Mean prediction after each {before}, beside P."
        drawn.append(Figure("The transition matrix, implied and true", caption, "plotly", pair))
    return drawn


FORMULAS = {
    "nearest_predictor": "the exact predictor with the smallest KL",
    "kl_uniform": "E[KL(1/K ‖ q)], q the model",
    "kl_unigram": "E[KL(unigram ‖ q)], q the model",
    "kl_bigram": "E[KL(bigram ‖ q)], q the model",
    "kl_best": "E[KL(p ‖ q)], p the Bayes-optimal prediction, q the model",
    "excess_loss": "E[−log q(next)] − E[−log p(next)], p the Bayes-optimal prediction",
    "progress": "1 − E[KL(p ‖ q)] / E[KL(p ‖ unigram)]: from the unigram's loss to the best",
    "accuracy": "how often the model's likeliest state comes next",
    "optimal_accuracy": "accuracy of the Bayes-optimal prediction",
}

probe = Probe(
    name="behaviour",
    question="Which exact predictor does the model imitate, and to how many nats?",
    cites="Predictors and KL over positions: Edelman et al. 2024 (arXiv 2402.11004), section 3",
    applies=always,
    with_bos=True,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formulas=FORMULAS,
    formula="KL from a predictor = E[Σⱼ p(j | context) log(p(j | context) / q(j | context))], p exact, q "
    "the model\n"
    "bigram p = P(current, ·) · unigram p = π · where each sequence has its own chain: (count of "
    "the transition + 1) / (count of the state + K)",
)
