"""What a reader does with a trajectory's report: move the step, choose a sequence, take the data along."""

import csv
import json
import time
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from report_examples import moving_result, outcome, renamed_result
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from window import Browser

from mechmarkov.probing.figure import Figure
from mechmarkov.report.cards import probe_figures
from mechmarkov.report.figures import bars, heatmap
from mechmarkov.report.html import write
from mechmarkov.report.scales import share_scales
from mechmarkov.result import Result

LABELS = "[...document.querySelectorAll('#figure-1-1 .heatmap-label text')]"
NUMBERS = f"return {LABELS}.map((e) => Number(e.textContent))"


def test_what_is_drawn_over_all_steps_does_not_move_and_the_rest_shares_one_scale():
    result = moving_result()
    figures, problem = probe_figures(1, result.outcomes["moving"], result.steps)
    assert problem == ""
    moves = [(figure.title, figure.moves) for figure in figures]
    assert moves == [("Matrix", True), ("Pattern", True), ("Rise", False)]
    assert [figure.sequences for figure in figures] == [1, 2, 1]
    outcome = result.outcomes["moving"]
    figures = [outcome.probe.figures(outcome.data.isel(step=[i])) for i in range(3)]
    maps = [drawn[0].content for drawn in figures]
    share_scales(maps)
    assert {(figure.data[0].zmin, figure.data[0].zmax) for figure in maps} == {(0.0, 4.0)}


def test_bars_share_the_scale_along_which_they_lie():
    drawn = [bars(["a", "b"], np.array([0.5, top]), lie=True) for top in (1.0, 4.0)]
    across = drawn[0].layout.yaxis.range
    share_scales(drawn)
    assert {figure.layout.xaxis.range for figure in drawn} == {(0.0, 4.2)}
    assert {figure.layout.yaxis.range for figure in drawn} == {across}


def test_bars_lie_in_all_figures_where_they_lie_in_one():
    """As if all had been drawn so: names that fit under their bars in one figure do not in another."""
    values = np.array([0.5, 0.25])
    look = {"x_title": "path", "y_title": "nats", "errors": (values - 0.125, values + 0.0625)}
    look |= {"references": {"none": 0.75}}
    short, long = (
        bars(names, values, **look)
        for names in (["a", "b"], ["a name of 25 letters, so", "that two are over forty"])
    )
    assert [figure.data[0].orientation for figure in (short, long)] == ["v", "h"]
    lying = bars(["a", "b"], values, **look, lie=True)
    share_scales([short, long])
    share_scales([lying, bars(["a", "b"], values, **look, lie=True)])
    turned = json.loads(short.to_json())
    del turned["data"][0]["error_y"]  # empty
    assert turned == json.loads(lying.to_json())


def test_a_figure_is_bound_by_its_key_and_its_title_is_its_own_at_each_step():
    result = renamed_result()
    figures, problem = probe_figures(1, result.outcomes["renamed"], result.steps)
    assert problem == ""
    moves = [(figure.title, figure.moves) for figure in figures]
    assert moves == [("Head L0H1", True), ("Last only", True), ("First only", True)]
    head, last, first = (json.loads(figure.json)["at_step"] for figure in figures)
    assert [drawn["title"] for drawn in head] == ["Head L0H0", "Head L0H1"]
    assert {drawn["figure"]["data"][0]["zmax"] for drawn in head} == {4.0}
    assert [drawn is None for drawn in last] == [True, False]
    assert [drawn is None for drawn in first] == [False, True]


def test_two_figures_of_one_key_are_an_error():
    twice = [Figure("Same", "c", "plotly", heatmap(np.eye(2)))] * 2
    with pytest.raises(ValueError, match="2 figures have the key 'Same', expected one"):
        outcome("twice", figures=lambda: twice).figures()
    assert Figure("Same", "c", "plotly", heatmap(np.eye(2)), key="other").key == "other"


def test_where_nothing_moves_there_is_no_slider(walk, moving):
    assert 'type="range"' not in walk.read_text("utf-8")
    assert 'type="range"' in moving.read_text("utf-8")


@pytest.mark.browser
def test_the_slider_moves_every_figure_by_keyboard(browser, moving):
    browser.open(moving)
    browser.draw_all()
    browser.js("scrollTo({top: 0, behavior: 'instant'})")  # what is out of sight is not redrawn
    time.sleep(0.5)
    assert browser.js(NUMBERS) == [4, 0, 0, 4]
    slider = browser.driver.find_element(By.ID, "step")
    assert slider.get_attribute("aria-valuetext") == "step 50"
    slider.send_keys(Keys.ARROW_LEFT)
    browser.wait("return document.getElementById('step-shown').textContent === '10'", "the step stays")
    assert browser.js(NUMBERS) == [2, 0, 0, 2]
    slider.send_keys(Keys.ARROW_LEFT)
    assert browser.js(NUMBERS) == [1, 0, 0, 1]
    assert slider.get_attribute("aria-valuetext") == "step 0"
    browser.js("document.getElementById('figure-1-2').scrollIntoView({behavior: 'instant'})")
    browser.wait("return document.getElementById('figure-1-2-head-0-step-0')", "the pattern stays")
    shown = browser.js(
        "return [...document.querySelectorAll('#figure-1-2 .panel:not([hidden])')].map((p) => p.id)"
    )
    assert shown == ["figure-1-2-head-0-step-0"]
    assert browser.said() == []


@pytest.mark.browser
def test_a_step_changes_the_words_of_a_figure_and_says_where_there_is_none(browser, tmp_path):
    browser.open(write(renamed_result(), tmp_path / "renamed.html"))
    browser.draw_all()
    said = (
        "return [...document.querySelectorAll('figure')].map((f) => [f.querySelector('h3').textContent,"
        " f.querySelector('.caption').textContent, f.querySelector('.absent').checkVisibility(),"
        " f.querySelector('.drawing').checkVisibility(), f.querySelector('button.csv').disabled])"
    )
    drawn, absent = [False, True, False], [True, False, True]
    assert browser.js(said) == [
        ["Head L0H1", "Level 4.", *drawn],
        ["Last only", "At one step.", *drawn],
        ["First only", "At one step.", *absent],
    ]
    browser.driver.find_element(By.ID, "step").send_keys(Keys.HOME)
    assert browser.js(said) == [
        ["Head L0H0", "Level 1.", *drawn],
        ["Last only", "At one step.", *absent],
        ["First only", "At one step.", *drawn],
    ]
    assert browser.js(NUMBERS) == [1, 0, 0, 1]
    assert browser.js("return document.querySelectorAll('#figure-1-3 .heatmap-label text').length") == 4
    label = "return document.querySelector('#figure-1-1 .main-svg').getAttribute('aria-label')"
    browser.wait(f"{label.replace('return ', 'return (')}) === 'Head L0H0. Level 1.'", "the old name stays")
    assert browser.said() == []


def downloaded(browser: Browser, folder: Path, figure: str) -> list[list[str]]:
    allow = {"behavior": "allow", "downloadPath": str(folder)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)
    button = browser.driver.find_element(By.CSS_SELECTOR, f"#{figure} button.csv")
    button.send_keys(Keys.ENTER)
    path = folder / f"{figure}.csv"
    for _ in range(600):
        if path.exists():
            return list(csv.reader(path.read_text("utf-8").splitlines()))
        time.sleep(0.1)
    raise AssertionError(f"{path.name} was not downloaded")


@pytest.mark.browser
@pytest.mark.parametrize("lie", [True, False])
def test_the_data_of_bars_are_their_lengths_and_errors(browser, tmp_path, lie):
    values = np.array([0.5, 0.25])
    drawn = bars(["a", "b"], values, errors=(values - 0.125, values + 0.0625), lie=lie)
    found = outcome("a", figures=lambda: [Figure("t", "c", "plotly", drawn)])
    browser.open(write(Result({"title": "t"}, [5], {"a": found}), tmp_path / "bars.html"))
    browser.draw_all()
    _, *rows = downloaded(browser, tmp_path, "figure-1-1")
    lengths = [(name, float(length), float(error)) for _, name, length, _, error in rows]
    assert lengths == [("a", 0.5, 0.0625), ("b", 0.25, 0.0625)]


@pytest.mark.browser
def test_no_cell_of_a_download_is_a_formula(browser, tmp_path):
    names = ["=1+1", "+a", "-a", "@a", "\uff1da", "a;=1", "-0.5", "1e5", "plain"]
    drawn = go.Figure(go.Scatter(x=list(range(9)), y=[1] * 9, name="=cmd|' /C calc'!A0", customdata=names))
    nested = go.Figure(go.Scatter(x=[0], y=[1], name="a", customdata=[["=1+1"]]))
    figures = [Figure(t, "c", "plotly", figure) for t, figure in (("one", drawn), ("two", nested))]
    found = outcome("a", figures=lambda: figures)
    browser.open(write(Result({"title": "t"}, [5], {"a": found}), tmp_path / "formulas.html"))
    browser.draw_all()
    _, *rows = downloaded(browser, tmp_path, "figure-1-1")
    shown = ["'=1+1", "'+a", "'-a", "'@a", "'\uff1da", "a;=1", "-0.5", "1e5", "plain"]
    assert [row[:2] for row in rows] == [["'=cmd|' /C calc'!A0", name] for name in shown]
    assert '"a;=1"' in (tmp_path / "figure-1-1.csv").read_text("utf-8")
    _, (_, name, *_) = downloaded(browser, tmp_path, "figure-1-2")
    assert name == "'=1+1"


@pytest.mark.browser
def test_a_figures_data_are_downloaded_as_they_are_shown(browser, moving, tmp_path):
    browser.open(moving)
    browser.draw_all()
    header, *cells = downloaded(browser, tmp_path, "figure-1-1")
    assert header == ["trace", "x", "y", "value", "error"]
    assert [float(row[3]) for row in cells] == [4, 0, 0, 4]
    choose = browser.driver.find_element(By.CSS_SELECTOR, "#figure-1-2 select")
    choose.send_keys("2")
    header, *pairs = downloaded(browser, tmp_path, "figure-1-2")
    assert header == ["head", "query", "query_token", "key", "key_token", "attention"]
    assert [row[2] for row in pairs[::4]] == list("efgh")
    assert np.array([float(row[5]) for row in pairs]).reshape(4, 4) == pytest.approx(np.eye(4)[::-1, ::-1])
    header, *points = downloaded(browser, tmp_path, "figure-1-3")
    assert [(row[0], float(row[1]), float(row[2])) for row in points] == [
        ("'=trace, one", 0, 1),  # a spreadsheet would run what begins with an equals sign
        ("'=trace, one", 10, 2),
        ("'=trace, one", 50, 4),
    ]
    assert browser.said() == []
