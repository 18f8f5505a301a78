"""The largest sweep, and the contents of its picture and its page."""

import re

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest

from mechmarkov.sweeps import SweepError, load_sweep
from mechmarkov.sweeps.page import _runs, _share_range, write
from mechmarkov.sweeps.phase import Share, cell_names, counts, figure, headings
from mechmarkov.sweeps.spec import Phase, points, seeds_of

BASE = {"name": "a", "recipe": "walk-k6-half"}
PHASE = Phase(x="p", y="q")
GRID = {"a": [0] * 1000}
HALF = Share(1, 2, 0, 0.1, 0.9)


def drawn(n_x, n_y, facets=(None,), phase=PHASE, share=HALF):
    return figure({(f, y, x): share for f in facets for y in range(n_y) for x in range(n_x)}, phase)


# -- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_most", "beyond", "words"),
    [
        ({"seeds": 1_000_000}, {"seeds": 1_000_001}, "expected how many, or a list of different integers"),
        ({"seeds": [2**63 - 1]}, {"seeds": [2**63]}, "expected how many, or a list of different integers"),
        ({"grid": GRID | {"b": [0] * 100}}, {"grid": GRID | {"b": [0] * 101}}, "are 101,000 points"),
        ({"list": [{"a": 0}] * 2}, {"grid": {"a": [0] * 100_000}, "list": [{"a": 1}]}, "are 100,001 points"),
        (
            {"grid": {"a": [0] * 50_000}, "seeds": 20},
            {"grid": {"a": [0] * 50_000}, "list": [{"a": 1}], "seeds": 20},
            "points times seeds are 1,000,020 runs",
        ),
        ({"name": "a" * 100}, {"name": "a" * 101}, "name is "),
        ({"name": "a.b-c_1"}, {"name": "a."}, "not '.' or '-' last"),
        ({"title": "a" * 1000}, {"title": "a" * 1001}, "title is "),
        ({"recipe": "a" * 200}, {"recipe": "a" * 201}, "recipe is "),
        ({"recipe": "a"}, {"recipe": ""}, "recipe is "),
    ],
)
def test_a_sweep_is_taken_up_to_its_limit(at_most, beyond, words):
    assert load_sweep(BASE | at_most).name
    with pytest.raises(SweepError, match=re.escape(words)):
        load_sweep(BASE | beyond)


def test_what_a_sweep_leaves_out_is_least():
    sweep = load_sweep(BASE)
    assert (seeds_of(sweep), sweep.probes, sweep.steps, sweep.keep_runs) == ((0,), (), "last", False)
    assert (sweep.phase, sweep.grid, sweep.list, sweep.set, sweep.title) == (None, {}, (), {}, "")
    assert Phase(x="a", y="b").event == "stuck"


def test_points_are_numbered_from_one():
    assert [point.index for point in points(load_sweep(BASE | {"grid": {"source.p": [0.1, 0.2]}}))] == [1, 2]


def test_a_long_point_is_named_in_120_characters():
    grid = {"source.p": [0.1], "title": ["x" * 200], "steps": [0]}
    with pytest.raises(SweepError) as error:
        points(load_sweep(BASE | {"grid": grid}))
    changes = f"source.p = 0.1, title = '{'x' * 200}'"[:119] + "…"
    assert str(error.value).startswith(f"point 1 ({changes}): ")


# -- the picture ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_x", "n_y", "n_facets", "size"),
    [
        (1, 1, 1, (460, 410, 380)),
        (3, 3, 1, (460, 410, 380)),
        (4, 4, 1, (160 + 4 * 92, 150 + 4 * 72, 380)),
        (5, 5, 1, (160 + 5 * 92, 150 + 5 * 72, 120 + 5 * 64)),
        (1, 1, 2, (160 + 600, 410, 120 + 520)),
        (5, 1, 2, (160 + 10 * 92, 410, 120 + 10 * 64)),
    ],
)
def test_a_picture_grows_by_its_cells(n_x, n_y, n_facets, size):
    phase = Phase(x="p", y="q", facet="f" if n_facets > 1 else None)
    layout = drawn(n_x, n_y, range(n_facets) if n_facets > 1 else (None,), phase).layout
    assert (layout.width, layout.height, layout.meta["least"]) == size


def test_a_picture_can_be_clicked_and_not_moved():
    picture = drawn(2, 2)
    layout, trace = picture.layout, picture.data[0]
    assert (layout.coloraxis.cmin, layout.coloraxis.cmax, layout.dragmode) == (0, 1, False)
    for axis in (layout.xaxis, layout.yaxis):
        assert (axis.fixedrange, axis.showgrid, axis.zeroline, axis.tickvals) == (True, False, False, (0, 1))
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("p", "q")
    assert (trace.xgap, trace.ygap, trace.hoverongaps, trace.x, trace.y) == (2, 2, True, (0, 1), (0, 1))
    assert [list(row) for row in trace.customdata] == [[0, 1], [2, 3]]
    assert (layout.title.x, layout.legend.y, layout.legend.x) == (0.02, -0.16, 0)
    assert layout.margin.to_plotly_json() == {"l": 70, "r": 20, "t": 90, "b": 60}


def test_panels_share_their_rows_and_name_them_once():
    layout = drawn(1, 2, (1, 2), Phase(x="p", y="q", facet="model.tied")).layout
    assert (layout.yaxis.title.text, layout.yaxis2.title.text) == ("q", None)
    assert layout.yaxis2.matches == "y"
    assert layout.xaxis2.domain[0] - layout.xaxis.domain[1] == pytest.approx(0.04)
    assert [note.text for note in layout.annotations] == ["tied = 1", "tied = 2"]


@pytest.mark.parametrize(
    ("ps", "qs", "ends"),
    [
        ([0.2, 0.8], [0.2, 0.8], [(0, 1), (1, 0)]),
        ([0.2, 0.5], [0.2, 0.5], [(1, 1), (1, 1)]),  # they meet in a corner
        ([0.2, 0.4], [0.2, 0.5], None),
        ([0.3], [0.7], None),  # of one row or column it crosses one place
        ([0.5], [0.2, 0.8], None),
        ([0.2, 0.8], [0.5], None),
    ],
)
def test_independence_is_drawn_where_it_is(ps, qs, ends):
    lines = figure({(None, q, p): HALF for q in qs for p in ps}, PHASE).data[1:]
    assert len(lines) == (ends is not None)
    for line in lines:
        assert len(line.x) == 50
        found = [(line.x[0], line.y[0]), (line.x[-1], line.y[-1])]
        np.testing.assert_allclose(found, ends, atol=1e-12)
        assert line.line.to_plotly_json() == {"color": "#D55E00", "width": 3, "dash": "dash"}
    assert len(drawn(2, 2, phase=Phase(x="p", y="other")).data) == 1


def test_a_box_has_three_reasons_cut_short():
    share = Share(0, 0, 9, np.nan, np.nan, ("a", "b" * 100, "c" * 101, "d"))
    text = drawn(1, 1, share=share).data[0].hovertext[0][0]
    assert text == f"p = 0, q = 0<br>9 undecided:<br>a<br>{'b' * 100}<br>{'c' * 99}…"


def test_a_box_counts_and_bounds():
    trace = drawn(1, 1, share=Share(3, 8, 0, 0.13684, 0.69426)).data[0]
    assert trace.hovertext[0][0] == "p = 0, q = 0<br>3 of 8<br>95 % interval 0.137 to 0.694 (Wilson)"
    assert trace.text[0][0] == "3/8<br>0.14–0.69"
    assert trace.z[0][0] == 3 / 8


def test_cells_are_called_by_all_their_fields():
    cells = [("a", True, 0.1), ("a", None, 1e-5)]
    names = cell_names(cells, Phase(x="source.p", y="model.tied", facet="kind"))
    assert names == ["p = 0.1, tied = true, kind = a", "p = 1e-05, tied = null, kind = a"]


def test_a_heading_says_what_is_counted():
    assert headings(PHASE)[0] == "Share of runs below half of the gain over the unigram"
    other = headings(Phase(x="p", y="q", event="symmetry.trapped"), "Title")
    assert other[0] == "Share of runs where symmetry.trapped is true"
    assert other[1] == f"Title · {headings(PHASE)[1]}"


# -- the page ------------------------------------------------------------------------------------------------


def runs(count, seeds=None):
    return pa.table(
        {
            "p": [0.1] * count,
            "q": [0.2] * count,
            "seed": list(seeds or range(count)),
            "status": ["ok"] * count,
            "key": [f"k{i}" for i in range(count)],
            "final_loss": pa.array([0.12345] * (count - 1) + [None], pa.float64()),
            "stuck": pa.array([True, False, *[None] * (count - 2)]),
            "stuck.reason": pa.array([None, None, *["w" * 101] * (count - 2)], pa.string()),
        }
    )


def test_a_line_says_how_a_run_ended(tmp_path):
    (tmp_path / "runs" / "k0").mkdir(parents=True)
    (tmp_path / "runs" / "k0" / "report.html").touch()
    (tmp_path / "runs" / "k1.pt").touch()
    lines = _runs(runs(3), PHASE, tmp_path)
    assert [line.name for line in lines] == ["seed 0", "seed 1", "seed 2"]
    assert [line.event for line in lines] == ["yes", "no", f"undecided: {'w' * 99}…"]
    assert [line.loss for line in lines] == ["0.1235", "0.1235", "ok"]
    assert [line.report for line in lines] == ["runs/k0/report.html", "", ""]
    assert [line.kept for line in lines] == [False, True, False]
    twice = _runs(runs(3, [4, 5, 4]), PHASE, tmp_path)
    assert [line.name for line in twice] == ["run 1, seed 4", "run 2, seed 5", "run 3, seed 4"]


@pytest.mark.parametrize(
    ("count", "listed", "drawn"), [(16, 16, True), (17, 16, True), (4000, 16, True), (4001, 16, False)]
)
def test_a_cell_lists_sixteen_runs(tmp_path, count, listed, drawn):
    table = runs(count)
    curves = {"k0": {"step": [0, 10], "loss": [0.7, 0.5]}}
    write(figure(counts(table, PHASE), PHASE), table, PHASE, tmp_path / "page.html", curves, {})
    page = (tmp_path / "page.html").read_text("utf-8")
    for seed, shown in ((listed - 1, True), (listed, False)):
        assert (f'<th scope="row">seed {seed}</th>' in page) == shown
    assert (f"{count - listed} more {'is' if count == 17 else 'are'} in the table." in page) == (
        count > listed
    )
    assert ('id="figure-curves"' in page) == drawn
    assert ("Of more than 4000 runs no learning curves are drawn." in page) == (not drawn)


def test_curves_of_all_cells_share_a_range():
    pictures = [go.Figure(go.Scatter(y=[1.0, np.nan, 2.0])), go.Figure(go.Scatter(y=[3.0, 5.0]))]
    _share_range(pictures)
    assert [list(picture.layout.yaxis.range) for picture in pictures] == [[0.8, 5.2]] * 2
    flat = [go.Figure(go.Scatter(y=[2.0, 2.0]))]
    _share_range(flat)
    assert list(flat[0].layout.yaxis.range) == [1.9, 2.1]
