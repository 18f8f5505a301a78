"""The sweep's page: a cell opens its runs, by mouse, by keyboard and by address."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from looking import assert_nothing_is_wrong
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from window import Browser

from mechmarkov.sweeps import curve
from mechmarkov.sweeps.page import CellRuns, RunLine, _curves, write
from mechmarkov.sweeps.phase import counts, figure
from mechmarkov.sweeps.spec import Phase

PHASE = Phase(x="source.p", y="source.q")
LOSSES = {"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.8}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells of two seeds; run `a` has a report, run `b` is kept, `d` has diverged."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "runs" / "a").mkdir(parents=True)
    (folder / "runs" / "a" / "report.html").write_text("<title>report of a</title>", "utf-8")
    (folder / "runs" / "b.pt").touch()
    table = pa.table(
        {
            "source.p": [0.2, 0.2, 0.8, 0.8],
            "source.q": [0.3, 0.3, 0.6, 0.6],
            "seed": [0, 1, 0, 1],
            "status": ["ok", "ok", "ok", "diverged"],
            "stuck": pa.array([False, True, True, None]),
            "final_loss": pa.array([0.5, 0.6, 0.7, None]),
            "key": list(LOSSES),
        }
    )
    curves = {key: {"step": [0, 9, 99], "loss": [1.0, 0.9, LOSSES[key]]} for key in "abc"}
    levels = {key: {"unigram": 0.69, "best": 0.5} for key in LOSSES}
    picture = figure(counts(table, PHASE), PHASE, "Two cells")
    write(picture, table, PHASE, folder / "phase.html", curves, levels, name="Two cells")
    return folder / "phase.html"


def shown(browser: Browser) -> str:
    """The runs that the page shows, as text."""
    return str(browser.js("return document.querySelector('[data-at]:not([hidden]):not(.cursor)').innerText"))


def test_the_page_needs_no_network_and_has_the_axes_and_the_line(page):
    text = page.read_text("utf-8")
    assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=", text.replace('href="data:,"', "")) == []
    assert "default-src 'none'" in text
    assert "p + q = 1" in text
    assert "<p>Stuck in 2 of 4 runs (1 undecided): in every run of 0 cells, in none of 0 cells.</p>" in text
    assert '"text":"p"' in text
    assert '"text":"q"' in text


def test_runs_of_a_cell_that_trained_for_other_steps_share_an_axis():
    runs = [RunLine(key, key, "yes", "0.5 nats", "", False) for key in "ab"]
    curves = {"a": {"step": [0, 10, 20], "loss": [3.0, 2.0, 1.0]}, "b": {"step": [0, 5], "loss": [4.0, 2.0]}}
    drawn = _curves(CellRuns("cell", runs, 0), curves, {})
    assert drawn is not None
    a, b = drawn.content.data
    assert a.customdata.tolist() == b.customdata.tolist() == [0, 5, 10, 20]
    np.testing.assert_allclose(a.y, [3.0, 2.5, 2.0, 1.0])
    np.testing.assert_allclose(b.y, [4.0, 2.0, np.nan, np.nan])


@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (768, "dark"), (1280, "dark"), (1920, "light")]
)
def test_a_cell_opens_its_runs_and_their_curves(browser, page, width, scheme):
    browser.open(page, width, scheme)
    browser.draw_all()
    link = browser.driver.find_element(By.LINK_TEXT, "Open its report")
    assert link.get_attribute("href") == (page.parent / "runs" / "a" / "report.html").as_uri()
    assert "runs/b.pt" in shown(browser)
    # The second cell, by a click into the diagram.
    cells = browser.driver.find_element(By.CSS_SELECTOR, "#figure-phase .nsewdrag")
    place = cells.size
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", cells)
    ActionChains(browser.driver).move_to_element_with_offset(
        cells, place["width"] // 4, -place["height"] // 4
    ).click().perform()
    browser.wait("return document.getElementById('step').value === '1'", "the click chose no cell")
    assert "diverged" in shown(browser)
    assert browser.js("return location.hash") == "#cell=1"
    assert browser.js("return document.querySelector('#figure-phase .cursor').dataset.at") == "0,1,1"
    browser.wait(
        "return document.querySelector('#figure-curves h3').textContent.endsWith('at p = 0.8, q = 0.6')",
        "the curves did not follow",
    )
    drawn = browser.js(
        "return document.querySelector('#figure-curves .js-plotly-plot, #figure-curves .drawing')"
        "._fullData.map((trace) => [trace.name, [...trace.y].at(-1)])"
    )
    assert drawn == [["seed 0", 0.7], ["unigram", 0.69], ["best", 0.5]]
    # And back by keyboard.
    choice = browser.driver.find_element(By.ID, "step")
    choice.send_keys(Keys.ARROW_UP)
    assert Select(choice).first_selected_option.text == "p = 0.2, q = 0.3"
    assert "runs/b.pt" in shown(browser)
    assert_nothing_is_wrong(browser, width)
    assert browser.requests() == [page.as_uri()]


@pytest.mark.browser
def test_the_address_keeps_the_cell(browser, page):
    browser.open(page, address="#cell=1")
    browser.wait("return document.getElementById('step').value === '1'", "the address chose no cell")
    assert "diverged" in shown(browser)


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_over_one_field(browser, tmp_path, width):
    """A run that is undecided has its reason in the table, which does not leave the page."""
    why = "the unigram is as good as the bigram here, and no other law is any better"
    table = pa.table(
        {
            "source.p": [0.2, 0.2, 0.8, 0.8],
            "seed": [0, 1, 0, 1],
            "status": ["ok"] * 4,
            "stuck": pa.array([None, None, True, False]),
            "stuck.reason": pa.array([why, why, None, None]),
            "behaviour.excess_loss": [0.5, 0.6, 0.1, 0.2],
            "key": list(LOSSES),
        }
    )
    phase = Phase(x="source.p")
    write(curve.figure(table, phase), table, phase, tmp_path / "phase.html", {}, {}, name="One field")
    browser.open(tmp_path / "phase.html", width, "light")
    assert browser.js("return document.querySelector('h1').textContent") == "Excess loss over p"
    assert why in shown(browser)
    assert_nothing_is_wrong(browser, width)
    browser.driver.find_element(By.ID, "step").send_keys(Keys.ARROW_DOWN)
    assert why not in shown(browser)
    cursor = "return document.querySelector('.cursor').dataset.at"
    assert browser.js(cursor) == "0.8"
