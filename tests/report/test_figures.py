"""The helpers that give every figure one look."""

import numpy as np
import pytest
import xarray as xr

from mechmarkov.report.figures import DIVERGING, PALETTE, bars, heatmap, lines
from mechmarkov.report.probe_figures import over_training


def contrast(first: str, second: str) -> float:
    """Contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_a_diverging_map_has_zero_in_its_middle():
    trace = heatmap(np.array([[-0.5, 2.0], [0.0, np.nan]]), diverging=True).data[0]
    assert (trace.zmin, trace.zmax) == (-2.0, 2.0)
    colours = dict(DIVERGING)
    assert contrast(colours[0.5], "#ffffff") < 1.1
    assert min(contrast(colours[end], "#ffffff") for end in (0.0, 1.0)) > 7


@pytest.mark.parametrize(
    ("matrix", "limits"),
    [
        ([[0.25, 0.75]], (0.25, 0.75)),
        ([[1 / 3, 1 / 3]], (0.0, 1.0)),  # flat: the scale is not rounding noise
        ([[0.0, 0.0]], (0.0, 1.0)),
        ([[np.nan, np.inf]], (-1.0, 1.0)),
    ],
)
def test_the_limits_of_a_sequential_map(matrix, limits):
    trace = heatmap(np.array(matrix)).data[0]
    assert (trace.zmin, trace.zmax) == limits


def test_shared_limits_are_kept():
    trace = heatmap(np.array([[0.2, 0.4]]), limits=(0.0, 1.0)).data[0]
    assert (trace.zmin, trace.zmax) == (0.0, 1.0)


def test_labels_are_text_and_may_repeat():
    figure = heatmap(np.eye(3), ["a", "a", "<b>c</b>"], ["x", "y", "&z"], row_title="<i>row</i>")
    assert figure.layout.yaxis.ticktext == ("a", "a", "&lt;b&gt;c&lt;/b&gt;")
    assert figure.layout.yaxis.tickvals == (0, 1, 2)
    assert figure.layout.xaxis.ticktext == ("x", "y", "&amp;z")
    assert figure.layout.yaxis.title.text == "&lt;i&gt;row&lt;/i&gt;"
    assert figure.data[0].hovertext[2][1] == "&lt;b&gt;c&lt;/b&gt;, y"
    assert figure.layout.yaxis.autorange == "reversed"


def test_many_states_keep_readable_ticks():
    figure = heatmap(np.eye(97))
    assert figure.layout.xaxis.tickvals == tuple(range(0, 97, 10))
    assert figure.layout.xaxis.ticktext == tuple(str(tick) for tick in range(0, 97, 10))
    assert heatmap(np.eye(20)).layout.yaxis.ticktext == tuple(str(tick) for tick in range(0, 20, 2))
    assert heatmap(np.eye(16)).layout.yaxis.tickvals == tuple(range(16))
    assert figure.data[0].hovertext is None


def test_lines_differ_by_more_than_colour():
    x = np.arange(3.0)
    figure = lines(x, dict.fromkeys("abcdef", x), references={"chance": 0.5}, bands={"a": (x - 1, x + 1)})
    drawn = [trace for trace in figure.data if trace.name and trace.fill is None]
    assert len({trace.line.dash for trace in drawn[:6]}) == 6
    many = lines(x, dict.fromkeys("abcdefghijklmnopqrst", x)).data
    assert len({(trace.line.color, trace.line.dash) for trace in many}) == 20
    assert [trace.line.color for trace in drawn[:6]] == list(PALETTE)
    assert [trace.name for trace in drawn] == [*"abcdef", "chance"]
    band = [trace for trace in figure.data if trace.fill == "tonexty"]
    assert np.array_equal(band[0].y, x + 1)
    assert not band[0].showlegend


def test_bars_carry_their_intervals():
    values = np.array([1.0, 2.0])
    figure = bars(["<a>", "b"], values, errors=(values - 0.25, values + 0.5))
    assert figure.data[0].error_y.array.tolist() == [0.5, 0.5]
    assert figure.data[0].error_y.arrayminus.tolist() == [0.25, 0.25]
    assert figure.layout.xaxis.ticktext == ("&lt;a&gt;", "b")


@pytest.mark.parametrize("paper", ["#ffffff", "#1a1d21"])
def test_the_palette_stands_out_on_light_and_dark(paper):
    assert min(contrast(colour, paper) for colour in PALETTE) > 2.2
    assert all(contrast(colour, paper) > 3 for colour in PALETTE[:3])


def test_labels_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="row_labels has 1 names, expected 2"):
        heatmap(np.eye(2), ["a"])
    with pytest.raises(ValueError, match="labels has 1 names, expected 2"):
        bars(["a"], np.ones(2))
    with pytest.raises(ValueError, match="series 'a' has 2 values, expected 3 as x has"):
        lines(np.arange(3.0), {"a": np.ones(2)})


def test_shares_on_a_logarithmic_axis_keep_its_own_range():
    data = xr.Dataset(coords={"step": [0, 10]})
    shares = {"gradient": np.array([1.0, 0.001])}
    drawn = (over_training("t", "c", data, shares, "share", log_y=log)[0] for log in (False, True))
    linear, log = (figure.content.layout.yaxis.range for figure in drawn)
    assert linear == (0, 1.02)
    assert log is None  # [0, 1.02] would be 1 to 10 there, and the figure empty
