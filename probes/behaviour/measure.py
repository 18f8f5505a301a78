"""KL from each exact predictor to the model, losses and accuracies, by position, state and temperature."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import xarray as xr
from einops import rearrange
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array

from mechmarkov.probing import Subject
from mechmarkov.probing.dataset import IMITATION_NATS, IMITATION_SHARE, Variables, variables
from mechmarkov.probing.preconditions import has_one_parent, is_determined, parent_lag, predictor_of
from mechmarkov.probing.rare_states import rare_states
from mechmarkov.sources import Stationary, Tokenised
from mechmarkov.theory.bootstrap import mean_after, ratio, standard_error
from mechmarkov.theory.kernel import FLOOR, kl
from mechmarkov.theory.temperature import best_temperature

from .contexts import after_pairs

# Predictions that a temperature is fitted to, of every sequence.
TEMPERED_PREDICTIONS = 4096
TEMPERED_OF_A_PLACE = 256  # likewise, after a state or at a position
MAX_CELLS = 2048  # states times positions


def measure(subject: Subject) -> xr.Dataset:
    """KL from each exact predictor to the model, losses and accuracies.

    A state of a fixed chain that is rare, and in fewer than 64 of the predictions, is measured in contexts of
    its own and weighted by its stationary probability (`rare_states`).

    Returns:
        `kl` and its standard error over sequences `kl_error` [axis, predictor] (nats);
        `floored` [axis, predictor]: how many probabilities the model gave below 1e-12 to what that predictor
        holds possible, so that its KL is the floor's;
        `further_error` [axis, predictor] (nats): the standard error of its KL less the smallest;
        `kl_at` [axis, predictor, position] and its standard error `kl_at_error` (nats);
        `temperature` [axis, predictor] at which the model is nearest to it, `kl_tempered` and its standard
        error `kl_tempered_error` [axis, predictor] (nats): KL there; not of null models;
        `temperature_after` and `kl_tempered_after` [axis, state_from, predictor] (nats): the same after each
        state, of the best law and the bigram, for three states or more of one chain, and likewise
        `temperature_at` and `kl_tempered_at` [axis, position, predictor]. NaN where it is the law as it is,
        and behind the first place at which it is the law at no temperature;
        `kl_cell` and its standard error `kl_cell_error` [axis, predictor, state_from, position] (nats): KL
        from the best law and the bigram after each state at each position, of one chain, where these are at
        most 2048; NaN where no two sequences have it; `kl_pair` and its standard error `kl_pair_error` [axis,
        predictor, state_before, state_from] (nats): KL after each pair of last tokens, of up to 16 states,
        which the share `share_pair` [state_before, state_from] of the predictions follows; `told_before`
        [axis, state_from] and `told_last` [axis, state_before] (nats): the largest KL of mean predictions
        after a pair from those after its later, or after its earlier state;
        `loss`, `best_loss` and the standard error of their difference `excess_loss_error` [axis], and
        `predictor_loss` [predictor] (nats, on the sampled next states);
        `excess` [axis], `gap` and, with a Bayes-optimal predictor, `predictor_excess` [predictor] (nats):
        what the model, the unigram and each exact predictor lose to the best one, expected
        (without a Bayes-optimal one: on the sampled next states, to the predictor with the lowest loss);
        `left` and its standard error `left_error` [axis]: the first over the second;
        `accuracy`, `accuracy_error` and `optimal_accuracy` [axis] (probability: exact expectations where the
        Bayes-optimal predictor has a closed form, frequencies otherwise);
        `implied` [axis, state_from, state_to] (probability): the mean prediction after each parent state;
        `kl_after` and its standard error `kl_after_error` [axis, state_from, predictor] (nats), `loss_after`
        [axis, state_from] (nats) and `accuracy_after` [axis, state_from] (probability): the same scores after
        each parent state, which the share `share_after` [state_from] of the predictions follows;
        `varies_after` [state_from, predictor] (nats): KL of each predictor from its mean after a state: 0
        where no other token tells more;
        `kernel` [state_from, state_to] (probability): P, for a source with one chain;
        of tokens `loss_per_symbol` [axis], its standard error and `least_per_symbol` (nats a symbol of their
        source; NaN where its entropy rate has no closed form).

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.kl.sel(predictor=["unigram", "bigram"]).round(1).values.tolist()  # nats, at its one step
        [[0.5, 0.2]]
    """
    axis, source, batch = subject.axis, subject.source, subject.batch
    model, exact = subject.probabilities.astype(np.float64), subject.exact
    onehot = np.eye(source.n_states)[batch.targets.numpy()]
    best = source.best()
    truth = onehot if isinstance(best, str) else exact[best.name]
    # [axis, predictor, sequence, read]
    per_sequence = np.stack([[kl(p, q) for p in exact.values()] for q in model])
    right = _right(model, truth)
    predictor_right = np.array([_right(p, truth).mean() for p in exact.values()])
    losses, of_each = _losses(model, onehot), np.stack([_losses(p, onehot) for p in exact.values()])
    floored = np.array([[((q < FLOOR) & (p > 0)).sum() for p in exact.values()] for q in model])
    accuracy, accuracy_error = right.mean((1, 2)), standard_error(right.mean(-1))
    rare = _rare(subject)
    kl_of_sequence = (per_sequence * rare.common).mean(-1) + rare.kl[..., None]
    error = np.hypot(standard_error(kl_of_sequence), rare.kl_error)
    smallest = kl_of_sequence.mean(-1).argmin(-1)
    further = kl_of_sequence - kl_of_sequence[np.arange(len(model)), smallest][:, None]
    unigram = [*exact].index(predictor_of(source, "unigram"))
    if isinstance(best, str):
        lowest = of_each[of_each.mean((1, 2)).argmin()]
        excess, gap = (losses - lowest).mean(-1), (of_each[unigram] - lowest).mean(-1)
    else:
        at_best = [*exact].index(best.name)
        excess = kl_of_sequence[:, at_best]
        gap = (kl(truth, [*exact.values()][unigram]) * rare.common).mean(-1) + rare.gaps[unigram]
    left, left_error = ratio(excess, gap) if gap.any() else np.full((2, len(model)), np.nan)
    if not isinstance(best, str) and gap.any():
        left_error = np.hypot(left_error, rare.kl_error[:, at_best] / gap.mean())
    per_predictor, after = (axis, "predictor"), (axis, "state_from")
    before_is_parent = has_one_parent(source) and parent_lag(source) == 1
    data = xr.Dataset(
        variables("nats", per_predictor, kl=kl_of_sequence.mean(-1), kl_error=error)
        | variables("nats", per_predictor, further_error=standard_error(further))
        | variables("probabilities", per_predictor, floored=floored)
        | variables(
            "nats",
            (*per_predictor, "position"),
            kl_at=per_sequence.mean(-2),
            kl_at_error=standard_error(per_sequence.swapaxes(-1, -2)),
        )
        | variables("nats", axis, loss=losses.mean((1, 2)))
        | variables("nats", axis, excess=excess.mean(-1))
        | variables("nats", (), gap=gap.mean())
        | variables("share", axis, left=left, left_error=left_error)
        | variables("nats", "predictor", predictor_loss=of_each.mean((1, 2)))
        | variables("probability", axis, accuracy=accuracy, accuracy_error=accuracy_error)
        | variables("probability", "predictor", predictor_accuracy=predictor_right)
        | variables("probability", (*after, "state_to"), implied=_after(subject, model))
        | _after_states(subject, per_sequence, rare)
        | variables("share", "state_from", share_after=_shares_after(subject))
        | variables("nats", ("state_from", "predictor"), varies_after=_varies_after(subject))
        | variables("nats", after, loss_after=_after(subject, losses[..., None])[..., 0])
        | variables("probability", after, accuracy_after=_after(subject, right[..., None])[..., 0]),
        coords={axis: subject.coordinates, "predictor": list(exact), "position": batch.read.numpy()},
        attrs={
            "source": source.title(),
            "n_states": source.n_states,
            "labels": list(source.labels),
            "redraws": int(source.redraws),
            "determined": int(is_determined(source)),
            "sequences": len(onehot),
            "unigram": predictor_of(source, "unigram"),
            "bigram": predictor_of(source, "bigram"),
            "objective": subject.objective.kind,
            "state_before": "parent state" if before_is_parent else "last state",
            # A lone checkpoint from elsewhere has step 0 where its step is not known.
            "starts_untrained": int(subject.run.recipe is not None or subject.run.n_steps > 1),
        },
    )
    if axis == "step":
        data = data.assign(_tempered(subject, model, exact) | _cells(subject, per_sequence, list(exact)))
        data = data.assign(after_pairs(subject, per_sequence))
    if isinstance(source, Tokenised):
        data = data.assign(_per_symbol(source, axis, losses, batch.targets.numpy()))
    P = getattr(source, "P", None)
    if P is not None:
        data = data.assign(variables("probability", ("state_from", "state_to"), kernel=np.array(P)))
    if isinstance(best, str):
        return data.assign_attrs(no_best=best)
    best_losses = _losses(truth, onehot)
    above = np.array([(kl(truth, p) * rare.common).mean() for p in exact.values()]) + rare.gaps
    excess_error = standard_error((losses - best_losses).mean(-1))
    return data.assign(
        variables("nats", (), best_loss=best_losses.mean())
        | variables("nats", "predictor", predictor_excess=above)
        | variables("nats", axis, excess_loss_error=excess_error)
        | variables("probability", (), optimal_accuracy=truth.max(-1).mean())
    ).assign_attrs(best=best.name)


def _right(
    predicted: Float[np.ndarray, "*many state"], truth: Float[np.ndarray, "*some state"]
) -> Float[np.ndarray, "*many"]:
    """Returns how often the likeliest state is the next one (probability); ties are drawn among."""
    top = predicted >= predicted.max(-1, keepdims=True)
    return ((top / top.sum(-1, keepdims=True)) * truth).sum(-1)


def _per_symbol(
    source: Tokenised,
    axis: str,
    losses: Float[np.ndarray, "member batch read"],
    tokens: Int[np.ndarray, "batch read"],
) -> Variables:
    """Losses of models of tokens on each symbol of the source, and the least that can be lost."""
    symbols = np.array([len(label) for label in source.labels])[tokens].sum(-1)
    value, error = ratio(losses.sum(-1), symbols)
    least = getattr(source, "symbol_entropy_rate", np.nan)  # not known of every source
    unit = "nats a symbol"
    return variables(unit, axis, loss_per_symbol=value, loss_per_symbol_error=error) | variables(
        unit, (), least_per_symbol=least
    )


@dataclass(frozen=True, eq=False)
class _Rare:
    """The part of states that the batch shows too rarely in means over it, weighted by `pi` (nats).

    Attributes:
        common: Whether a prediction of the batch counts, `[batch, read]`.
        kl: What the rare states add to KL from each predictor, and its standard error.
        gaps: What they add to KL(best ‖ each predictor).
        after: KL after each rare state, and its standard error.
        states: The rare states.
    """

    common: Bool[np.ndarray, "batch read"]
    kl: Float[np.ndarray, "member predictor"]
    kl_error: Float[np.ndarray, "member predictor"]
    gaps: Float[np.ndarray, " predictor"]
    after: Float[np.ndarray, "two member predictor rare"] | None = None
    states: Int[np.ndarray, " rare"] | None = None


def _rare(subject: Subject) -> _Rare:
    rare, size = rare_states(subject), (len(subject.coordinates), len(subject.exact))
    if rare is None:
        nothing = np.zeros(size)
        return _Rare(np.ones(subject.batch.parents.shape, dtype=bool), nothing, nothing, nothing[0])
    nats = np.stack([[kl(p, q) for p in rare.exact.values()] for q in rare.probabilities])
    mean, error = nats.mean(-1), standard_error(nats)  # [member, predictor, rare]
    best, gaps = subject.source.best(), np.zeros(size[1])
    if not isinstance(best, str):
        gaps = np.array([kl(rare.exact[best.name], p).mean(-1) @ rare.pi for p in rare.exact.values()])
    total_error = np.sqrt((error * rare.pi) ** 2 @ np.ones(len(rare.pi)))
    return _Rare(rare.common, mean @ rare.pi, total_error, gaps, np.stack([mean, error]), rare.states)


def _after_states(
    subject: Subject, nats: Float[np.ndarray, "member predictor batch read"], rare: _Rare
) -> Variables:
    """KL after each parent state and its standard error."""
    parents, n = subject.batch.parents.numpy(), subject.source.n_states
    each = [[mean_after(parents, one, n) for one in member] for member in nats]
    values = np.moveaxis(np.array(each), 2, 0)  # [mean and error, member, predictor, state]
    if rare.after is not None:
        values[..., rare.states] = rare.after
    mean, error = values.swapaxes(-1, -2)
    axes = (subject.axis, "state_from", "predictor")
    return variables("nats", axes, kl_after=mean, kl_after_error=error)


def _varies_after(subject: Subject) -> Float[np.ndarray, "state_from predictor"]:
    """Returns how far each exact predictor is from its mean after each state, in nats."""
    parents, n = subject.batch.parents.numpy(), subject.source.n_states
    rows = (_after(subject, law[None])[0] for law in subject.exact.values())
    laws = zip(subject.exact.values(), rows, strict=True)
    return np.stack([mean_after(parents, kl(law, row[parents]), n)[0] for law, row in laws], axis=-1)


def _tempered(
    subject: Subject,
    model: Float[np.ndarray, "member batch read state"],
    exact: dict[str, Float[np.ndarray, "batch read state"]],
) -> Variables:
    """The best temperature next to each exact predictor and KL there, on as many predictions as tell it."""
    reads = slice(None, None, max(1, model.shape[1] * model.shape[2] // TEMPERED_PREDICTIONS))
    fitted = []
    for q in model[:, :, reads]:
        fits = [best_temperature(p[:, reads], q, opposite=True) for p in exact.values()]
        fitted.append([(t, nats.mean(), standard_error(nats)) for t, nats in fits])
    temperature, nats, error = np.moveaxis(np.array(fitted, dtype=float), -1, 0)
    axes = (subject.axis, "predictor")
    return (
        variables("temperature", axes, temperature=temperature)
        | variables("nats", axes, kl_tempered=nats, kl_tempered_error=error)
        | _tempered_somewhere(subject, model, exact)
    )


def _tempered_somewhere(
    subject: Subject,
    model: Float[np.ndarray, "member batch read state"],
    exact: dict[str, Float[np.ndarray, "batch read state"]],
) -> Variables:
    """The best temperatures after each state and at each position, and KL there, of the laws that are asked.

    Of two states each row is at some temperature the law's, or its opposite's: these say nothing.
    """
    n, parents = subject.source.n_states, subject.batch.parents.numpy()
    if n < 3 or not isinstance(subject.source, Stationary):
        return {}
    asked = _asked(subject)
    each = np.broadcast_to(np.arange(parents.shape[1]), parents.shape)
    found: Variables = {}
    for axis, where, size, name in (
        ("state_from", parents, n, "after"),
        ("position", each, len(each[0]), "at"),
    ):
        fits = np.full((2, len(model), size, len(exact)), np.nan)
        for member, (i, law) in product(range(len(model)), enumerate(exact)):
            if law in asked:
                places = (np.flatnonzero(where == place)[:TEMPERED_OF_A_PLACE] for place in range(size))
                p, q = (x.reshape(-1, n) for x in (exact[law], model[member]))
                fits[:, member, :, i] = _fits(p, q, places)
        axes = (subject.axis, axis, "predictor")
        found |= variables("temperature", axes, **{f"temperature_{name}": fits[0]})
        found |= variables("nats", axes, **{f"kl_tempered_{name}": fits[1]})
    return found


def _cells(
    subject: Subject, nats: Float[np.ndarray, "member predictor batch read"], laws: list[str]
) -> Variables:
    """KL after each parent state at each position, of the laws that are asked."""
    n, parents = subject.source.n_states, subject.batch.parents.numpy()
    size = n * parents.shape[1]
    if size > MAX_CELLS or not isinstance(subject.source, Stationary):
        return {}
    cells = parents * parents.shape[1] + np.arange(parents.shape[1])
    mean, error = np.full((2, *nats.shape[:2], size), np.nan)
    for member, (i, law) in product(range(len(nats)), enumerate(laws)):
        if law in _asked(subject):
            mean[member, i], error[member, i] = mean_after(cells, nats[member, i], size)
    known, shape = np.isfinite(error), (*nats.shape[:2], n, parents.shape[1])
    axes = (subject.axis, "predictor", "state_from", "position")
    values = {"kl_cell": np.where(known, mean, np.nan), "kl_cell_error": np.where(known, error, np.nan)}
    return variables("nats", axes, **{name: value.reshape(shape) for name, value in values.items()})


def _asked(subject: Subject) -> set[str]:
    """Returns the laws that are asked place by place: the best one and the bigram."""
    return {getattr(subject.source.best(), "name", ""), predictor_of(subject.source, "bigram")}


def _fits(
    p: Float[np.ndarray, "prediction state"],
    q: Float[np.ndarray, "prediction state"],
    places: Iterable[Int[np.ndarray, " some"]],
) -> Float[np.ndarray, "fit place"]:
    """Temperatures and KL there of places where q is not p, up to the first that is p at none; else NaN."""
    fits: list[tuple[float, float]] = []
    is_p = True  # at some temperature, so far
    for there in places:
        heat, left = np.nan, np.nan
        if is_p and len(there) and (own := kl(p[there], q[there]).mean()) > IMITATION_NATS:
            heat, nats = best_temperature(p[there][:, None], q[there][:, None])
            left = float(nats.mean())
            is_p = left < IMITATION_SHARE * own
        fits.append((heat, left))
    return np.array(fits).T


def _losses(q: np.ndarray, onehot: np.ndarray) -> np.ndarray:
    """Cross-entropies (nats) of probabilities `[.., sequence, read, state]` on the states that came."""
    return np.asarray(-np.log(np.maximum((q * onehot).sum(-1), FLOOR)))


def _shares_after(subject: Subject) -> np.ndarray:
    """Returns which share of predictions comes after each parent state: `pi` where there is one chain."""
    if isinstance(subject.source, Stationary):
        return np.array(subject.source.pi)
    parents = subject.batch.parents.numpy().ravel()
    return np.bincount(parents, minlength=subject.source.n_states) / parents.size


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
