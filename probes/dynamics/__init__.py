"""When did selection, the unigram and the bigram appear, and which came first?

Measures of progress run from 0 to 1, and an event is the first kept step at which one of them is above one
half. *Unigram*: how much nearer to the exact unigram the model is than the uniform law (KL in nats, as a
share). *Bigram*: the same from the unigram to the bigram. *Best*: the same to the best law, if one is known
that is better than both. *Selection*: the most attention any head gives to the parent, as a share of the way
from uniform attention to all of it. Whoever has the bigram has the unigram, and whoever has the best law has
both: a run that goes straight to the bigram, and never predicts like the unigram, passes both at once.

An event lies between two kept steps. Its interval goes from the last kept step at which it surely has not
happened to the first at which it surely has, by the sampling error of its progress. What was not seen may
have happened all the same: it is open where the interval of its progress reaches above one half at any step.
An event is lost again where that interval is below one half at any later step. The error of selection is not
known, as attention is not measured by sequence. What is there at the first probed step was not seen to
come, and is never called first. Event times have no distribution over fresh models, which have not been
trained: what is said of these is how many of them have it already.
"""

import xarray as xr

from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import NORMAL_95
from mechmarkov.probing.preconditions import in_words
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import counted, listed

from . import figures, measure
from .measure import BEST
from .trajectory import EVENT_PROGRESS, Event, first_time, may_hold

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


def _open(data: xr.Dataset) -> list[str]:
    """The events that were not seen, and may have happened."""
    half_width, events = NORMAL_95 * data["progress_error"], _events(data)
    names = [name for name in data["event"].values.tolist() if name not in events]
    return [
        n for n in names if may_hold(data["progress"].sel(event=n).values, half_width.sel(event=n).values)
    ]


def _first(events: dict[str, Event]) -> list[str]:
    """The earliest that was seen to come; several where their intervals overlap."""
    came = {name: event for name, event in events.items() if not event.from_start}
    earliest = min((event.by for event in came.values()), default=0)
    return [name for name, event in came.items() if event.after < earliest]


def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
    """The event times, each with the two kept steps around it, and which came first."""
    events, undecided = _events(data), _open(data)
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
            if name in undecided:
                why = f"whether {_with_article(name)} is halfway by step {last} is open"
            score = Score(None, "step", null_kind=kind, reason=why)
        result[f"t_{name}"] = score
    why = "none of the events is in the probed steps"
    if undecided:
        why = "nothing is surely more than halfway in the probed steps"
    if events:
        why = f"what there is was there from step {int(data['step'][0])}, the first probed"
    first = _first(events)
    result["first"] = Score(" and ".join(first), "") if first else Score(None, "", reason=why)
    return result


def _when(events: dict[str, Event]) -> str:
    after, by = min(event.after for event in events.values()), max(event.by for event in events.values())
    unsure = "" if all(event.sure for event in events.values()) else ", but not surely"
    lost = [name for name, event in events.items() if not event.kept]
    which = f"{_in_a_list(lost)} " if len(lost) < len(events) else ""
    return f"between steps {after} and {by}{unsure}" + f" ({which}lost again later)" * bool(lost)


def _together(events: dict[str, Event]) -> list[dict[str, Event]]:
    """Events in the order in which they came; those whose intervals overlap are one group."""
    groups: list[dict[str, Event]] = []
    for name in sorted(events, key=lambda name: (events[name].after, name)):
        if not groups or events[name].after >= max(event.by for event in groups[-1].values()):
            groups.append({})
        groups[-1][name] = events[name]
    return groups


def verdict(data: xr.Dataset) -> str:
    """What came first, what followed, and the phases the run passed through; one idea a sentence."""
    events, first, undecided = _events(data), _first(_events(data)), _open(data)
    start, last = int(data["step"][0]), int(data["step"][-1])
    there = [name for name, event in events.items() if event.from_start]
    said = []
    if there:
        are = "were" if len(there) > 1 else "was"
        since = f"from step {start} on" if all(events[n].throughout for n in there) else f"at step {start}"
        said.append(f"{_in_a_row(there)} {are} there {since}, the first probed.")
        lost = [name for name in there if not events[name].kept]
        if lost:
            said.append(f"{_in_a_row(lost)} {'were' if len(lost) > 1 else 'was'} lost again.")
    if first:
        together = f" ({'all' if len(first) > 2 else 'both'} within these kept steps)" * (len(first) > 1)
        when = _when({name: events[name] for name in first}) + together
        said.append(
            f"{f'Of the others, {_in_a_list(first)}' if there else _in_a_row(first)} came first, {when}."
        )
    elif not there:
        nothing = "Nothing is surely more than halfway" if undecided else "Nothing happened"
        said.append(f"{nothing} between steps {start} and {last}.")
    if events:
        said += _followed({name: event for name, event in events.items() if name not in there}, first)
        said += _not_seen(data, {*events}, undecided)
        said.append("Each counts from halfway on, where another predictor may still be nearest.")
    if "selection" in {*events} - {*there}:
        said.append("The steps of selection leave out its sampling error.")
    return " ".join([*said, *_phases(data)])


def _followed(came: dict[str, Event], first: list[str]) -> list[str]:
    """What came after the first, in groups that the kept steps do not tell apart."""
    said = []
    for group in _together({name: event for name, event in came.items() if name not in first}):
        start = min(event.after for event in group.values())
        before = [name for name in first if came[name].by <= start]
        then = "Then" if before == first else f"After {_in_a_list(before)}"
        each = {1: "", 2: "both "}.get(len(group), "all ")
        said.append(f"{then} {_in_a_list(list(group))} came, {each}{_when(group)}.")
    return said


def _not_seen(data: xr.Dataset, came: set[str], undecided: list[str]) -> list[str]:
    """What did not come by the last step, and what may have come."""
    last, said = int(data["step"][-1]), []
    not_come = [name for name in data["event"].values.tolist() if name not in {*came, *undecided}]
    missing = [name for name in not_come if f"no_{name}" not in data.attrs]
    if missing:
        said.append(f"No {' and no '.join(_in_words(name) for name in missing)} by step {last}.")
    if undecided:
        are = "are" if len(undecided) > 1 else "is"
        said.append(f"Whether {_in_a_list(undecided)} {are} halfway by step {last} is open.")
    return said


def _with_article(event: str) -> str:
    return event if event == "selection" else f"the {_in_words(event)}"


def _in_words(event: str) -> str:
    return "best law" if event == BEST else event


def _in_a_list(events: list[str]) -> str:
    return listed([_with_article(name) for name in events])


def _in_a_row(events: list[str]) -> str:
    names = _in_a_list(events)
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
        phases = [*phases[: MAX_PHASES_NAMED - 1], counted(left, "more phase"), phases[-1]]
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
