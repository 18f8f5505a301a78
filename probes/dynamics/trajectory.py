"""Scores over training, the phases a run passes through and when it had what."""

from dataclasses import dataclass

import numpy as np
import xarray as xr
from jaxtyping import Float, Int

from mechmarkov.probing.probe import Probe

EVENT_PROGRESS = 0.5  # that an event is above


def score_trajectory(probe: Probe, data: xr.Dataset) -> tuple[xr.DataArray, dict[str, str]]:
    """A probe's scores at every step of its data, without nulls.

    Args:
        probe: Any probe, ours or another's.
        data: What it measured, with an axis `step`: `result["attention"].data`.

    Returns:
        `[step, score]`, NaN where a score has no value at a step, and the unit of each score. Words (the name
        of a path) are left out; yes is 1.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.probes.attention import probe
        >>> data = probe.measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> values, units = score_trajectory(probe, data)
        >>> float(values.sel(score="best_lag")[-1]), units["best_lag"]
        (1.0, 'lag')
    """
    table: list[dict[str, float]] = []
    units: dict[str, str] = {}
    for i in range(data.sizes["step"]):
        scores = probe.scores(data.isel(step=[i]), None)
        table.append({n: float(s.value) for n, s in scores.items() if isinstance(s.value, (int, float))})
        for name in table[-1]:
            units.setdefault(name, scores[name].unit)
    values = np.array([[numbers.get(name, np.nan) for name in units] for numbers in table])
    coords = {"step": data["step"].values, "score": list(units)}
    return xr.DataArray(values, dims=("step", "score"), coords=coords), units


def segments(labels: Int[np.ndarray, " step"]) -> list[tuple[int, int]]:
    """The longest runs of one label, as the indices of their first and last step.

    Example:
        >>> segments(np.array([0, 0, 2, 2, 2, 0]))
        [(0, 1), (2, 4), (5, 5)]
    """
    starts = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist()]
    return [(start, stop - 1) for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True)]


@dataclass(frozen=True)
class Event:
    """When something first held.

    Attributes:
        step: The first kept step at which it does.
        after: The last kept step before it might hold; the first kept step if it might from the start.
        by: The first kept step from `step` on at which it clearly holds; the last if it never clearly does.
        kept: Whether it is clearly lost at no step from `by` on; from `step` on if it never clearly holds.
        sure: Whether it clearly holds at any step from `step` on.
        throughout: Whether it clearly holds at every step from `by` on.
    """

    step: int
    after: int
    by: int
    kept: bool
    sure: bool
    throughout: bool

    @property
    def from_start(self) -> bool:
        """Returns whether it held at the first kept step, so that when it came was not seen."""
        return self.after == self.by and self.sure


def first_time(
    progress: Float[np.ndarray, " step"],
    half_width: Float[np.ndarray, " step"],
    steps: Int[np.ndarray, " step"],
) -> Event | None:
    """When progress first passed `EVENT_PROGRESS`; None if it never did.

    Args:
        progress: At each kept step.
        half_width: Half of its 95 % interval there.
        steps: The kept steps.

    Example:
        >>> first_time(np.array([0.1, 0.4, 0.9]), np.array([0.0, 0.2, 0.0]), np.array([0, 10, 100]))
        Event(step=100, after=0, by=100, kept=True, sure=True, throughout=True)
    """
    holds = progress > EVENT_PROGRESS
    if not holds.any():
        return None
    first = int(holds.argmax())
    might = int((progress + half_width > EVENT_PROGRESS).argmax())
    clear = progress[first:] - half_width[first:] > EVENT_PROGRESS
    sure = bool(clear.any())
    by = first + int(clear.argmax()) if sure else len(steps) - 1
    lost = (progress + half_width)[by if sure else first :] < EVENT_PROGRESS
    return Event(
        step=int(steps[first]),
        after=int(steps[max(0, might - 1)]),
        by=int(steps[by]),
        kept=not lost.any(),
        sure=sure,
        throughout=bool(clear[by - first :].all()),
    )
