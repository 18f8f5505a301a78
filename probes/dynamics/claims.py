"""Claims of training: what came between which steps, in which order, what was lost, which laws passed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr
from jaxtyping import Bool

from mechmarkov.claims.claim import MODEL, Claim, Claims, Condition, Status, Where
from mechmarkov.claims.tile import CAME, Tile
from mechmarkov.probing.dataset import IMITATION_NATS, NORMAL_95, is_nearest
from mechmarkov.probing.score import Score

from .measure import BEST, NO_ERROR
from .trajectory import EVENT_PROGRESS, Event, first_time

LAWS = ("unigram", "bigram", BEST)  # events of laws; others are of heads
NEARER = 0.5  # of the KL from the next law: in a phase without a nearer step its law is only the closest


def events_of(data: xr.Dataset) -> dict[str, Event]:
    """The events that happened."""
    steps, half_width = data["step"].values, NORMAL_95 * data["progress_error"].values
    rows = zip(data["event"].values.tolist(), data["progress"].values.T, half_width.T, strict=True)
    events = {name: first_time(progress, half, steps) for name, progress, half in rows}
    return {name: event for name, event in events.items() if event is not None}


def may_have_come(data: xr.Dataset) -> list[str]:
    """The events that were not seen, and may have happened."""
    events, high = events_of(data), data["progress"] + NORMAL_95 * data["progress_error"]
    may = (high > EVENT_PROGRESS).any("step")  # by the 95 % interval at some step
    return [name for name in data["event"].values[may.values].tolist() if name not in events]


def first_of(events: dict[str, Event]) -> list[str]:
    """The earliest that was seen to come; several where their intervals overlap."""
    came = {name: event for name, event in events.items() if not event.from_start}
    earliest = min((event.by for event in came.values()), default=0)
    return [name for name, event in came.items() if event.after < earliest]


def claims(data: xr.Dataset, _: dict[str, Score]) -> list[Claim]:
    """The events in their order, those that are open or did not come, and the laws that were passed."""
    events = events_of(data)
    in_order = sorted(events, key=lambda name: (events[name].after, name))
    return [
        *(_came(data, name, events) for name in in_order),
        *_before(data, events),
        *(_lost(data, name) for name in in_order if _went_away(data, name, events[name])),
        *_not_seen(data, set(events)),
        *_phases(data, never_halfway(data)),
    ]


def _came(data: xr.Dataset, name: str, events: dict[str, Event]) -> Claim:
    event, first, last = events[name], int(data["step"][0]), int(data["step"][-1])
    premises = [Condition("probed steps", value=float(data.sizes["step"])), *_parent(data, name)]
    if event.from_start:
        premises.append(Condition("from the first probed step", event.throughout, first))
        if any(law in events and events[law].from_start for law in _better(data, name)):
            premises.append(Condition("with a better law"))  # the loss was below this law's, not at it
    if name in NO_ERROR:
        premises.append(Condition("without its sampling error"))
    if _went_away(data, name, event):
        premises.append(
            Condition("lost again", {"shown": True, "excluded": False}.get(_lost(data, name).status))
        )
    status: Status = "shown" if event.sure else "open"
    return Claim(
        (MODEL,), "came_by", (name,), event.step, (event.after, event.by), unit="step", status=status,
        where=Where(steps=(first, last)), because=tuple(premises),
    )  # fmt: skip


def _went_away(data: xr.Dataset, name: str, event: Event) -> bool:
    """Returns whether it was away after it came; a law that grew too sure, or less so, is still there."""
    at_last = data.sel(event=name).isel(step=-1)
    is_there = bool(at_last["at_another_temperature"]) and float(at_last["progress"]) < EVENT_PROGRESS
    return not event.kept and not is_there and not _is_passed(data, name, event)


def _is_passed(data: xr.Dataset, name: str, event: Event) -> bool:
    """Returns whether a law is away after it came only where the loss is clearly below that law's.

    Progress is 0 at the law that a better one starts from: on its way to that a model leaves the lesser law.
    """
    better, half = _better(data, name), NORMAL_95 * data["progress_error"]
    after = data["step"] >= event.by
    away = after & ((data["progress"] + half).sel(event=name) < EVENT_PROGRESS)
    ahead = ((data["progress"] - half).sel(event=better) > 0).any("event")
    return bool((ahead | ~away).all())


def _with_better(data: xr.Dataset, name: str, status: Status) -> Iterator[Condition]:
    """Yields that the last step has a law with a better one, which tells it."""
    if status == "excluded" and any(_lost(data, law).status == "excluded" for law in _better(data, name)):
        yield Condition("with a better law")


def _better(data: xr.Dataset, name: str) -> list[str]:
    """Returns the laws among the events that are better than one of them; none of a head."""
    after = LAWS[LAWS.index(name) + 1 :] if name in LAWS else ()
    return [law for law in after if law in data["event"].values]


def _parent(data: xr.Dataset, *names: str) -> tuple[Condition, ...]:
    """Returns which token is the parent, where attention on it is one of the events."""
    return (Condition("the parent", words=(data.attrs["parent"],)),) if "selection" in names else ()


def _before(data: xr.Dataset, events: dict[str, Event]) -> Iterator[Claim]:
    """Yields what came first: its interval ends before those of the others begin."""
    first = first_of(events)
    came = {name: event for name, event in events.items() if not event.from_start}
    by = max((events[name].by for name in first), default=0)
    later = tuple(name for name in came if name not in first and events[name].after >= by)
    if first and later:
        yield Claim(tuple(first), "came_before", later, because=_parent(data, *first, *later))


def _lost(data: xr.Dataset, name: str) -> Claim:
    """Returns what is clearly not there at the end, or only was away for some steps."""
    progress = float(data["progress"].sel(event=name)[-1])
    half = NORMAL_95 * float(data["progress_error"].sel(event=name)[-1])
    status: Status = "shown" if progress + half < 0.5 else "excluded" if progress - half > 0.5 else "open"
    return Claim(
        (MODEL,), "was_lost", (name,), progress, (progress - half, progress + half), unit="share",
        status=status, because=(*_parent(data, name), *_with_better(data, name, status)),
    )  # fmt: skip


def _not_seen(data: xr.Dataset, came: set[str]) -> Iterator[Claim]:
    """Yields what did not come by the last step, may have come, or cannot be seen to come here."""
    undecided, last = may_have_come(data), int(data["step"][-1])
    steps = Where(steps=(int(data["step"][0]), last))
    for name in map(str, data["event"].values):
        if name in came:
            continue
        if why := data.attrs.get(f"no_{name}"):
            yield Claim(
                (MODEL,), "came_by", (name,), status="does not apply",
                because=(Condition("cannot be seen", words=(str(why),)),),
            )  # fmt: skip
            continue
        status: Status = "open" if name in undecided else "excluded"
        probed = (Condition("probed steps", value=float(data.sizes["step"])), *_parent(data, name))
        yield Claim((MODEL,), "came_by", (name,), status=status, where=steps, because=probed)


def never_halfway(data: xr.Dataset) -> set[str]:
    """Returns the laws whose loss was at no step halfway reached, by their names as predictors."""
    _, unigram, bigram = data.attrs["simple_laws"]
    of_event = {"unigram": unigram, "bigram": bigram, BEST: data.attrs["better_law"]}
    came = {*events_of(data), *may_have_come(data)}
    seen = [name for name in map(str, data["event"].values) if f"no_{name}" not in data.attrs]
    return {of_event[name] for name in seen if name in of_event and name not in came}


def _phases(data: xr.Dataset, never: set[str]) -> Iterator[Claim]:
    """The law that was nearest, with those that coincide with it, from step to step.

    Steps of a phase before the first and behind the last at which it clearly was are left out, and those of
    the last phase are open.
    """
    predictors, near, before = data["predictor"].values, is_nearest(data["kl"]), None
    for phase in (data.isel(phase=i) for i in range(data.sizes["phase"])):
        start, stop, plateau = (int(phase[name]) for name in ("phase_start", "phase_stop", "plateau"))
        first, equal = int(phase["phase_predictor"]), near.sel(step=plateau).values
        names = [str(predictors[first])]
        names += [str(name) for i, name in enumerate(predictors) if equal[i] and i != first]
        if names[0] not in data.attrs["simple_laws"] and data.attrs["better_law"] in names:
            # The source's own law, which a law of steps may be.
            names.sort(key=lambda name: name != data.attrs["better_law"])
        slope = float(data["scaled_gradient"].sel(step=plateau))
        premises: tuple[Condition, ...] = (Condition("gradient of its largest", value=slope, unit="share"),)
        steps = data["step"].sel(step=slice(start, stop))
        clear = steps[data["clear"].sel(step=steps).values].values.tolist()
        is_clear, (first_step, *_, last_step) = bool(clear), [*clear, *clear] or (start, stop)
        if never & {*names} or not _is_near(data["kl"].sel(step=clear or steps), first, equal):
            premises += (Condition("closest only"),)
        from_start = (Condition("from the first probed step", value=float(start)),) * (before is None)
        passed = Claim(
            (MODEL,), "passed", tuple(names), float(first_step),
            (float(first_step if before is None else before), float(first_step)), unit="step",
            status="shown" if is_clear else "open",
            where=Where(steps=(first_step, last_step)), because=(*premises, *from_start),
        )  # fmt: skip
        yield passed
        before = last_step
        if last_step < stop == int(data["step"][-1]):  # in the end it is not clear any more
            rest = int(steps[steps > last_step][0])
            yield replace(
                passed, value=float(rest), interval=(float(last_step), float(rest)), status="open",
                where=Where(steps=(rest, stop)), because=premises,
            )  # fmt: skip


def _is_near(kl: xr.DataArray, law: int, equal: Bool[np.ndarray, " predictor"]) -> bool:
    """Returns whether the closest law of a phase is at any step much closer than the next one."""
    nats = kl.transpose("step", "predictor").values
    to_next = np.where(equal | (np.arange(len(equal)) == law), np.inf, nats).min(1)
    return bool((nats[:, law] < np.maximum(IMITATION_NATS, NEARER * to_next)).any())


def headline(claims: Sequence[Claim]) -> list[Tile]:
    """Returns how did it get there: the laws that were nearest one after the other, and when heads came."""
    ours = Claims(tuple(claims)).where(probe="dynamics")
    laws = phases_in_order(ours)
    events = [claim for claim in ours.where("came_by") if claim.object[0] not in LAWS]
    heads = tuple(claim for claim in events if claim.value is not None and claim.is_shown)
    missing = tuple(claim for claim in events if claim.value is None and claim.status in ("excluded", "open"))
    undecided = tuple(claim for claim in ours.where("passed")[-1:] if claim.status == "open")
    if not laws and not heads and not missing and not undecided:
        return []
    came = (*laws[1:], *heads)
    bars = {claim.object[0]: claim.value for claim in came if claim.value is not None}
    answer, rank = (*laws, *undecided, *heads) or missing, 1 if came else 3
    return [Tile(CAME, answer, heads or missing or laws[-2:], None, bars, "steps", of_run=True, rank=rank)]


def phases_in_order(claims: Claims) -> tuple[Claim, ...]:
    """Returns the laws that were clearly nearest, one after the other.

    One that is nearest again after an undecided phase is the same.
    """
    told: list[Claim] = []
    for claim in claims.where("passed", status="shown"):
        if not told or told[-1].object != claim.object:
            told.append(claim)
    return tuple(told)
