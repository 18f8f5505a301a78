"""Two runs on one page: aligned by probe, score and figure, on one scale; many without figures."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from looking import BROKEN
from report_examples import PAYLOADS, hostile_result, outcome, walk_result

import mechmarkov as mm
from mechmarkov.cli import cli
from mechmarkov.cli._probe import called_names
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.score import Score
from mechmarkov.report.compare import render, write_comparison
from mechmarkov.report.figures import heatmap
from mechmarkov.result import Result


def small(level: float, **others: object) -> Result:
    def figures() -> list[Figure]:
        return [Figure("Matrix", "What it is.", "plotly", heatmap(level * np.eye(2)))]

    asked = outcome(
        "alignment",
        question="Is it aligned?",
        verdict=f"Aligned to {level}.",
        scores={"kernel_cosine": Score(level, "cosine", 0.0)},
        figures=figures,
    )
    return Result(metadata={"title": f"run of {level}"}, steps=[5], outcomes={"alignment": asked}, **others)


def test_scores_of_one_name_stand_in_one_row_and_what_is_missing_says_why():
    other = Result(metadata={"title": "other"}, steps=[5], outcomes={}, skipped={"alignment": "K is 2"})
    page = render({"a": small(0.25), "b": small(0.75), "c": other})
    assert "3 runs side by side" in page
    row = page[page.index('">Kernel cosine</button>') :]
    row = row[: row.index("</tr>")]
    assert [row.index(shown) for shown in ("0.25", "0.75", "not measured")] == sorted(
        row.index(shown) for shown in ("0.25", "0.75", "not measured")
    )
    assert "does not apply: K is 2" in page
    assert page.count('<h2 id="probe-1-title">Is it aligned?</h2>') == 1
    assert page.count("score = Σ aᵢ / n") == 2  # of the card, and behind the score's name


def test_figures_of_one_title_share_a_scale():
    results = {"a": small(1.0), "b": small(4.0)}
    page = render(results)
    assert page.count("<figure ") == 2
    assert page.count(">Matrix</h3>") == 1  # its heading and its caption are said once
    assert page.count(">At a step.<") <= 1
    assert page.count('"zmax":4.0') == 2


def test_runs_of_different_sources_have_alike_bars_and_say_their_step_once():
    results = {
        name: mm.probe(mm.example(name), ["behaviour"], sequences=64) for name in ("walk", "induction")
    }
    page = render(results)
    for name, result in results.items():
        row = page[page.index(f"<li><b>{name}</b>") :]
        assert row[: row.index("</li>")].count(f"step {result.steps[0]}") == 1
    assert "overlaid" not in page  # one dot a run
    bars = [data for data in re.findall(r'<script type="application/json".*', page) if '"type":"bar"' in data]
    far = [json.loads(data[data.index(">") + 1 :].removesuffix("</script>"))["figure"] for data in bars[:2]]
    assert [figure["data"][0]["orientation"] for figure in far] == ["h", "h"]
    assert far[0]["layout"]["xaxis"]["range"] == far[1]["layout"]["xaxis"]["range"]


def test_the_steps_of_a_comparison_are_said_and_two_of_one_run_are_a_curve():
    walk = mm.example("walk")
    results = {
        "one": mm.probe(walk, ["behaviour"], steps=[10], sequences=64),
        "two": mm.probe(walk, ["behaviour"], steps=[10, 50], sequences=64),
    }
    page = render(results)
    assert "probed at step 10 · seed 0." in page
    assert "probed at 2 steps from 10 to 50, scores at the last · seed 0." in page
    assert ">Loss over training, overlaid</h3>" in page


def test_many_runs_have_scores_alone():
    page = render({f"run {i}": small(i / 64) for i in range(64)})
    assert "<figure " not in page
    assert "plotly.js v" not in page
    assert "up to 4 runs" in page
    assert len(page) < 300_000


def test_one_run_is_no_comparison(tmp_path):
    with pytest.raises(ValueError, match="results hold 1, expected two or more"):
        write_comparison({"a": small(1.0)}, tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_runs_are_called_by_their_files_and_by_their_folders_where_files_are_called_alike():
    assert called_names([Path("a.pt"), Path("x/b.pt")]) == ["a", "b"]
    assert called_names([Path("x/run.pt"), Path("y/run.pt")]) == ["x-run", "y-run"]
    with pytest.raises(ValueError, match=r"x/run\.pt is given twice"):
        called_names([Path("x/run.pt"), Path("x/run.pt")])


@pytest.mark.usefixtures("few_nulls")
def test_by_command_line_each_run_has_its_folder_and_all_have_a_page(tmp_path):
    for name in ("walk", "trap"):
        mm.example(name).save(tmp_path / f"{name}.pt")
    arguments = [
        "probe", str(tmp_path / "walk.pt"), str(tmp_path / "trap.pt"), "--probes", "dynamics,attention",
    ]  # fmt: skip
    done = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "trap", "walk"]
    for name in ("walk", "trap"):
        kept = {path.name for path in (tmp_path / "out" / name).iterdir()}
        assert kept == {"report.html", "results.nc", "summary.json"}
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "2 runs side by side" in page
    assert page.count(">Attention by lag</h3>") == 1


@pytest.mark.browser
def test_the_page_of_two_runs_is_drawn_and_says_nothing(browser, tmp_path):
    hostile = replace(hostile_result(), steps=[50])
    path = write_comparison({"a": walk_result(), PAYLOADS[1]: hostile}, tmp_path / "two.html")
    for width in (390, 1280):
        browser.open(path, width)
        assert len(browser.draw_all()) > 6
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert browser.js(BROKEN) == []
        assert browser.said() == []
        assert browser.requests() == [path.as_uri()]
