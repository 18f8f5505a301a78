"""When did selection, the unigram and the bigram appear, and which came first?

Three measures of progress run from 0 to 1, and an event is the first kept step at which one of them is above
one half. *Unigram*: the share of what the exact unigram gains over the uniform law (in KL from the bigram to
the model, nats) that the model has gained. *Bigram*: the same from the unigram to the bigram. *Selection*:
the most attention any head gives to the parent. On one scale of nats, whoever has the bigram has the unigram:
a run that goes straight to the bigram passes both at once.

An event lies between two kept steps, and that is its interval. Event times have no distribution over fresh
models, which have not been trained: what is said of these is how many of them have it already.
"""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.preconditions import in_words
from mechmarkov.probing.score import Score

from . import figures, measure
from .measure import EVENTS
from .trajectory import EVENT_PROGRESS, Event, first_time

MAX_PHASES_NAMED = 5


def applies(subject: Subject) -> str | None:
    """Where there is more than one step: an event needs a before and an after."""
    if subject.axis == "step" and len(subject.coordinates) < 2:
        if subject.run.n_steps < 2:
            return "the run has kept one step: when things happened cannot be seen"
        return "one step is probed: when things happened needs more, as with steps='all'"
    return None


def _events(data: xr.Dataset) -> dict[str, Event]:
    """The events that happened."""
    steps = data["step"].values
    found = {
        name: first_time(data["progress"].sel(event=name).values > EVENT_PROGRESS, steps) for name in EVENTS
    }
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
            have = null["progress"].sel(event=name).values > EVENT_PROGRESS
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


def _phases(data: xr.Dataset) -> str:
    names = [in_words(str(name)) for name in data["predictor"].values]
    phases = []
    for phase in (data.isel(phase=i) for i in range(data.sizes["phase"])):
        start, stop, plateau = (int(phase[name]) for name in ("phase_start", "phase_stop", "plateau"))
        when = f"step {start}" if start == stop else f"steps {start} to {stop}"
        slope = float(data["scaled_gradient"].sel(step=plateau))
        name = names[int(phase["phase_predictor"])]
        phases.append(f"{name} ({when}, gradient {slope:.2g} of its largest)")
    if len(phases) > MAX_PHASES_NAMED:
        left = len(phases) - MAX_PHASES_NAMED
        phases = [*phases[: MAX_PHASES_NAMED - 1], f"{left} more phases", phases[-1]]
    return f"nearest predictor: {', '.join(phases)}"


probe = Probe(
    name="dynamics",
    question="When did selection, the unigram and the bigram appear, and which came first?",
    cites="Phases: Edelman et al. 2024 (arXiv 2402.11004); gradients on plateaus: Varre et al. 2025 "
    "(arXiv 2508.12837)",
    applies=applies,
    measure=measure.measure,
    scores=scores,
    verdict=verdict,
    figures=figures.draw,
    formula="progress to the bigram = (KL_unigram − KL(bigram ‖ model)) / KL_unigram, KL_unigram = "
    "KL(bigram ‖ unigram)\n"
    "progress to the unigram = the same from the uniform law to the unigram · to selection = the "
    "parent score\n"
    "t = the first kept step at which that progress is above ½",
)
