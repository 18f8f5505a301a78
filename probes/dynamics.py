"""When did selection, the unigram and the bigram appear, and which came first?

Three measures of progress run from 0 to 1, and an event is the first kept step at which one of them is above
one half. *Unigram*: the share of what the exact unigram gains over the uniform law (in KL from the bigram to
the model, nats) that the model has gained. *Bigram*: the same from the unigram to the bigram. *Selection*:
the most attention any head gives to the parent. On one scale of nats, whoever has the bigram has the unigram:
a run that goes straight to the bigram passes both at once.

An event lies between two kept steps, and that is its interval. Event times have no distribution over fresh
models, which have not been trained: what is said of these is how many of them have it already.
"""

import numpy as np
import xarray as xr

from mechmarkov.curvature.gradients import gradient_norms
from mechmarkov.probe_names import registered
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.preconditions import parent_lag
from mechmarkov.probing.registry import load_probe
from mechmarkov.probing.score import Score
from mechmarkov.probing.trajectory import Event, first_time, nearest, score_trajectory, segments
from mechmarkov.report.figures import heatmap, lines
from mechmarkov.theory.kernel import kl

EVENTS = ("unigram", "selection", "bigram")
HALF = 0.5

# Predictors closer than this (nats) cannot be told apart in a run.
TOLD_APART = 0.01

# Probes whose scores are followed; those that do not apply are left out.
FOLLOWED = ("behaviour", "attention", "alignment", "induction", "program")

_BETWEEN_0_AND_1 = ("probability", "cosine", "share")
_MOST_PHASES = 5


def applies(subject: Subject) -> str | None:
    """Where there is more than one step: an event needs a before and an after."""
    if subject.axis == "step" and len(subject.coordinates) < 2:
        if subject.run.n_steps < 2:
            return "the run has kept one step: when things happened cannot be seen"
        return "one step is probed: when things happened needs more, as with steps='all'"
    return None


def measure(subject: Subject) -> xr.Dataset:
    """Progress, phases, gradients and every followed score, at each step.

    Returns:
        `progress` [axis, event]: from 0 to 1 (unigram, bigram: share of nats; selection: probability); NaN
        for an event that has no meaning here, for which attrs hold `no_<event>`;
        and for the steps of a run `nearest` [step]: the index in `predictor` of the nearest one;
        `kl` [step, predictor] (nats), from `behaviour`;
        `gradient` [step] (nats per unit of parameter) and `scaled_gradient` [step]: over its largest;
        `phase_start`, `phase_stop`, `phase_predictor`, `plateau` [phase]: the runs of steps with one nearest
        predictor, and the step at which each is closest to it;
        `score_value` [step, score]: the scores of `behaviour`, `attention`, …, as "probe.score".
    """
    axis = subject.axis
    behaviour, attention = subject.result("behaviour"), subject.result("attention")
    progress, reasons = _progress(subject, behaviour, attention)
    data = xr.Dataset(
        {"progress": ((axis, "event"), progress, {"unit": "share"})},
        coords={axis: subject.coordinates, "event": list(EVENTS)},
        attrs={"source": subject.source.title(), **{f"no_{name}": why for name, why in reasons.items()}},
    )
    if axis == "seed":
        return data
    steps, distance = np.array(subject.coordinates), behaviour["kl"].values
    label = nearest(distance)
    gradient = gradient_norms(subject)
    phases = segments(label)
    plateau = [start + int(distance[start : stop + 1, label[start]].argmin()) for start, stop in phases]
    data = data.assign_coords(predictor=behaviour["predictor"].values)
    data["nearest"] = ("step", label, {"unit": "index of predictor"})
    data["kl"] = (("step", "predictor"), distance, {"unit": "nats"})
    data["gradient"] = ("step", gradient, {"unit": "nats per unit of parameter"})
    data["scaled_gradient"] = ("step", gradient / (gradient.max() or 1.0), {"unit": "share of the largest"})
    data["phase_start"] = ("phase", steps[[start for start, _ in phases]], {"unit": "step"})
    data["phase_stop"] = ("phase", steps[[stop for _, stop in phases]], {"unit": "step"})
    data["phase_predictor"] = ("phase", label[[start for start, _ in phases]], {"unit": "index of predictor"})
    data["plateau"] = ("phase", steps[plateau], {"unit": "step"})
    followed, units = _followed(subject)
    data["score_value"] = followed
    data.attrs["score_units"] = units
    return data


def _progress(
    subject: Subject, behaviour: xr.Dataset, attention: xr.Dataset
) -> tuple[np.ndarray, dict[str, str]]:
    """Progress towards each event `[member, event]`, and why some have none."""
    before = "in_context_" if subject.source.redraws else ""
    reasons: dict[str, str] = {}
    progress = np.full((len(subject.coordinates), len(EVENTS)), np.nan)
    exact = subject.exact
    bigram, unigram = f"{before}bigram", f"{before}unigram"
    if bigram in exact and unigram in exact:
        uniform = np.full_like(exact[bigram], 1 / subject.source.n_states)
        far = float(kl(exact[bigram], uniform).mean())
        near = float(kl(exact[bigram], exact[unigram]).mean())
        model = behaviour["kl"].sel(predictor=bigram).values
        if far - near > TOLD_APART:
            progress[:, 0] = (far - model) / (far - near)
        else:
            reasons["unigram"] = (
                "the unigram is no better than the uniform law here: it cannot be seen to come"
            )
        if near > TOLD_APART:
            progress[:, 2] = (near - model) / near
        else:
            reasons["bigram"] = "the bigram is no better than the unigram here: nothing to see come"
    else:
        reasons |= dict.fromkeys(("unigram", "bigram"), "the source has no such exact predictor")
    real = subject.batch.seen(subject.config.window)
    lag = parent_lag(subject.source)
    if lag not in attention["lag"].values[1:]:
        reasons["selection"] = f"no prediction has a token at lag {lag}, where the source has the parent"
    elif real.stop - real.start > 1:
        progress[:, 1] = attention["lag_mass"].sel(lag=lag).max(("layer", "head")).values
    else:
        reasons["selection"] = "there is one token to attend to: nothing to select"
    return progress, reasons


def _followed(subject: Subject) -> tuple[xr.DataArray, list[str]]:
    """The scores of the followed probes at each step, and their units."""
    known = registered()
    parts: list[xr.DataArray] = []
    units: list[str] = []
    for name in FOLLOWED:
        probe = load_probe(name) if name in known else None
        if probe is not None and probe.applies(subject) is None:
            table, found = score_trajectory(probe, subject.result(name))
            parts.append(table.assign_coords(score=[f"{name}.{score}" for score in found]))
            units += found.values()
    return xr.concat(parts, dim="score"), units


def _events(data: xr.Dataset) -> dict[str, Event]:
    """The events that happened."""
    steps = data["step"].values
    found = {name: first_time(data["progress"].sel(event=name).values > HALF, steps) for name in EVENTS}
    return {name: event for name, event in found.items() if event is not None}


def _first(events: dict[str, Event]) -> list[str]:
    """The earliest; several where one pair of kept steps encloses them all."""
    earliest = min(event.step for event in events.values())
    return [name for name, event in events.items() if event.step == earliest]


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The event times, each with the two kept steps around it, and which came first."""
    events = _events(data)
    result: dict[str, Score] = {}
    for name in EVENTS:
        kind = "the interval is the two kept steps it lies between"
        if null is not None and f"no_{name}" not in data.attrs:
            have = null["progress"].sel(event=name).values > HALF
            kind = f"{have.sum()} of {have.size} fresh models have it; {kind}"
        if name in events:
            event = events[name]
            interval = (float(event.after), float(event.step))
            result[f"t_{name}"] = Score(event.step, "step", interval=interval, null_kind=kind)
        else:
            last = int(data["step"][-1])
            why = data.attrs.get(f"no_{name}", f"not in the probed steps, the last of which is {last}")
            result[f"t_{name}"] = Score(None, "step", null_kind=kind, reason=why)
    if events:
        result["first"] = Score(" and ".join(_first(events)), "")
    else:
        result["first"] = Score(None, "", reason="none of the events is in the probed steps")
    return result


def _when(event: Event) -> str:
    if event.after == event.step:
        return f"at step {event.step}, the first probed"
    return f"between steps {event.after} and {event.step}" + ("" if event.kept else " (lost again later)")


def verdict(data: xr.Dataset) -> str:
    """What came first, what followed, and the phases the run passed through."""
    events = _events(data)
    start, last = int(data["step"][0]), int(data["step"][-1])
    if events:
        first = _first(events)
        said = f"{' and '.join(first)} came first, {_when(events[first[0]])}"
        if len(first) > 1:
            said += f" ({'all' if len(first) > 2 else 'both'} within two kept steps)"
        later = sorted((name for name in events if name not in first), key=lambda name: events[name].step)
        said += "".join(f", then {name} {_when(events[name])}" for name in later)
        said = said[0].upper() + said[1:]
    else:
        said = f"Nothing happened between steps {start} and {last}"
    missing = [name for name in EVENTS if name not in events and f"no_{name}" not in data.attrs]
    if missing and events:
        said += f"; no {' and no '.join(missing)} by step {last}"
    return f"{said}; {_phases(data)}."


def _predictors(data: xr.Dataset) -> list[str]:
    names = (str(name) for name in data["predictor"].values)
    return [name.replace("in_context_", "in-context ").replace("_", " ") for name in names]


def _phases(data: xr.Dataset) -> str:
    names = _predictors(data)
    scaled = data["scaled_gradient"]
    parts = []
    for phase in range(data.sizes["phase"]):
        here = data.isel(phase=phase)
        start, stop, plateau = (int(here[name]) for name in ("phase_start", "phase_stop", "plateau"))
        when = f"step {start}" if start == stop else f"steps {start} to {stop}"
        slope = float(scaled.sel(step=plateau))
        parts.append(f"{names[int(here['phase_predictor'])]} ({when}, gradient {slope:.2g} of its largest)")
    if len(parts) > _MOST_PHASES:
        left = len(parts) - _MOST_PHASES
        parts = [*parts[: _MOST_PHASES - 1], f"{left} more phases", parts[-1]]
    return f"nearest predictor: {', '.join(parts)}"


def figures(data: xr.Dataset) -> list[Figure]:
    """Progress to each event, the phases, the gradient, and every followed score."""
    steps = data["step"].values.astype(float)
    seen = [name for name in EVENTS if np.isfinite(data["progress"].sel(event=name).values).any()]
    progress = {name: np.clip(data["progress"].sel(event=name).values, -0.1, 1.1) for name in seen}
    phases = (data["nearest"].values[None] == np.arange(data.sizes["predictor"])[:, None]).astype(float)
    found = [
        Figure(
            "What was learned when",
            "Share of the way to each event; it happens where a line crosses one half.",
            "plotly",
            lines(steps, progress, x_title="step", y_title="progress", references={"the event": HALF}),
        ),
        Figure(
            "Phases",
            "The exact predictor that the model is nearest to, at each kept step.",
            "plotly",
            heatmap(
                phases,
                _predictors(data),
                [str(step) for step in data["step"].values],
                column_title="step",
                value_title="nearest",
                limits=(0, 1),
            ).update_traces(showscale=False, texttemplate=None),
        ),
        Figure(
            "Gradient norm",
            "Over its largest: near a plateau it is small (Varre et al. 2025), and so it is at the end.",
            "plotly",
            lines(
                steps,
                {"gradient": np.where(data["scaled_gradient"] > 0, data["scaled_gradient"], np.nan)},
                x_title="step",
                y_title="share of the largest",
                log_y=True,
            ),
        ),
    ]
    units = list(data.attrs["score_units"])
    for title, kinds in (("between 0 and 1", _BETWEEN_0_AND_1), ("in nats", ("nats",))):
        chosen = [i for i, unit in enumerate(units) if unit in kinds]
        if chosen:
            series = {str(data["score"].values[i]): data["score_value"].values[:, i] for i in chosen}
            found.append(
                Figure(
                    f"Scores over training, {title}",
                    "The headline scores of the other probes, at each kept step.",
                    "plotly",
                    lines(steps, series, x_title="step", y_title=title.removeprefix("in "), markers=False),
                )
            )
    return found


probe = Probe(
    name="dynamics",
    question="When did selection, the unigram and the bigram appear, and which came first?",
    cites="Phases: Edelman et al. 2024 (arXiv 2402.11004); gradients on plateaus: Varre et al. 2025 "
    "(arXiv 2508.12837)",
    applies=applies,
    measure=measure,
    scores=scores,
    verdict=verdict,
    figures=figures,
    formula="progress to the bigram = (KL_unigram − KL(bigram ‖ model)) / KL_unigram, KL_unigram = "
    "KL(bigram ‖ unigram)\n"
    "progress to the unigram = the same from the uniform law to the unigram · to selection = the "
    "parent score\n"
    "t = the first kept step at which that progress is above ½",
)
