"""The catalogue of ablations: every component, path, window and edit of the context, and its effect."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

import torch
import xarray as xr

from mechmarkov.models.replay import replayed
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.effects import last_apart
from mechmarkov.probing.names import in_words
from mechmarkov.probing.preconditions import has_one_parent, is_determined, predictor_of
from mechmarkov.probing.subject import Subject

from .components import of_many_components, of_nulls, ranked, ranked_effects
from .context import of_orders, of_parents, of_windows
from .cut_paths import direct_effects, of_paths
from .groups import groups_of, of_groups
from .joint import of_pairs, resampled_interval

MIN_SEQUENCES = 4
MAX_REDRAWN = 6  # components: each takes ten passes


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
        kind does not fit a component, or cannot change it, and for all kinds but means of the
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

    by_component = _with_means_redrawn(of_many_components(parts[-1][0], of_all), *parts[-1])
    loss = by_component["effect"].isel({axis: -1}).sel(measure="loss")
    importance = loss.max("kind").to_series().to_dict()
    by_path = joined([of_paths(*part, importance, is_last=part is parts[-1]) for part in parts])
    effect, direct = ranked(by_component), direct_effects(by_path)
    importance = {name: max(value, direct.get(name, value)) for name, value in effect.items()}
    others = [by_path, of_all(of_windows), of_all(of_orders), of_all(of_parents)]
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


def _with_means_redrawn(data: xr.Dataset, subject: Subject, batch: Batch) -> xr.Dataset:
    """Effects of components, of which those that look needed have lower ends with their mean taken anew.

    A later part that reads a mean sharply amplifies its sampling error, which single sequences do not show.
    The part that has the largest effect has an interval of its own (`largest_low`).
    """
    at, effect = {"kind": "mean", "measure": "loss"}, ranked(data)
    lower = data["effect_low"].copy()
    ends = lower[-1].sel(at).to_series()
    order = sorted((name for name in effect if ends[name] > 0), key=lambda name: -effect[name])
    for name in order[1 : 1 + MAX_REDRAWN]:
        least = min(ends[name], resampled_interval(subject, batch, name)[0])
        lower.loc[{subject.axis: lower[subject.axis][-1], "component": name, **at}] = least
    return data.assign(effect_low=lower)
