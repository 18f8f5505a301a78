"""What probing found: the outcome of a probe, checked, and those of all probes about one run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from mechmarkov.claims.claim import Claim, Claims
from mechmarkov.claims.tile import Tile
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.notebook import fragment
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.score import Score
from mechmarkov.utils.errors import integer_of
from mechmarkov.utils.text import is_utf8, is_writable, printable, shown

SCHEMA_VERSION = 1  # of `summary.json`, whose schema is `mechmarkov/report/summary.schema.json`


@dataclass(frozen=True, eq=False)
class Outcome:
    """The findings of one probe.

    Attributes:
        probe: Which.
        data: What it measured.
        null: Data of null models.
        scores: By name.
        claims: What it says, consistent with the claims of the other probes.
        verdict: The first two sentences of it.
    """

    probe: Probe
    data: xr.Dataset
    null: xr.Dataset | None
    scores: dict[str, Score]
    claims: Claims
    verdict: str = ""

    def figures(self, at: int | None = None) -> list[Figure]:
        """The probe's figures, drawn from its data or, with `at`, from those of one step, by its index.

        Raises:
            IndexError: `at` is not the index of a step.
            TypeError: What the probe returned is not a list of figures, or a field of one is of another type.
            ValueError: Two figures have one key, or a field of one cannot be shown.
        """
        if at is not None and not 0 <= integer_of("at", at) < self.data.sizes["step"]:
            raise IndexError(f"at is {at}, expected the index of one of {self.data.sizes['step']} steps")
        figures = self.probe.figures(self.data if at is None else self.data.isel(step=[at]))
        _expect("what figures returned", figures, list)
        for figure in figures:
            _check_figure(figure)
        for key, count in Counter(figure.key for figure in figures).items():
            if count > 1:
                raise ValueError(f"{count} figures have the key {key!r}, expected one: give each its own")
        return figures

    def __repr__(self) -> str:
        """The verdict, and what scores and data are called."""
        lines = [
            f"scores: {', '.join(self.scores)}",
            f"data: {', '.join(str(name) for name in self.data.data_vars)}",
        ]
        return "\n  ".join([f"{type(self).__name__}({self.probe.name}: {self.verdict})", *lines])

    def _repr_html_(self) -> str:
        return fragment("", {self.probe.name: self})


@dataclass(frozen=True, eq=False)
class Findings(Mapping[str, Outcome]):
    """The answers of all probes about one run; a mapping from a probe's name to its outcome.

    Attributes:
        metadata: What the run is, as plain data: title, source, model, objective, seed, provenance.
        steps: The training steps that were probed.
        outcomes: By probe name.
        skipped: Probes that do not apply, and why.
        failed: Probes that raised, and what.
        warnings: Why the whole may not mean what it says, a sentence each.
        sequence: What the model makes of the first sequence, where a reader gave some
            (`mechmarkov.probing.own_tokens`); not in files.
        curve: The loss in training, as `step` and `loss` at up to 50 steps; None where it is not known.
    """

    metadata: dict[str, Any]
    steps: list[int]
    outcomes: dict[str, Outcome]
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    sequence: xr.Dataset | None = None
    curve: Mapping[str, Sequence[int] | Sequence[float]] | None = None

    def __getitem__(self, name: str) -> Outcome:
        """The outcome of a probe; an error says why where there is none."""
        unknown = f"no such probe here; there are {[*self.outcomes]}"
        if not isinstance(name, str):
            raise KeyError(f"{shown(name)}: {unknown}")
        if name in self.outcomes:
            return self.outcomes[name]
        raise KeyError(f"{printable(name)}: {self.skipped.get(name) or self.failed.get(name) or unknown}")

    @property
    def claims(self) -> Claims:
        """Returns what all probes say, none of it contradicting the rest (`mechmarkov.claims.arbiter`)."""
        return Claims(tuple(claim for outcome in self.outcomes.values() for claim in outcome.claims))

    def __iter__(self) -> Iterator[str]:
        """The names of the probes that have an outcome."""
        return iter(self.outcomes)

    def __len__(self) -> int:
        """Returns how many probes have an outcome."""
        return len(self.outcomes)

    def summary(self) -> dict[str, Any]:
        """Everything but the arrays, as plain JSON data (the contract of `summary.json`)."""
        return {
            "schema": SCHEMA_VERSION,
            "run": self.metadata,
            "steps": self.steps,
            "probes": {
                name: {
                    "question": outcome.probe.question,
                    "verdict": outcome.verdict,
                    "scores": {key: score.to_data() for key, score in outcome.scores.items()},
                }
                for name, outcome in self.outcomes.items()
            },
            "claims": [claim.to_data() for claim in self.claims],
            "skipped": self.skipped,
            "failed": self.failed,
            "warnings": list(self.warnings),
            **({} if self.curve is None else {"curve": dict(self.curve)}),
        }

    def to_dataframe(self) -> pd.DataFrame:
        """All scores as a table, a row each: its probe and name, value, interval, null and unit."""
        return pd.DataFrame(
            [
                {"probe": name, "score": key, **_flat(score)}
                for name, outcome in self.outcomes.items()
                for key, score in outcome.scores.items()
            ],
            columns=["probe", "score", *_flat(Score(0, ""))],
        )

    def _repr_html_(self) -> str:
        title = str(self.metadata.get("title", ""))
        return fragment(title, self.outcomes, self.skipped, self.failed, self.warnings)

    def __repr__(self) -> str:
        """One line per verdict, and what to do with a result."""
        title = f"{self.metadata['title']}, " if "title" in self.metadata else ""
        lines = [f"warning: {warning}" for warning in self.warnings]
        lines += [f"{name}: {outcome.verdict}" for name, outcome in self.outcomes.items()]
        lines += [f"{name}: does not apply: {why}" for name, why in self.skipped.items()]
        lines += [f"{name}: failed: {error}" for name, error in self.failed.items()]
        then = "result.report('report.html') draws it; result[name].data and .scores, result.claims"
        return "\n  ".join([f"{type(self).__name__}({title}steps {self.steps})", *lines, then])


def _flat(score: Score) -> dict[str, Any]:
    interval = dict(zip(("low", "high"), score.interval or (None, None), strict=True))
    null = score.null if isinstance(score.null, tuple) else (None, score.null, None)
    band = dict(zip(("null_low", "null", "null_high"), null, strict=True))
    return {"value": score.value, **interval, **band, "unit": score.unit, "reason": score.reason}


def check_data(data: xr.Dataset, axis: str, models: int) -> None:
    """Refuse data that cannot be saved as NetCDF.

    Args:
        data: What a probe measured.
        axis: "step", or "seed" of null models.
        models: How many were measured.

    Raises:
        TypeError: They are not a dataset.
        ValueError: An axis, a name, a type or an attribute that NetCDF cannot hold.

    Example:
        >>> check_data(xr.Dataset({"loss": ("step", [1.0])}), "step", 2)
        Traceback (most recent call last):
        ValueError: data have the axes {'step': 1}, expected one named 'step' of 2
    """
    _expect("what was measured", data, xr.Dataset)
    if data.sizes.get(axis) != models:
        raise ValueError(f"data have the axes {dict(data.sizes)}, expected one named {axis!r} of {models}")
    for name, variable in data.variables.items():
        _check_name("a variable", name)
        if variable.dtype.kind not in "biufSUO":
            raise ValueError(f"variable {shown(name)} is of type {variable.dtype}, expected numbers or texts")
        if variable.dtype.kind in "OU" and not all(is_writable(value) for value in variable.values.flat):
            raise ValueError(f"variable {shown(name)} holds objects, expected numbers or texts")
        _check_attributes(f"variable {shown(name)}", variable.attrs)
    _check_attributes("data", data.attrs)


def check_outcome(outcome: Outcome) -> None:
    """Refuse what the report could not show: the figures are drawn once.

    Raises:
        TypeError: A field is not of the type that `Probe` states.
        ValueError: A field cannot be saved or shown.
    """
    _expect("what scores returned", outcome.scores, dict)
    for name, score in outcome.scores.items():
        _expect_text("a score's name", name)
        _expect(f"score {shown(name)}", score, Score)
    for claim in outcome.claims:
        _expect("a claim", claim, Claim)
        texts = [*claim.subject, *claim.object, claim.unit, *claim.where.states]
        texts += [text for one in claim.because for text in (one.name, one.unit, *one.words)]
        for text in texts:
            _expect_text("a text of a claim", text)
    for tile in outcome.probe.headline(outcome.claims):
        _expect("a tile", tile, Tile)
    outcome.figures()


def _check_figure(figure: Figure) -> None:
    _expect("a figure", figure, Figure)
    for name in ("title", "caption", "key", "score"):
        _expect_text(f"a figure's {name}", getattr(figure, name))
    if figure.kind not in ("plotly", "attention"):
        raise ValueError(f"a figure's kind is {shown(figure.kind)}, expected plotly or attention")
    content = go.Figure if figure.kind == "plotly" else AttentionView
    _expect(f"figure {shown(figure.title)}: its content", figure.content, content)
    if isinstance(figure.content, AttentionView):
        _check_attention(figure.title, figure.content)


def _check_attention(title: str, view: AttentionView) -> None:
    heads, tokens = len(view.head_labels), len(view.tokens)
    patterns = np.asarray(view.patterns)
    if patterns.shape != (heads, tokens, tokens) or not heads or not tokens:
        raise ValueError(
            f"figure {shown(title)}: patterns have the shape {patterns.shape}, "
            f"expected (head {heads}, query {tokens}, key {tokens}), none of them 0"
        )
    if patterns.dtype.kind != "f" or not np.isfinite(patterns).all():
        raise ValueError(f"figure {shown(title)}: patterns hold {patterns.dtype}, expected finite floats")
    if view.ideal is not None and (view.ideal.shape != patterns.shape or view.ideal.dtype != bool):
        raise ValueError(
            f"figure {shown(title)}: ideal is {view.ideal.dtype} {view.ideal.shape}, "
            f"expected booleans of the patterns' shape {patterns.shape}"
        )


def _check_attributes(what: str, attributes: dict[Any, Any]) -> None:
    for key, value in attributes.items():
        _check_name(f"{what}: an attribute", key)
        values = value if isinstance(value, (list, tuple, np.ndarray)) else [value]
        numbers = np.asarray(values).dtype.kind in "biuf" and np.ndim(values) == 1
        if not (value is None or numbers or all(map(is_writable, values))):
            raise ValueError(
                f"{what}: attribute {key!r} is a {type(value).__name__}, "
                "expected a text, a number or a list of them"
            )


def _check_name(what: str, name: Any) -> None:
    if not is_writable(name) or not name or "/" in name:
        raise ValueError(f"{what} is named {shown(name)}, expected a text without '/'")


def _expect_text(what: str, value: Any) -> None:
    _expect(what, value, str)
    if not is_utf8(value):
        raise ValueError(f"{what} is {shown(value)}, expected text of UTF-8")


def _expect(what: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is a {type(value).__name__}, expected a {kind.__name__}")
