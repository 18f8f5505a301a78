"""Progress towards each event, phases, gradients and the scores of other probes, at each step."""

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from mechmarkov.catalogue.probes import registered
from mechmarkov.probing.dataset import MIN_GAP_NATS, NORMAL_95, is_nearest, variables
from mechmarkov.probing.names import token_names
from mechmarkov.probing.preconditions import (
    best_of,
    has_one_parent,
    parent_lag,
    predictor_of,
    why_no_token_is_read,
    why_no_value_circuit,
)
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import ratio
from mechmarkov.theory.kernel import kl
from mechmarkov.utils import plugins

from .gradients import gradient_norms
from .trajectory import score_trajectory, segments

EVENTS = ("unigram", "selection", "bigram")
ROUNDING_NATS = 1e-9
BEST = "best"  # another event, where a better law than the bigram is known
# Events by attention, which is not measured by sequence.
NO_ERROR = ("selection", "previous_token_head", "graph_head")

# A law is there at another temperature if this share of its way is left at that one, and these nats at most.
MAX_LEFT, FAR_NATS = 0.1, 0.05

# Probes whose scores are followed; those that do not apply are left out.
FOLLOWED = ("behaviour", "attention", "alignment", "induction", "program")


def measure(subject: Subject) -> xr.Dataset:
    """Progress, phases, gradients and every followed score, at each step.

    Returns:
        `progress` [axis, event]: from 0 to 1 (unigram, bigram: share of nats; selection: of attention); NaN
        for an event that has no meaning here, for which attrs hold `no_<event>`;
        `progress_error` [axis, event]: its standard error over sequences (of selection, which is not measured
        by sequence, 0). `previous_token_head`, `induction_head` and `graph_head` are more events where
        sequences have a chain each: the best such head's attention, from uniform attention's to the ideal's;
        and for the steps of a run `nearest` [step]: the index in `predictor` of the nearest one;
        `kl` [step, predictor] (nats), from `behaviour`; `clear` [step]: whether every predictor but the
        nearest and its equals is clearly further away;
        `gradient` [step] (loss per unit of parameter) and `scaled_gradient` [step]: over its largest;
        `phase_start`, `phase_stop`, `phase_predictor`, `plateau` [phase]: the runs of steps with one nearest
        predictor, and the step at which each is closest to it; `phase_clear` [phase]: whether any of its
        steps is clear;
        `at_another_temperature` [event]: whether the last step has that law, but for how sure it is;
        `score_value` [step, score]: the scores of `behaviour`, `attention`, …, as "probe.score".
    """
    axis = subject.axis
    behaviour, attention = subject.result("behaviour"), subject.result("attention")
    events = [*EVENTS, BEST] if _better_law(subject) else list(EVENTS)
    progress, error, reasons = _progress(subject, attention, events)
    for name, (of_head, its_error) in _of_heads(subject).items():
        events = [*events, name]
        progress, error = np.column_stack([progress, of_head]), np.column_stack([error, its_error])
    data = xr.Dataset(
        variables("share", (axis, "event"), progress=progress, progress_error=error),
        coords={axis: subject.coordinates, "event": events},
        attrs={
            "source": subject.source.title(),
            "parent": token_names(parent_lag(subject.source), subject.batch.parent_lag, 0)[-1],
            **{f"no_{name}": why for name, why in reasons.items()},
        },
    )
    if axis == "seed":
        return data
    steps, distance = np.array(subject.coordinates), behaviour["kl"].values
    label = is_nearest(behaviour["kl"]).argmax("predictor").values  # the first of equals
    gradient = gradient_norms(subject)
    phases = segments(label)
    start, stop = np.array(phases).T
    clear = _is_clear(behaviour)
    plateau = [first + int(distance[first : last + 1, label[first]].argmin()) for first, last in phases]
    scores, units = _followed(subject)
    return (
        data.assign(
            variables("index of predictor", "step", nearest=label)
            | variables("nats", ("step", "predictor"), kl=distance)
            | variables("yes or no", "step", clear=clear)
            | variables(f"{subject.objective.unit} per unit of parameter", "step", gradient=gradient)
            | variables("share of the largest", "step", scaled_gradient=gradient / (gradient.max() or 1.0))
            | variables(
                "step", "phase", phase_start=steps[start], phase_stop=steps[stop], plateau=steps[plateau]
            )
            | variables("index of predictor", "phase", phase_predictor=label[start])
            | variables("yes or no", "phase", phase_clear=[clear[a : b + 1].any() for a, b in phases])
            | variables("yes or no", "event", at_another_temperature=_tempered(subject, behaviour, events))
            | {"score_value": scores}
        )
        .assign_coords(predictor=behaviour["predictor"].values)
        .assign_attrs(
            score_units=units,
            better_law=_better_law(subject) or "",
            simple_laws=["uniform", *(predictor_of(subject.source, name) for name in ("unigram", "bigram"))],
        )
    )


def _tempered(subject: Subject, behaviour: xr.Dataset, events: list[str]) -> list[bool]:
    """Returns whether the last step has each event's law, or a better one, at the temperature that fits."""
    left, heat = (behaviour[name].isel(step=-1) for name in ("kl_tempered", "temperature"))
    names = {"bigram": predictor_of(subject.source, "bigram"), BEST: _better_law(subject)}
    has = []
    for event, name in names.items():
        if event in events and name is not None:
            whole = kl(subject.exact[name], subject.exact[predictor_of(subject.source, "unigram")]).mean()
            near = float(left.sel(predictor=name)) < min(FAR_NATS, MAX_LEFT * whole)
            is_opposite = float(heat.sel(predictor=name)) < 0
            has.append(event if near and not is_opposite else "")
    as_good = {"bigram": ("bigram", BEST), "unigram": ("bigram", BEST), BEST: (BEST,)}
    return [bool({*as_good.get(event, ())} & {*has}) for event in events]


def _is_clear(behaviour: xr.Dataset) -> Bool[np.ndarray, " step"]:
    """Returns at which steps all but the nearest predictor and its equals are clearly further away."""
    kl = behaviour["kl"]
    further = kl - kl.min("predictor") > NORMAL_95 * behaviour["further_error"]
    apart = float(behaviour["gap"]) >= MIN_GAP_NATS  # otherwise which is nearer says nothing
    return (further | is_nearest(kl)).all("predictor").values & apart


def _better_law(subject: Subject) -> str | None:
    """The exact predictor that is better than unigram and bigram, where there is one."""
    source, best = subject.source, best_of(subject.source, subject.exact)
    return None if best in {predictor_of(source, name) for name in ("unigram", "bigram")} else best


def _progress(
    subject: Subject, attention: xr.Dataset, events: list[str]
) -> tuple[Float[np.ndarray, "member event"], Float[np.ndarray, "member event"], dict[str, str]]:
    """Progress towards each event and its standard error, and why some have none."""
    reasons: dict[str, str] = {}
    progress = np.full((len(subject.coordinates), len(events)), np.nan)
    error = np.zeros_like(progress)
    exact = subject.exact
    bigram, unigram = (predictor_of(subject.source, name) for name in ("bigram", "unigram"))
    uniform = np.full_like(exact[bigram], 1 / subject.source.n_states)
    ways = {"unigram": (exact[unigram], uniform), "bigram": (exact[bigram], exact[unigram])}
    if better := _better_law(subject):
        ways[BEST] = exact[better], exact[unigram]
    for name, (law, start) in ways.items():
        whole = kl(law, start).mean(-1)
        if whole.mean() > MIN_GAP_NATS:
            i = events.index(name)
            left = np.stack([kl(law, predicted).mean(-1) for predicted in subject.probabilities])
            progress[:, i], error[:, i] = ratio(whole - left, whole)
        else:
            before = "uniform law" if name == "unigram" else "unigram"
            called = "best law" if name == BEST else name
            much = "no" if whole.mean() < ROUNDING_NATS else "hardly"
            reasons[name] = f"the {called} is {much} better than the {before} here: it cannot be seen to come"
    # Whoever has the bigram has the unigram, and whoever has the best law has both.
    for name, better_one in (("bigram", BEST), ("unigram", "bigram"), ("unigram", BEST)):
        if name not in reasons and better_one in events:
            first, later = events.index(name), events.index(better_one)
            ahead = progress[:, later] > progress[:, first]
            progress[ahead, first], error[ahead, first] = progress[ahead, later], error[ahead, later]
    real = subject.batch.seen(subject.config.window)
    lag = parent_lag(subject.source)
    if not has_one_parent(subject.source):
        reasons["selection"] = "the next state depends on no single token: there is no parent to select"
    elif (why := why_no_token_is_read(subject.decoder)) is not None:
        reasons["selection"] = why
    elif lag not in attention["lag"].values[1:]:
        reasons["selection"] = f"no prediction has a token at lag {lag}, where the source has the parent"
    elif real.stop - real.start > 1:
        by_chance = float(attention["uniform_mass"].sel(lag=lag))
        most = attention["lag_mass"].sel(lag=lag).max(("layer", "head")).values
        progress[:, 1] = (most - by_chance) / (1 - by_chance)
    else:
        reasons["selection"] = "there is one token to attend to: nothing to select"
    return progress, error, reasons


def _of_heads(subject: Subject) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Progress of the best head of a circuit from uniform attention to the ideal, and its error, [axis] each.

    Of sources that draw a chain for each sequence: of a previous-token head, of an induction head, and of one
    that attends along the graph where there is a graph.
    """
    known, came = registered(), dict[str, tuple[np.ndarray, np.ndarray]]()
    # A state space has no attention of its own.
    if not subject.source.redraws or why_no_value_circuit(subject.decoder) is not None:
        return came
    applying = {name: plugins.load(name, Probe, known) for name in ("induction", "graph") if name in known}
    data = {name: subject.result(name) for name, probe in applying.items() if probe.applies(subject) is None}
    if (induction := data.get("induction")) is not None:
        came["previous_token_head"] = _from_uniform(induction["previous_token"], induction["previous_chance"])
        first = induction.isel(matched=0).stack(one=("layer", "head"))
        if (ideal := float(first["ideal"])) > 0:
            best = first.isel(one=first["induction"].argmax("one"))
            came["induction_head"] = best["induction"].values / ideal, best["induction_error"].values / ideal
    if (graph := data.get("graph")) is not None:
        came["graph_head"] = _from_uniform(graph["parent_attention"], graph.attrs["uniform"])
    return came


def _from_uniform(mass: xr.DataArray, chance: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best head's attention as a share of the way from uniform attention's, without its error."""
    progress = (mass.max(("layer", "head")).values - float(chance)) / (1 - float(chance))
    return progress, np.zeros_like(progress)


def _followed(subject: Subject) -> tuple[xr.DataArray, list[str]]:
    """The scores of the followed probes at each step, and their units."""
    known = registered()
    parts: list[xr.DataArray] = []
    units: list[str] = []
    for name in FOLLOWED:
        probe = plugins.load(name, Probe, known) if name in known else None
        if probe is not None and probe.applies(subject) is None:
            table, score_units = score_trajectory(probe, subject.result(name))
            parts.append(table.assign_coords(score=[f"{name}.{score}" for score in score_units]))
            units += score_units.values()
    return xr.concat(parts, dim="score"), units
