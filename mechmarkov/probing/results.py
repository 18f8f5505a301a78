"""What probing returns: scores beside their nulls, figures, and the answers of all probes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mechmarkov.probing.probe import Probe


@dataclass(frozen=True)
class Score:
    """One number (or word) about a run, beside what it would be by chance.

    Attributes:
        value: The measured value; None where it does not exist, and then `reason` says why.
        unit: "nats", "probability", "cosine", "tokens", … ("" for names).
        null: The exact chance value, or (low, middle, high): the 2.5, 50 and 97.5 % points over null models.
        interval: A 95 % interval of the value over the evaluation sequences.
        null_kind: What the null is, in words.
        reason: Why there is no value.
    """

    value: float | int | bool | str | None
    unit: str
    null: float | tuple[float, float, float] | None = None
    interval: tuple[float, float] | None = None
    null_kind: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        """Plain numbers only; one that is not finite is never a score: it becomes None with its reason."""
        if isinstance(self.value, np.generic):
            object.__setattr__(self, "value", self.value.item())
        if isinstance(self.value, float) and not np.isfinite(self.value):
            object.__setattr__(self, "reason", self.reason or f"the value is {self.value}")
            object.__setattr__(self, "value", None)
        if self.value is None and not self.reason:
            raise ValueError("a score without a value needs a reason")
        for name in ("null", "interval"):
            beside = getattr(self, name)
            if beside is not None and not np.isfinite(beside).all():
                object.__setattr__(self, name, None)

    def __str__(self) -> str:
        """One line for people.

        >>> print(Score(0.5, "probability", null=0.1667, interval=(0.49, 0.51)))
        0.5 probability (0.49 to 0.51), null 0.1667
        >>> print(Score(None, "nats", reason="one step only"))
        no value: one step only
        """
        from mechmarkov.report.text import format_null, format_number, format_value

        if self.value is None:
            return f"no value: {self.reason}"
        said = f"{format_value(self)} {self.unit}".rstrip()
        if self.interval is not None:
            said += f" ({' to '.join(map(format_number, self.interval))})"
        return said if self.null is None else f"{said}, null {format_null(self)}"

    def to_data(self) -> dict[str, Any]:
        """The score as plain JSON data (the contract of `summary.json`)."""
        data: dict[str, Any] = {"value": self.value, "unit": self.unit}
        if self.null is not None:
            data["null"] = list(self.null) if isinstance(self.null, tuple) else self.null
        if self.interval is not None:
            data["interval"] = list(self.interval)
        if self.null_kind is not None:
            data["null_kind"] = self.null_kind
        if self.reason is not None:
            data["reason"] = self.reason
        return data


@dataclass(frozen=True, eq=False)
class AttentionView:
    """Attention of several heads on one sequence, for CircuitsVis.

    Attributes:
        tokens: The labels of the positions.
        patterns: Attention of each head, queries in rows.
        head_labels: "L0H0", ….
        others: The same heads on other sequences, for a reader to choose from.
    """

    tokens: list[str]
    patterns: Float[np.ndarray, "head query key"]
    head_labels: list[str]
    others: "tuple[AttentionView, ...]" = ()


@dataclass(frozen=True, eq=False)
class Figure:
    """A picture and what to read from it."""

    title: str
    caption: str
    kind: Literal["plotly", "attention"]
    content: "go.Figure | AttentionView"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one probe found: its data, the same data on null models, scores and a sentence."""

    probe: "Probe"
    data: xr.Dataset
    null: xr.Dataset | None
    scores: dict[str, Score]
    verdict: str

    def figures(self) -> list[Figure]:
        """The probe's figures, drawn from its data."""
        return self.probe.figures(self.data)

    def _repr_html_(self) -> str:
        from mechmarkov.report.notebook import outcome_fragment

        return outcome_fragment(self)


@dataclass(frozen=True, eq=False)
class Result(Mapping[str, Outcome]):
    """The answers of all probes about one run; a mapping from a probe's name to its outcome.

    Attributes:
        run: What the run is, as plain data: title, source, model, objective, seed, provenance.
        steps: The training steps that were probed.
        outcomes: By probe name.
        skipped: Probes that do not apply, and why.
        failed: Probes that raised, and what.
    """

    run: dict[str, Any]
    steps: list[int]
    outcomes: dict[str, Outcome]
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Outcome:
        """The outcome of a probe; an error says why where there is none."""
        if name in self.outcomes:
            return self.outcomes[name]
        why = self.skipped.get(name) or self.failed.get(name)
        raise KeyError(
            f"{name}: {why}" if why else f"{name}: no such probe here; there are {[*self.outcomes]}"
        )

    def __iter__(self) -> Any:
        """The names of the probes that have an outcome."""
        return iter(self.outcomes)

    def __len__(self) -> int:
        """How many probes have an outcome."""
        return len(self.outcomes)

    def report(self, path: str | Path) -> Path:
        """Write the single-file HTML report and return its path."""
        from mechmarkov.report.html import write

        return write(self, Path(path))

    def summary(self) -> dict[str, Any]:
        """Everything but the arrays, as plain JSON data (the contract of `summary.json`)."""
        return {
            "run": self.run,
            "steps": self.steps,
            "probes": {
                name: {
                    "question": outcome.probe.question,
                    "verdict": outcome.verdict,
                    "scores": {key: score.to_data() for key, score in outcome.scores.items()},
                }
                for name, outcome in self.outcomes.items()
            },
            "skipped": self.skipped,
            "failed": self.failed,
        }

    def save(self, folder: str | Path) -> Path:
        """Write `report.html`, `results.nc` and `summary.json` into a folder and return it."""
        from mechmarkov.probing.save import save

        return save(self, Path(folder))

    def _repr_html_(self) -> str:
        from mechmarkov.report.notebook import fragment

        return fragment(self)

    def __repr__(self) -> str:
        """One line per verdict."""
        lines = [f"{name}: {outcome.verdict}" for name, outcome in self.outcomes.items()]
        lines += [f"{name}: does not apply: {why}" for name, why in self.skipped.items()]
        lines += [f"{name}: failed: {error}" for name, error in self.failed.items()]
        return "\n".join(
            [f"Result({self.run['title']}, steps {self.steps})", *("  " + line for line in lines)]
        )
