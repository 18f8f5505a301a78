"""Probes as another package may bring them: right, but for what is broken in one to three places."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

import mechmarkov as mm
from mechmarkov.probing import AttentionView, Claim, Figure, Probe, Score, Subject
from mechmarkov.runs import Run

TEXTS = (
    "", "a/b", "..", "\x1b[31mred", "\ud800", "</script><script>alert(1)</script>", "x" * 20_000, "\x00",
    "a\nb", "{{ 1 }}", "\u202e", "%s", "step", "layer",
)  # fmt: skip
NUMBERS = (float("nan"), float("inf"), 10**5000, -1, 1e308, True, np.float32(2), 1j, datetime(2000, 1, 1))
OBJECTS = (None, [], {}, (), object(), 3, "text", b"bytes", {"a": {1: 2}}, [[1], [1, 2]], np.zeros(3), Score)
BOUNDS = ((1.0,), (1.0, 2.0, 3.0, 4.0), (3.0, 2.0, 1.0), ("a", "b", "c"), [0.0, 1.0], (None, None, None))
STAGES = ("applies", "measure", "scores", "claims", "figures")
PLACES = (*STAGES, "variable", "attribute", "score", "claim", "figure", "attention", "words", "raises")


class UnspeakableError(Exception):
    """An error that cannot be said."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS = (
    ValueError("a\x1b[31mred\nline"), SystemExit(0), SystemExit("bye"), RecursionError(), UnspeakableError(),
    KeyError("\ud800"), StopIteration(), ValueError("x" * 100_000), AssertionError(),
)  # fmt: skip


def odd_probe(draw: np.random.Generator | None) -> Probe:
    """A probe broken in one or two places; in none without a generator."""
    broken = set() if draw is None else set(draw.choice(PLACES, size=draw.integers(1, 3)).tolist())
    raising = draw.choice(STAGES) if "raises" in broken else None

    def one(choices: Sequence[Any]) -> Any:
        return choices[draw.integers(len(choices))]

    def odd() -> Any:
        return one(one((TEXTS, NUMBERS, OBJECTS, BOUNDS)))

    def given(stage: str, good: Any) -> Any:
        """What a stage returns."""
        if stage == raising:
            raise one(ERRORS)
        return odd() if stage in broken else good

    def measure(subject: Subject) -> Any:
        values = np.arange(len(subject.coordinates), dtype=float)
        data = xr.Dataset({"value": (subject.axis, values)}, {subject.axis: subject.coordinates})
        data["value"].attrs["unit"] = "nats"
        if "variable" in broken:
            columns = (values + 1j, np.full(len(values), odd(), object), values.astype(str), values > 0)
            data[one(TEXTS)] = (one((subject.axis, "time")), one(columns))
        if "attribute" in broken:
            data["value"].attrs[one(TEXTS)] = odd()
        return given("measure", data)

    def scores(data: xr.Dataset, null: xr.Dataset | None) -> Any:
        fields: dict[str, Any] = {"value": 0.5, "unit": "nats", "null": (0.1, 0.2, 0.3)}
        name: Any = "mean"
        if "score" in broken:
            field = one((*fields, "interval", "null_kind", "reason", "law", "name"))
            if field == "name":
                name = odd()
            else:
                fields[field] = odd()
        return given("scores", {name: Score(**fields)})

    def figures(data: xr.Dataset) -> Any:
        fields: dict[str, Any] = {"title": "A line", "caption": "It rises.", "kind": "plotly", "key": ""}
        fields["content"] = go.Figure(go.Scatter(x=[0, 1], y=[1.0, 2.0]))
        if "figure" in broken:
            fields[one(list(fields))] = odd()
        drawn = [Figure(**fields)]
        if "attention" in broken:
            shape = draw.integers(0, 4, size=draw.integers(2, 5)) if draw.integers(2) else (2, 2, 2)
            patterns = np.full(shape, one((0.5, 0.5, float("nan"), -1.0, 1e300)))
            view = AttentionView(["a", one(TEXTS)], patterns, [one(TEXTS), "L0H1"])
            drawn.append(Figure("Heads", "What they read.", "attention", view))
        return given("figures", drawn)

    words = ["How odd?", "nobody", "mean = 1/2"]
    if "words" in broken:
        words[draw.integers(3)] = odd()

    def claims(data: xr.Dataset, scores: Any) -> Any:
        fields: dict[str, Any] = {"subject": ("model",), "relation": "measures", "object": ("a number",)}
        fields |= {"value": 0.5, "unit": "nats"}
        if "claim" in broken:
            fields[one(list(fields))] = odd()
        return given("claims", [Claim(**fields)])

    stages = (lambda _: given("applies", None), measure, scores, claims, figures)
    return Probe("odd", words[0], words[1], *stages, formula=words[2])


def good_probe() -> Probe:
    """The one whose answer must stay as it is."""

    def measure(subject: Subject) -> xr.Dataset:
        steps = np.asarray(subject.coordinates, float)
        return xr.Dataset({"step_number": (subject.axis, steps)}, {subject.axis: subject.coordinates})

    def scores(data: xr.Dataset, null: xr.Dataset | None) -> dict[str, Score]:
        return {"first": Score(float(data["step_number"][0]), "steps")}

    return Probe("good", "Good?", "nobody", lambda _: None, measure, scores, lambda *_: [], lambda _: [])


def raising_probe() -> Probe:
    """One that raises where it measures."""

    def measure(subject: Subject) -> Any:
        raise ZeroDivisionError("no luck")

    return replace(good_probe(), name="raising", measure=measure)


def endless_probe() -> Probe:
    """One that does not end."""

    def measure(subject: Subject) -> Any:
        while True:
            time.sleep(0.01)

    return replace(good_probe(), name="endless", measure=measure)


def check_odd_probe(run: Run, draw: np.random.Generator | None, folder: Path) -> str | None:
    """Ask a run an odd and a good probe, and save: the good one's answer and all files must be whole.

    Returns:
        None if the odd one has an outcome, else one printable line that says why not.
    """
    try:
        odd = odd_probe(draw)
    except TypeError as error:  # its question, source or formula is not text
        return str(error)
    result = mm.probe(run, [odd, good_probe()], sequences=2, progress=False)
    assert result["good"].scores["first"].value == float(run.steps[-1])
    result.save(folder)
    said = json.loads((folder / "summary.json").read_text("utf-8"))
    assert said["probes"]["good"]["scores"]["first"]["value"] == float(run.steps[-1])
    with xr.open_datatree(folder / "results.nc", engine="h5netcdf") as tree:
        assert "good" in tree.children
        tree.load()
    page = (folder / "report.html").read_text("utf-8")
    assert page.rstrip().endswith("</html>")
    assert "<script>alert(1)" not in page
    assert str(result)
    assert result._repr_html_()
    result.to_dataframe()
    why = result.failed.get("odd") or result.skipped.get("odd")
    assert ("odd" in result) == (why is None)
    assert why is None or (why.isprintable() and 0 < len(why) < 1000), why
    return why
