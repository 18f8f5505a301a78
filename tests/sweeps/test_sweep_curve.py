"""The picture of a sweep over one field, against numbers computed here."""

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from sweep_cases import tiny, two_points

from mechmarkov.sweeps import Phase, SweepError, load_sweep, sweep
from mechmarkov.sweeps.curve import figure, heading, positions, score_of

RUNS = pa.table(
    {
        "source.p": [0.8, 0.2, 0.2, 0.2, 0.8],
        "model.n_layers": [1, 1, 1, 2, 2],
        "behaviour.excess_loss": [0.5, 0.1, 0.3, 0.2, None],
        "symmetry.trapped": [True, False, True, False, True],
        "note": ["a", "b", "c", "d", "e"],
    }
)


def drawn(phase: Phase) -> dict[str, dict[float, float]]:
    """The lines of the picture by their names, and "low" and "high" of what they are in."""
    traces = figure(RUNS, phase).data
    lines = {trace.name: trace for trace in traces if trace.name and trace.mode == "lines+markers"}
    found = {name: dict(zip(trace.x, trace.y, strict=True)) for name, trace in lines.items()}
    ends = [trace for trace in traces if trace.mode == "lines" and trace.hoverinfo == "skip"]
    pairs = zip(("low", "high") * len(lines), ends, strict=True)
    return found | {name: dict(zip(trace.x, trace.y, strict=True)) for name, trace in pairs}


def test_means_and_intervals_over_seeds() -> None:
    found = drawn(Phase(x="source.p"))
    assert found["mean"] == pytest.approx({0.2: 0.2, 0.8: 0.5})
    values = [0.1, 0.3, 0.2]
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert (found["low"][0.2], found["high"][0.2]) == pytest.approx((low, high), rel=1e-4)
    assert np.isnan([found["low"][0.8], found["high"][0.8]]).all()  # one seed has no interval
    (dots,) = [trace for trace in figure(RUNS, Phase(x="source.p")).data if trace.mode == "markers"]
    assert sorted(zip(dots.x, dots.y, strict=True)) == [(0.2, 0.1), (0.2, 0.2), (0.2, 0.3), (0.8, 0.5)]


def test_a_line_for_each_value_of_the_facet() -> None:
    found = drawn(Phase(x="source.p", facet="model.n_layers"))
    assert found["n_layers = 1"] == pytest.approx({0.2: 0.2, 0.8: 0.5})
    assert found["n_layers = 2"][0.2] == pytest.approx(0.2)


def test_a_score_that_is_true_or_false_is_a_share() -> None:
    phase = Phase(x="source.p", score="symmetry.trapped")
    found = drawn(phase)
    assert found["mean"] == pytest.approx({0.2: 1 / 3, 0.8: 1.0})
    expected = scipy.stats.binomtest(1, 3).proportion_ci(method="wilson")
    assert (found["low"][0.2], found["high"][0.2]) == pytest.approx((expected.low, expected.high))
    assert heading(RUNS, phase) == "Trapped over p"


def test_what_is_drawn_without_a_choice() -> None:
    assert score_of(RUNS, Phase(x="source.p")) == "behaviour.excess_loss"
    without = RUNS.drop_columns("behaviour.excess_loss").append_column("final_loss", [[1.0] * 5])
    assert score_of(without, Phase(x="source.p")) == "final_loss"
    said = r"^phase.score is 'note', expected a column with numbers.*\(the table is written\)$"
    with pytest.raises(SweepError, match=said):
        figure(RUNS, Phase(x="source.p", score="note"))
    assert positions(RUNS, Phase(x="note")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("field", [{"source.p": [0.2, 0.5]}, {"model.tied": [True, False]}])
def test_a_sweep_over_one_field_has_a_picture(tmp_path, field) -> None:
    swept = sweep(two_points(grid=field), tmp_path)
    scores = np.array(swept.table["behaviour.excess_loss"].to_pylist()).reshape(2, 2)
    (line,) = [trace for trace in swept.phase.data if trace.mode == "lines+markers"]
    np.testing.assert_allclose(line.y, scores.mean(1))
    assert line.customdata.tolist() == [0, 1]  # the cells that a click opens
    assert swept.summary()[-1] == str(tmp_path / "phase.html")
    page = (tmp_path / "phase.html").read_text("utf-8")
    assert "Excess loss over" in page
    assert "Phase diagram" not in page
    names = ["true", "false"] if "model.tied" in field else None
    assert swept.phase.layout.xaxis.ticktext == (tuple(names) if names else None)


def test_a_score_next_to_two_fields_is_refused() -> None:
    phase = {"x": "source.p", "y": "source.q", "score": "behaviour.accuracy"}
    said = "phase.score is 'behaviour.accuracy', expected none with y: the event is drawn"
    with pytest.raises(SweepError, match=said):
        load_sweep(tiny(phase=phase))
