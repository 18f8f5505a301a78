"""The table's columns and the phase diagram's numbers."""

import math

import numpy as np
import pyarrow as pa
import pytest

from mechmarkov.sweeps import SweepError
from mechmarkov.sweeps.page import CellRuns, RunLine, _curves
from mechmarkov.sweeps.phase import counts, figure, places, share
from mechmarkov.sweeps.spec import Phase, Point
from mechmarkov.sweeps.table import column, table
from mechmarkov.training import load_recipe

RECIPE = load_recipe("walk-k6-half")
PHASE = Phase(x="p", y="q")


def row(key, stuck=None, **found):
    line = {"value": stuck, "reason": None, "excess": None, "line": None}
    empty = {"message": None, "metrics": {}, "scores": {}, "skipped": {}, "failed": {}}
    return {"key": key, "status": "ok", "step": 4, "stuck": line, "seconds": 1.0} | empty | found


def outcomes(cells):
    """A table with a column of outcomes for each (p, q)."""
    rows = [(p, q, value) for (p, q), values in cells.items() for value in values]
    p, q, stuck = zip(*rows, strict=True)
    return pa.table({"p": p, "q": q, "stuck": pa.array(stuck, pa.bool_())})


@pytest.mark.parametrize(("hits", "n"), [(0, 8), (8, 8), (3, 8), (1, 1), (40, 100)])
def test_the_interval_is_wilsons_formula(hits, n):
    found = share([True] * hits + [False] * (n - hits))
    z = 1.959963984540054
    centre = (hits / n + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(hits / n * (1 - hits / n) / n + z * z / (4 * n * n))
    assert (found.hits, found.n) == (hits, n)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), abs=1e-12)


def test_undecided_runs_are_counted_apart():
    found = counts(outcomes({(0.1, 0.2): [True, None, False], (0.5, 0.5): [None, None]}), PHASE)
    first, none = found[None, 0.2, 0.1], found[None, 0.5, 0.5]
    assert (first.hits, first.n, first.unknown) == (1, 2, 1)
    assert (none.hits, none.n, none.unknown) == (0, 0, 2)
    assert math.isnan(none.low)


def test_a_cell_without_a_number_says_why():
    known = outcomes({(0.1, 0.2): [True, None], (0.5, 0.5): [None, None]})
    why = [None, "it diverged", "the unigram is as good", "the unigram is as good"]
    found = counts(known.append_column("stuck.reason", pa.array(why)), PHASE)
    assert found[None, 0.5, 0.5].reasons == ("the unigram is as good",)
    boxes = [text for row in figure(found, PHASE).data[0].hovertext for text in row]
    assert "p = 0.5, q = 0.5<br>2 undecided:<br>the unigram is as good" in boxes
    assert any(text.endswith("(Wilson)<br>1 undecided:<br>it diverged") for text in boxes)


def test_axes_are_ordered_and_cells_are_numbered():
    cells = {(0.8, 0.1): [True] * 4, (0.2, 0.1): [False] * 4, (0.2, 0.9): [True, False, False, False]}
    picture = figure(counts(outcomes(cells), PHASE), PHASE)
    trace, line = picture.data
    assert line.name == "p + q = 1"
    assert picture.layout.xaxis.ticktext == ("0.2", "0.8")
    assert picture.layout.yaxis.ticktext == ("0.1", "0.9")
    z = np.array(trace.z, dtype=float)
    assert z[0].tolist() == [0.0, 1.0]  # the lowest q is the lowest row
    assert z[1, 0] == 0.25
    assert math.isnan(z[1, 1])  # not in the sweep
    assert trace.text[1][0].startswith("1/4<br>0.05–0.70")
    assert "not in the sweep" in trace.hovertext[1][1]


def test_a_cells_number_and_place_agree():
    data = pa.table({"p": [0.5, 0.2, 0.5], "q": [0.1, 0.9, 0.1], "tied": [True, True, False]})
    data = data.append_column("stuck", pa.array([True, False, None]))
    phase = Phase(x="p", y="q", facet="tied")
    found = counts(data, phase)
    panels = [trace for trace in figure(found, phase).data if trace.type == "heatmap"]
    assert len(found) == 3
    for number, (panel, x, y) in enumerate(places(list(found))):
        assert panels[panel].customdata[y][x] == number
    assert sum(number >= 0 for trace in panels for row in trace.customdata for number in row) == 3


def test_an_undecided_cell_has_a_dash():
    picture = figure(counts(outcomes({(0.5, 0.5): [None], (0.6, 0.5): [True]}), PHASE), PHASE)
    assert math.isnan(np.array(picture.data[0].z, dtype=float)[0, 0])
    assert [(note.x, note.y, note.text, note.showarrow) for note in picture.layout.annotations] == [
        (0, 0, "–", False)
    ]


def test_a_facet_has_a_panel_a_value():
    data = pa.table({"p": [1, 1], "q": [2, 2], "<b>": [True, False], "stuck": [True, False]})
    phase = Phase(x="p", y="q", facet="<b>")
    picture = figure(counts(data, phase), phase, title="<i>title</i>")
    assert [note.text for note in picture.layout.annotations] == ["&lt;b&gt; = true", "&lt;b&gt; = false"]
    assert [trace.z[0][0] for trace in picture.data] == [1.0, 0.0]
    assert "&lt;i&gt;title" in picture.layout.title.text


def test_each_panel_has_the_line_of_independence():
    """At the places of the axes' values, which are unevenly far apart; named once."""
    p, q = [0.2, 0.4, 0.8], [0.3, 0.6, 0.7]
    cells = [(one, other, facet) for facet in (1, 2, 3) for one in p for other in q]
    first, second, facets = zip(*cells, strict=True)
    data = pa.table({"p": first, "q": second, "seen": facets, "stuck": [True] * len(cells)})
    phase = Phase(x="p", y="q", facet="seen")
    lines = [trace for trace in figure(counts(data, phase), phase).data if trace.type == "scatter"]
    assert [line.showlegend for line in lines] == [True, False, False]
    for line in lines:
        one, other = (np.interp(place, range(3), values) for place, values in ((line.x, p), (line.y, q)))
        assert one + other == pytest.approx(1)
        assert (min(one), max(one)) == pytest.approx((0.3, 0.7))


def test_other_events_are_columns_of_booleans():
    data = outcomes({(0.1, 0.2): [True, False]})
    data = data.append_column("symmetry.trapped", pa.array([True, True]))
    data = data.append_column("status", pa.array(["ok", "diverged"]))
    trapped = counts(data, Phase(x="p", y="q", event="symmetry.trapped"))
    diverged = counts(data, Phase(x="p", y="q", event="diverged"))
    assert (trapped[None, 0.2, 0.1].hits, diverged[None, 0.2, 0.1].hits) == (2, 1)
    with pytest.raises(SweepError, match=r"expected diverged or a column .*: stuck, symmetry.trapped"):
        counts(data, Phase(x="p", y="q", event="status"))


def test_a_score_has_its_null_and_interval():
    scores = {
        "a": {
            "kl": {"value": 0.5, "unit": "nats", "null": [0.1, 0.2, 0.3], "interval": [0.4, 0.6]},
            "chance": {"value": True, "unit": "", "null": 0.25},
            "none": {"value": None, "unit": "nats", "reason": "why not"},
        }
    }
    point = Point(1, {"source.p": 0.5}, RECIPE)
    found = table(
        [(point, 7), (point, 8)],
        [
            row("x", scores=scores, metrics={"loss": 0.7}, skipped={"b": "no"}),
            row("y", status="diverged", stuck=None),
        ],
    )
    first, second = found.to_pylist()
    assert first["seed"] == 7
    assert first["final_loss"] == 0.7
    assert [first[f"a.kl{part}"] for part in ("", ".low", ".high", ".null_low", ".null", ".null_high")] == [
        0.5,
        0.4,
        0.6,
        0.1,
        0.2,
        0.3,
    ]
    assert (first["a.chance"], first["a.chance.null"]) == (True, 0.25)
    assert (first["a.none"], first["a.none.reason"], first["b.skipped"]) == (None, "why not", "no")
    assert second["a.kl"] is None
    assert found.schema.field("a.kl.null_low").metadata == {b"unit": b"nats"}
    assert found.column_names[:3] == ["source.p", "seed", "status"]
    assert found.column_names[-2:] == ["seconds", "key"]


@pytest.mark.parametrize(
    ("values", "kind", "kept"),
    [
        ([True, None], "bool", [True, None]),
        ([1, 2], "int64", [1, 2]),
        ([1, 0.5], "double", [1.0, 0.5]),
        (["a", None], "string", ["a", None]),
        ([[0, 1], None, "a"], "string", ["[0, 1]", None, '"a"']),
        ([True, 1], "string", ["true", "1"]),
        ([{"b": 1, "a": [True]}, 1.5, None], "string", ['{"a": [true], "b": 1}', "1.5", None]),
        ([None, None], "bool", [None, None]),
    ],
)
def test_a_column_has_one_type(values, kind, kept):
    found = column(values)
    assert (str(found.type), found.to_pylist()) == (kind, kept)


def test_different_sources_share_no_exact_lines():
    runs = [RunLine(f"run {key}", key, "yes", "0.5", "", False) for key in ("a", "b")]
    curves = {key: {"step": [0, 10], "loss": [0.7, 0.5]} for key in ("a", "b")}
    for q, said in ((0.6, "Grey: exact predictors."), (0.5, "Sources differ")):
        drawn = _curves(CellRuns("p = 0.2", runs, 1), curves, {"a": {"best": 0.6}, "b": {"best": q}})
        assert said in drawn.caption
        assert "The first 2 runs." in drawn.caption
        assert len(drawn.content.data) == 2 + (q == 0.6)
