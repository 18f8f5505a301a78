"""The catalogue of ablations: every component, path, window and edit of the context, and its effect."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from mechmarkov.interventions.ablate import ablate_path
from mechmarkov.interventions.attention import limit_window
from mechmarkov.interventions.paths import paths
from mechmarkov.interventions.replace import Kind
from mechmarkov.interventions.tokens import SHUFFLES, shuffle_context, swap_parent
from mechmarkov.models.replay import replayed
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import model_axis, variables
from mechmarkov.probing.effects import (
    MEASURES,
    Truth,
    at_temperature,
    effects,
    last_apart,
    mean_by_position,
    model_chunks,
    positions_in_turn,
    predictions,
)
from mechmarkov.probing.names import in_words
from mechmarkov.probing.preconditions import has_one_parent, is_determined, parent_lag, predictor_of
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Predictor
from mechmarkov.theory.bootstrap import interval
from mechmarkov.theory.kernel import FLOOR
from mechmarkov.theory.temperature import best_temperature

from .components import Grid, of_many_components, of_nulls, ranked, ranked_effects
from .groups import groups_of, of_groups
from .joint import of_pairs, resampled_interval

# Every path is a forward pass for each kind: beyond these numbers only means, then only main components.
MAX_PATHS_ALL_KINDS = 40
MAX_PATHS = 64
MIN_SEQUENCES = 4
SAME_LAW = 1e-9  # probabilities that differ by less are equal, and rounded
SAME_PREDICTION = 1e-6  # and so a model's, which are float32


def measure(subject: Subject) -> xr.Dataset:
    """Effects of every intervention: with it, less without it, on the same sequences.

    All effects are in nats, over `measure`: the `loss` on the sampled next states, and the KL from the exact
    bigram and unigram (in context where the source redraws its chain). `*_low` and `*_high` are 95 %
    bootstrap intervals over sequences: more of them for the last model than for those before it.

    Returns:
        `clean` [axis, measure]: without any intervention;
        `effect` [axis, component, kind, measure]: a component's output replaced by zero, by its mean at each
        position, by that of another sequence ("resample"), or by that of another sequence with the same
        current token there ("same_token"); a head's attention made uniform or put on the parent. NaN where a
        kind is none for a component, or cannot change it, and for all kinds but means of the
        `kinds_left_out` components of least effect, where there are more than 24;
        `path_effect` [axis, path, path_kind, measure], with `sender` and `receiver`: the same in what one
        later component reads, and nowhere else; of models before the last, means and zeroed positions only;
        `window_effect` [axis, window, measure]: no head sees beyond that lag (1 is the parent), but for
        the beginning-of-sequence token;
        `shuffle_effect` [axis, shuffle, measure]: the context in another order, for the last prediction;
        `swap_kl` [axis, row] (nats), `swap_followed` [axis], `swap_followed_at` [axis, position]
        (probability): another parent (`of_parents`);
        `joint_effect`, `redundancy` [axis, pair], `direct_effect`, `self_repair` [axis, part]: what
        components do together (`of_pairs`);
        `group_effect` [axis, group], `in_group` [group, group_head]: what groups do (`of_groups`);
        `largest_low`, `largest_high` [axis] (nats): the interval of each model's largest effect.
        On null models only the `effect` of means, of the components that are ranked; where there are more
        than 16, only of those that may be a model's largest (`largest_effects`).

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.effect.sel(component="L0H0", kind="mean", measure="loss").round(1).values.tolist()
        [0.8]
    """
    if (n := len(subject.batch.tokens)) < MIN_SEQUENCES:
        raise ValueError(
            f"sequences is {n}, expected at least {MIN_SEQUENCES}: means are taken over the others"
        )
    parts = last_apart(subject)
    with ExitStack() as passes:  # what all interventions have in common is computed once
        for part, _ in parts:
            passes.enter_context(replayed(part.decoder))
        data = of_nulls(*parts[0]) if subject.axis == "seed" else catalogue(parts)
    return data.assign_attrs(
        source=subject.source.title(),
        objective=subject.objective.kind,
        sequences=len(parts[-1][1].tokens),
        bigram=in_words(predictor_of(subject.source, "bigram")),
    )


def _of_paths(subject: Subject, batch: Batch, importance: dict[str, float], *, is_last: bool) -> xr.Dataset:
    """`path_effect` [axis, path, path_kind, measure], with the `sender` and `receiver` of each path.

    Where there are very many paths, those between the components of most `importance`; `paths_left_out` says
    how many are not there. Of models before the last, whose paths only the circuit draws, only means.
    """
    everything = paths(subject.decoder)
    chosen = _main_paths(everything, importance) if len(everything) > MAX_PATHS else everything
    few = len(chosen) <= MAX_PATHS_ALL_KINDS
    kinds: tuple[Kind, ...] = ("zero", "mean", "resample") if few and is_last else ("mean",)
    if few and subject.objective.kind != "cross_entropy":  # the circuit is drawn from these
        kinds = (*kinds, "resample") if "resample" not in kinds else kinds
    cuts: Grid = {
        (f"{sender} → {receiver}", kind): partial(ablate_path, sender=sender, receiver=receiver, kind=kind)
        for sender, receiver in chosen
        for kind in (kinds if sender != "pos_embed" else ("zero",))
    }
    senders, receivers = (("path", list(ends)) for ends in zip(*chosen, strict=True))
    return (
        effects(subject, batch, cuts, ("path", "path_kind"), "path_effect")
        .reindex(path_kind=["zero", "mean", *["resample"] * few])
        .assign_coords(sender=senders, receiver=receivers)
        .assign_attrs(paths_left_out=len(everything) - len(chosen))
    )


def _main_paths(everything: Sequence[tuple[str, str]], importance: dict[str, float]) -> list[tuple[str, str]]:
    """The paths between as many of the most important components as the limit allows."""
    parts: set[str] = {"embed", "pos_embed", "logits"}
    # What each component tells the logits is there in any case: it shows what later ones make up for.
    to_logits = [path for path in everything if path[1] == "logits"][:MAX_PATHS]
    chosen = [path for path in everything if set(path) <= parts or path in to_logits][:MAX_PATHS]
    for name in sorted(importance, key=lambda name: -importance[name]):
        parts |= {name, f"{name}.Q", f"{name}.K", f"{name}.V"}
        more = [path for path in everything if set(path) <= parts or path in to_logits]
        if len(more) > MAX_PATHS:
            break
        chosen = more
    return chosen


def _of_windows(subject: Subject, batch: Batch) -> xr.Dataset:
    """`window_effect` [axis, window, measure]: no head sees beyond lag `window` (1 is the parent)."""
    length = batch.history.shape[1]
    lags = [1 << i for i in range(length.bit_length()) if 1 << i < length] or [1]
    masks: Grid = {
        (str(lag),): partial(limit_window, back=lag - 1 + batch.parent_lag, keep=batch.first) for lag in lags
    }
    return effects(subject, batch, masks, ("window",), "window_effect").assign_coords(window=lags)


def _of_orders(subject: Subject, batch: Batch) -> xr.Dataset:
    """`shuffle_effect` [axis, shuffle, measure] (nats): the last prediction, the context in another order.

    Judged by the truth of the unedited context.
    """
    last = Truth.of(subject, batch, batch.history).last()
    edited = (shuffle_context(batch.history, which) for which in SHUFFLES)
    tokens = [batch.tokens, *(batch.with_history(history) for history in edited)]
    read_last, changed = replace(batch, read=batch.read[-1:], known=batch.known[-1:]), []
    for chunk in model_chunks(subject, batch):
        runs = (predictions(subject, chunk.model, read_last, one) for one in tokens)
        judged = np.stack([last.judge(run) for run in runs], axis=1)
        changed.append(judged[:, 1:] - judged[:, :1])
    effect = np.concatenate(changed)
    low, high = interval(effect)
    by_order = {"shuffle_effect": effect.mean(-1), "shuffle_effect_low": low, "shuffle_effect_high": high}
    return xr.Dataset(
        variables("nats", (subject.axis, "shuffle", "measure"), **by_order),
        coords={subject.axis: subject.coordinates, "measure": list(MEASURES), "shuffle": list(SHUFFLES)},
    )


def of_parents(subject: Subject, batch: Batch) -> xr.Dataset:
    """Another parent, at one position of each sequence; the positions take turns over the sequences.

    The parent is the token that the next one depends on: the last known one, or that of a lagged source.

    Args:
        subject: The models: `Subject.of(run)`.
        batch: The sequences to edit.

    Returns:
        `swap_kl` [axis, row] (nats): with another parent, KL to the model from the exact law behind that
        parent ("swapped") and behind the true one ("original"), in the mean over sequences;
        `swap_followed` [axis] (probability): how often the other parent moves the prediction from the true
        parent's law towards its own, and nearer to its own, at the temperature that fits the true law best;
        half where the prediction stays as it is;
        `swap_followed_at` [axis, position], how many `swaps` [axis] there are, and of them the share
        `swaps_that_stay` [axis] after which the prediction stays as it is. Sequences whose two
        parents have one law tell nothing and are left out; NaN where all are.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
        >>> of_parents(subject, subject.batch).swap_followed.values.tolist()
        [1.0]
    """
    back = parent_lag(subject.source) - 1
    reads = torch.nonzero(batch.known >= back).flatten()
    if not len(reads):  # a context too short to hold a parent
        reads, back = torch.arange(len(batch.read)), 0
    at = reads[positions_in_turn(len(batch.tokens), len(reads))]
    every, history = torch.arange(len(at)), batch.history
    edited = swap_parent(history, batch.known[at] - back)
    rule = _law_of_parent(subject)
    both = (batch.in_context(rule.probabilities(one.numpy())) for one in (edited, history))
    laws = [torch.from_numpy(law)[every, at] for law in both]
    differs = ((laws[0] - laws[1]).abs() > SAME_LAW).any(-1).numpy()  # two parents may have one law
    by_chunk = []
    tokens = (batch.tokens, batch.with_history(edited))
    for chunk in model_chunks(subject, batch):
        runs = [predictions(subject, chunk.model, batch, one)[:, every, at] for one in tokens]
        nats = [_kl_of(law, runs[1]) for law in laws]
        nats += [_kl_of(law, run) for run in _at_best_temperature(runs, laws[1])[::-1] for law in laws]
        stays = (runs[1] - runs[0]).abs().amax(-1) < SAME_PREDICTION
        by_chunk.append(torch.stack([*nats, stays.double()], 1))
    apart = np.where(differs, torch.cat(by_chunk).numpy(), np.nan)
    kl, (new, old, new_before, old_before, stays) = apart[:, :2], apart[:, 2:].swapaxes(0, 1)
    # Not only by `new`: a blunter prediction is nearer to both laws.
    towards = new - old < new_before - old_before
    followed = np.where(stays == 1, 0.5, towards & (new < old)) + 0 * new
    where = at.numpy()[differs]
    by_position = mean_by_position(followed[:, differs], where, len(batch.read))
    axis, some = subject.axis, differs.any()
    return xr.Dataset(
        variables("nats", (axis, "row"), swap_kl=kl[..., differs].mean(-1) if some else kl.mean(-1))
        | variables("probability", axis, swap_followed=followed[:, differs if some else slice(None)].mean(-1))
        | variables("probability", (axis, "position"), swap_followed_at=by_position)
        | variables("predictions", axis, swaps=np.full(len(followed), differs.sum()))
        | variables("share", axis, swaps_that_stay=stays[:, differs if some else slice(None)].mean(-1)),
        coords={axis: subject.coordinates, "row": ["swapped", "original"], "position": batch.read.numpy()},
    )


def _kl_of(
    law: Float[Tensor, "sequence state"], run: Float[Tensor, "member sequence state"]
) -> Float[Tensor, "member sequence"]:
    return torch.special.xlogy(law, law).sum(-1) - (law * run.clamp_min(FLOOR).log()).sum(-1)


def _at_best_temperature(
    runs: Sequence[Float[Tensor, "member sequence state"]], law: Float[Tensor, "sequence state"]
) -> list[Float[Tensor, "member sequence state"]]:
    """Predictions at the temperature at which the first of them are nearest to a law, each member's own.

    Of nearly uniform predictions, whichever law is nearer says little: that is the blunter one.
    """
    heat = [best_temperature(law[:, None].numpy(), one[:, None].numpy())[0] for one in runs[0].double()]
    power = 1 / torch.tensor(heat, dtype=torch.float64)[:, None, None]
    return [at_temperature(run.double(), power) for run in runs]


def _law_of_parent(subject: Subject) -> Predictor:
    """The exact predictor that reads the parent: the bigram, or that of a lagged source."""
    best, source = subject.source.best(), subject.source
    if parent_lag(source) > 1 and not isinstance(best, str):
        return best
    return source.predictors()[predictor_of(source, "bigram")]


def _direct_effects(data: xr.Dataset) -> dict[str, float]:
    """Returns what each component's direct path to the logits costs the last model, at its mean."""
    last = data["path_effect"].isel({model_axis(data): -1}).sel(measure="loss", path_kind="mean")
    to_logits = last[data["receiver"].values == "logits"].swap_dims(path="sender")
    return to_logits.fillna(0.0).to_series().to_dict()


@torch.no_grad()
def catalogue(parts: Sequence[tuple[Subject, Batch]]) -> xr.Dataset:
    """Everything that `measure` returns in one dataset, of models that have sequences of their own.

    Args:
        parts: Pairs of a subject and a batch of sequences, the last model in the last of them.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
        >>> catalogue([(subject, subject.batch)]).clean.dims
        ('step', 'measure')
    """
    axis = parts[-1][0].axis

    def of_all(measure_part: Callable[[Subject, Batch], xr.Dataset]) -> xr.Dataset:
        return joined([measure_part(*part) for part in parts])

    def joined(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
        return xr.concat(datasets, axis, data_vars="minimal", coords="minimal", compat="equals", join="exact")

    by_component = of_many_components(parts[-1][0], of_all)
    loss = by_component["effect"].isel({axis: -1}).sel(measure="loss")
    importance = loss.max("kind").to_series().to_dict()
    by_path = joined([_of_paths(*part, importance, is_last=part is parts[-1]) for part in parts])
    effect, direct = ranked(by_component), _direct_effects(by_path)
    importance = {name: max(value, direct.get(name, value)) for name, value in effect.items()}
    others = [by_path, of_all(_of_windows), of_all(_of_orders), of_all(of_parents)]
    others.append(of_all(partial(of_pairs, importance=importance)))
    others.append(of_all(partial(of_groups, groups=groups_of(*parts[-1]))))
    data = xr.merge([by_component, *(other.drop_vars("clean", errors="ignore") for other in others)])
    every = ranked_effects(data)
    ends = [
        data[f"effect_{end}"]
        .sel(component=every.idxmax("component"), kind="mean", measure="loss")
        .values.copy()
        for end in ("low", "high")
    ]
    largest = resampled_interval(*parts[-1], max(effect, key=effect.__getitem__), among=len(effect))
    for end, value in zip(ends, largest, strict=True):
        end[-1] = value
    one_parent = int(has_one_parent(parts[-1][0].source))
    data = data.assign(variables("nats", axis, largest_low=ends[0], largest_high=ends[1]))
    determined = int(is_determined(parts[-1][0].source))
    return data.assign_attrs(by_path.attrs | by_component.attrs, one_parent=one_parent, determined=determined)
