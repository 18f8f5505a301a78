"""Effects of components: of every kind of ablation, of means only, and of those that may be the largest."""

from collections.abc import Callable
from functools import partial

import xarray as xr

from mechmarkov.interventions.ablate import ablate
from mechmarkov.interventions.attention import override_attention
from mechmarkov.interventions.replace import KINDS
from mechmarkov.models.components import component_names, head_index
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.effects import Intervention, effects
from mechmarkov.probing.subject import Subject

from .screening import largest_effects

MAX_ALL_KINDS = 24  # components of which every kind is tried, and of more only the main ones
MAIN = 12
MAX_NULL_COMPONENTS = 16  # that are all ablated in null models, and of more those that may be the largest

# Ablating the input leaves nothing to any model, and what is the same for all inputs has no mean to fall to.
NOT_RANKED = ("embed", "pos_embed", "bias")
ATTENTION_KINDS = ("uniform", "parent")  # that a head's attention is put to

Grid = dict[tuple[str, ...], Intervention]
OfAll = Callable[[Callable[[Subject, Batch], xr.Dataset]], xr.Dataset]


def ranked_effects(data: xr.Dataset) -> xr.DataArray:
    """Effects on the loss (nats) of putting components at their mean, [axis, component].

    Args:
        data: What `measure` returned; embeddings and bias, which nothing stands in for, are left out.
    """
    ranked = [name for name in data["component"].values if name not in NOT_RANKED]
    return data["effect"].sel(kind="mean", measure="loss", component=ranked)


def ranked(data: xr.Dataset) -> dict[str, float]:
    """Returns by how much each component's mean raises the last model's loss (nats), by its name.

    Args:
        data: What `measure` returned.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> effects = ranked(effects_of_means(subject, subject.batch))
        >>> [name for name, nats in effects.items() if nats > 0.1]
        ['L0H1', 'L1H0']
    """
    return ranked_effects(data)[-1].to_series().to_dict()


def _component_names(subject: Subject) -> list[str]:
    """The components of a run's models; behind a query token no state is on the direct path."""
    names = component_names(subject.config)
    return [name for name in names if name != "direct" or not subject.objective.query]


def effects_of_means(subject: Subject, batch: Batch) -> xr.Dataset:
    """`effect` [axis, component, kind, measure] (nats) of means, for the components that the headline ranks.

    Args:
        subject: The models: `Subject.of(run)`.
        batch: The sequences that losses and means are over.
    """
    ranked = [name for name in _component_names(subject) if name not in NOT_RANKED]
    grid: Grid = {(name, "mean"): partial(ablate, component=name, kind="mean") for name in ranked}
    return effects(subject, batch, grid, ("component", "kind"), "effect")


def of_nulls(subject: Subject, batch: Batch) -> xr.Dataset:
    """The effects of means that say how large a fresh model's largest is."""
    names = [name for name in _component_names(subject) if name not in NOT_RANKED]
    # To first order the direct path is a sum, and behind norms it is none.
    few = len(names) <= MAX_NULL_COMPONENTS or not subject.config.norm_first
    return effects_of_means(subject, batch) if few else largest_effects(subject, batch, names)


def of_components(
    subject: Subject, batch: Batch, chosen: Callable[[str, str], bool] = lambda name, kind: True
) -> xr.Dataset:
    """`effect` [axis, component, kind, measure] (nats) of every kind of ablation of every component.

    Args:
        subject: The models: `Subject.of(run)`.
        batch: The sequences that losses and means are over.
        chosen: Whether a component is ablated in a way; by default every one is in all that it can be.

    Returns:
        `clean` [axis, measure] and `effect` with `effect_low` and `effect_high`, as in `measure`.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
        >>> of_components(subject, subject.batch).effect.sel(component="L0H0", measure="loss").dims
        ('step', 'kind')
    """
    grid: Grid = {}
    for name in _component_names(subject):
        for kind in KINDS:
            if name in ("pos_embed", "bias") and kind != "zero":
                continue  # the same in all sequences
            if name in ("embed", "direct") and kind == "same_token":
                continue  # the embedding of the same token is the same
            grid[name, kind] = partial(ablate, component=name, kind=kind)
        for to in ATTENTION_KINDS if head_index(name) is not None else ():
            grid[name, to] = partial(override_attention, heads=name, to=to, parent_lag=batch.parent_lag)
    grid = {way: one for way, one in grid.items() if chosen(*way)}
    return effects(subject, batch, grid, ("component", "kind"), "effect")


def of_many_components(subject: Subject, of_all: OfAll) -> xr.Dataset:
    """Returns what `of_components` does; of very many components all kinds only of the main ones.

    `kinds_left_out` says how many the others are.
    """
    names = _component_names(subject)
    if len(names) <= MAX_ALL_KINDS:
        return of_all(of_components).assign_attrs(kinds_left_out=0)
    # Of a model trained on scores, what it relies on is told by other sequences' values.
    always = ("mean",) if subject.objective.kind == "cross_entropy" else ("mean", "resample")
    means = of_all(partial(of_components, chosen=lambda name, kind: kind in always))
    worth = ranked(means)
    main = sorted(worth, key=lambda name: -abs(worth[name]))[:MAIN]
    others = of_all(
        partial(
            of_components,
            chosen=lambda name, kind: kind not in always and name in (*main, *NOT_RANKED),
        )
    )
    data = means.combine_first(others).reindex(component=names, kind=[*KINDS, *ATTENTION_KINDS])
    return data.assign_attrs(kinds_left_out=len(worth) - len(main))
