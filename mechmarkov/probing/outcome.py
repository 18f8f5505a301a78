"""What probing found: the outcome of a probe, and those of all probes about one run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from mechmarkov.probing.figure import Figure
from mechmarkov.probing.notebook import fragment
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.score import Score


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one probe found: its data, the same data on null models, scores and a sentence."""

    probe: Probe
    data: xr.Dataset
    null: xr.Dataset | None
    scores: dict[str, Score]
    verdict: str

    def figures(self, at: int | None = None) -> list[Figure]:
        """The probe's figures, drawn from its data or, with `at`, from those of one step, by its index.

        Raises:
            ValueError: Two figures have one key.
        """
        figures = self.probe.figures(self.data if at is None else self.data.isel(step=[at]))
        keys = [figure.key for figure in figures]
        for key in set(keys):
            if keys.count(key) > 1:
                raise ValueError(
                    f"{keys.count(key)} figures have the key {key!r}, expected one: give each its own"
                )
        return figures

    def _repr_html_(self) -> str:
        return fragment("", {self.probe.name: self})


@dataclass(frozen=True, eq=False)
class Findings(Mapping[str, Outcome]):
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

    def __iter__(self) -> Iterator[str]:
        """The names of the probes that have an outcome."""
        return iter(self.outcomes)

    def __len__(self) -> int:
        """How many probes have an outcome."""
        return len(self.outcomes)

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

    def _repr_html_(self) -> str:
        return fragment(str(self.run.get("title", "")), self.outcomes, self.skipped, self.failed)

    def __repr__(self) -> str:
        """One line per verdict."""
        lines = [f"{name}: {outcome.verdict}" for name, outcome in self.outcomes.items()]
        lines += [f"{name}: does not apply: {why}" for name, why in self.skipped.items()]
        lines += [f"{name}: failed: {error}" for name, error in self.failed.items()]
        return "\n".join(
            [
                f"{type(self).__name__}({self.run['title']}, steps {self.steps})",
                *("  " + line for line in lines),
            ]
        )
