"""When did selection, the unigram and the bigram appear, and which came first?

Measures of progress run from 0 to 1, and an event is the first kept step at which one of them is above one
half. *Unigram*: how much nearer to the exact unigram the model is than the uniform law (KL in nats, as a
share). *Bigram*: the same from the unigram to the bigram. *Best*: the same to the best law, if one is known
that is better than both. *Selection*: the most attention any head gives to the parent, as a share of the way
from uniform attention to all of it. Whoever has the bigram has the unigram, and whoever has the best law has
both: a run that goes straight to the bigram, and never predicts like the unigram, passes both at once.

An event lies between two kept steps. Its interval goes from the last kept step at which it surely has not
happened to the first at which it surely has, by the sampling error of its progress. The error of selection is
not known, as attention is not measured by sequence. What is there at the first probed step was not seen to
come, and is never called first. Event times have no distribution over fresh models, which have not been
trained: what is said of these is how many of them have it already.
"""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import NORMAL_95
from mechmarkov.probing.preconditions import in_words
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import listed

from . import figures, measure
from .measure import BEST
from .trajectory import EVENT_PROGRESS, Event, first_time

MAX_PHASES_NAMED = 5


def applies(subject: Subject) -> str | None:
    """Where there is more than one step: an event needs a before and an after."""
    if subject.axis == "step" and len(subject.coordinates) < 2:
        if subject.run.n_steps < 2:
            return "the run has kept one step: when things happened cannot be seen"
        return (
            "one step is probed, and when things happened needs more: --steps all, or steps='all' in Python"
        )
    return None


def _events(data: xr.Dataset) -> dict[str, Event]:
    """The events that happened."""
    steps, half_width = data["step"].values, NORMAL_95 * data["progress_error"].values
    found = zip(data["event"].values.tolist(), data["progress"].values.T, half_width.T, strict=True)
    events = {name: first_time(progress, half, steps) for name, progress, half in found}
    return {name: event for name, event in events.items() if event is not None}


def _first(events: dict[str, Event]) -> list[str]:
    """The earliest that was seen to come; several where their intervals overlap."""
    came = {name: event for name, event in events.items() if not event.from_start}
    earliest = min((event.by for event in came.values()), default=0)
    return [name for name, event in came.items() if event.after < earliest]


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The event times, each with the two kept steps around it, and which came first."""
    events = _events(data)
    result: dict[str, Score] = {}
    for name in data["event"].values.tolist():
        error = (
            "without a sampling error" if name == "selection" else "with the sampling error of its progress"
        )
        kind = f"the interval is the kept steps it lies between, {error}"
        if null is not None and f"no_{name}" not in data.attrs:
            have = null["progress"].sel(event=name).values > EVENT_PROGRESS
            kind = f"{have.sum()} of {have.size} fresh models have it; {kind}"
        if event := events.get(name):
            score = Score(event.step, "step", interval=(event.after, event.by), null_kind=kind)
        else:
            last = int(data["step"][-1])
            why = data.attrs.get(f"no_{name}", f"not in the probed steps, the last of which is {last}")
            score = Score(None, "step", null_kind=kind, reason=why)
        result[f"t_{name}"] = score
    why = "none of the events is in the probed steps"
    if events:
        why = f"what there is was there from step {int(data['step'][0])}, the first probed"
    first = _first(events)
    result["first"] = Score(" and ".join(first), "") if first else Score(None, "", reason=why)
    return result


def _when(events: list[Event]) -> str:
    after, by = min(event.after for event in events), max(event.by for event in events)
    lost = "" if all(event.kept for event in events) else " (lost again later)"
    unsure = "" if all(event.sure for event in events) else ", but not surely"
    return f"between steps {after} and {by}{unsure}{lost}"


def verdict(data: xr.Dataset) -> str:
    """What came first, what followed, and the phases the run passed through; one idea a sentence."""
    events, first = _events(data), _first(_events(data))
    start, last = int(data["step"][0]), int(data["step"][-1])
    there = [name for name, event in events.items() if event.from_start]
    said = []
    if there:
        are = "were" if len(there) > 1 else "was"
        said.append(f"{_in_a_row(there)} {are} there from step {start} on, the first probed.")
        lost = [name for name in there if not events[name].kept]
        if lost:
            said.append(f"{_in_a_row(lost)} {'were' if len(lost) > 1 else 'was'} lost again.")
    if first:
        together = f" ({'all' if len(first) > 2 else 'both'} within these kept steps)" * (len(first) > 1)
        when = _when([events[name] for name in first]) + together
        names = listed([_with_article(name) for name in first])
        said.append(f"{f'Of the others, {names}' if there else _in_a_row(first)} came first, {when}.")
    elif not there:
        said.append(f"Nothing happened between steps {start} and {last}.")
    later = sorted(set(events) - {*first, *there}, key=lambda name: events[name].step)
    said += [f"Then {_with_article(name)} came, {_when([events[name]])}." for name in later]
    not_come = [name for name in data["event"].values.tolist() if name not in events]
    missing = [name for name in not_come if f"no_{name}" not in data.attrs]
    if missing and events:
        said.append(f"No {' and no '.join(_in_words(name) for name in missing)} by step {last}.")
    if events:
        said.append("Each counts from halfway on, where another predictor may still be nearest.")
    if "selection" in {*events} - {*there}:
        said.append("The steps of selection leave out its sampling error.")
    return " ".join([*said, *_phases(data)])


def _with_article(event: str) -> str:
    return event if event == "selection" else f"the {_in_words(event)}"


def _in_words(event: str) -> str:
    return "best law" if event == BEST else event


def _in_a_row(events: list[str]) -> str:
    names = listed([_with_article(name) for name in events])
    return names[0].upper() + names[1:]


def _phases(data: xr.Dataset) -> list[str]:
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
    return [f"{'Then' if i else 'Nearest predictor:'} {phase}." for i, phase in enumerate(phases)]


FORMULAS = {
    "t_unigram": "first kept step with progress to the unigram above ½",
    "t_selection": "first kept step with a parent score more than halfway from uniform attention's to 1",
    "t_bigram": "first kept step with progress to the bigram above ½",
    "t_best": "the same of the best exact predictor, where that is neither unigram nor bigram",
    "first": "the earliest of these events",
}

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
    formulas=FORMULAS,
    formula="progress to the bigram = 1 − KL(bigram ‖ model) / KL(bigram ‖ unigram)\n"
    "progress to the best law = 1 − KL(best ‖ model) / KL(best ‖ unigram)\n"
    "progress to the unigram = 1 − KL(unigram ‖ model) / KL(unigram ‖ uniform); of each the largest progress "
    "to a better law, where that is larger\n"
    "progress to selection = (parent score − uniform attention's) / (1 − uniform attention's)\n"
    "t = the first kept step at which that progress is above ½",
)
