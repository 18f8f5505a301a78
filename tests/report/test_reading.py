"""That everybody can read the report: no text cut or covered, all by keyboard, axe-core content, on paper."""

import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from looking import COVERED, CUT, violations
from report_examples import with_paths
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

import mechmarkov as mm
from mechmarkov.report.compare import write_comparison
from mechmarkov.report.figures import symlog
from mechmarkov.report.html import write

pytestmark = pytest.mark.browser

# Probes that take seconds and draw every kind of figure; `test_bundled.py` looks at all of them.
GAP = 32  # pixels below each item, at most
QUICK = ["behaviour", "attention", "ablation", "dynamics"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of several steps with a slider, and two runs side by side."""
    folder = tmp_path_factory.mktemp("reading")
    # Few sequences: what is looked at is where text and marks lie, not what the scores are.
    walk, trap = (
        mm.probe(mm.example(name), probes, steps=[0, 50], sequences=16)
        for name, probes in (("walk", QUICK), ("trap", QUICK[:3]))
    )
    both = {"walk": replace(walk, outcomes={name: walk[name] for name in QUICK[:3]}), "trap": trap}
    return {
        "one run": write(walk, folder / "walk.html"),
        "two runs": write_comparison(both, folder / "compare.html"),
    }


@pytest.mark.parametrize("page", ["one run", "two runs"])
@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_no_text_is_cut_or_covered_and_axe_finds_nothing_serious(browser, pages, page, width):
    browser.open(pages[page], width)
    browser.draw_all()
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        assert browser.js(CUT) == []
        assert browser.js(COVERED) == []
    # Colours are all that the scheme changes, and no width changes a colour.
    if width == 1280:
        assert violations(browser, runOnly=["color-contrast"]) == []
        browser.scheme("light")
        assert violations(browser) == []
    else:
        assert violations(browser, rules={"color-contrast": {"enabled": False}}) == []
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.said() == []


@pytest.mark.parametrize("width", [1280, 1920])
def test_a_card_is_no_taller_than_its_content(browser, pages, width):
    browser.open(pages["one run"], width)
    browser.draw_all()
    time.sleep(0.5)  # figures lie where their heights let them
    stacks = browser.js(
        "return [...document.querySelectorAll('.stacked')].map((stack) => [...stack.querySelectorAll("
        "'figure, .reading, .method')].map((e) => e.getBoundingClientRect())"
        ".map((box) => [box.x, box.y, box.bottom]))"
    )
    assert len(stacks) > 3
    for items in map(np.array, stacks):
        x, top, bottom = items.T
        n = 2 if width == 1280 else 3
        ways = itertools.product(range(n), repeat=len(items) - 1)
        spans = bottom - top + GAP
        least = min(max(np.bincount([0, *way], spans)) for way in ways)
        assert max(bottom) - min(top) <= least + 48 + len(items)  # an item moves only for a gain that is seen
        for one, other in itertools.combinations(range(len(items)), 2):
            apart = x[one] != x[other] or top[one] >= bottom[other] or top[other] >= bottom[one]
            assert apart, (one, other)


def test_axe_would_find_what_is_wrong(browser, pages):
    browser.open(pages["one run"])
    browser.js("document.querySelector('h1').style.color = '#eee'; document.documentElement.lang = ''")
    found = violations(browser)
    assert {line.split(":")[0] for line in found} == {"color-contrast", "html-has-lang"}


def test_everything_is_reached_and_worked_by_keyboard_with_a_visible_focus(browser, moving):
    browser.open(moving)
    browser.draw_all()
    reached = []

    def next_one() -> WebElement:
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        return browser.driver.switch_to.active_element

    while next_one().tag_name != "body":
        pass
    while (element := next_one()).tag_name != "body":
        drawn = browser.js(
            "const e = arguments[0], look = getComputedStyle(e.closest('.heads label') ?? e);"
            "return look.outlineStyle !== 'none' && parseFloat(look.outlineWidth) >= 2",
            element,
        )
        reached.append((element, drawn))
    every = browser.js(
        "return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility())"
    )
    assert {one.id for one, _ in reached} == {one.id for one in every}
    assert all(drawn for _, drawn in reached)
    kinds = [one.tag_name for one, _ in reached]
    assert {"a", "input", "select", "button"} <= set(kinds)
    # Each does its work by its own keys: the link leads to its card, the choice changes the sequence.
    link = next(one for one, _ in reached if one.tag_name == "a")
    link.send_keys(Keys.ENTER)
    assert browser.driver.current_url.endswith("#probe-1")
    choice = next(one for one, _ in reached if one.tag_name == "select")
    choice.send_keys(Keys.ARROW_DOWN)
    panels = "return [...document.querySelectorAll('.panel:not([hidden])')].map((p) => p.id)"
    assert browser.js(panels) == ["figure-1-2-head-0-sequence-1-step-2"]
    assert browser.said() == []


def test_a_mark_shows_the_sliders_step_in_what_is_drawn_over_training(browser, pages):
    browser.open(pages["one run"])
    browser.draw_all()
    cursors = "document.querySelectorAll('.js-plotly-plot .cursor')"
    marks = f"return [...{cursors}].map((cursor) => Number(cursor.dataset.at))"
    before = browser.js(marks)
    assert len(before) > 4
    assert set(before) == {float(symlog(50))}
    circuit = (
        "return document.querySelector('#figure-circuit .drawing').data"
        ".filter((t) => t.meta?.row).map((t) => t.line.width)"
    )
    learned = browser.js(circuit)
    browser.js("scrollTo({top: 0, behavior: 'instant'})")
    time.sleep(0.5)
    browser.driver.find_element(By.ID, "step").send_keys(Keys.HOME)
    assert set(browser.js(marks)) == {0}
    assert max(browser.js(circuit)) == 1 < max(learned)
    assert browser.said() == []


def test_on_paper_all_is_drawn_on_white_and_nothing_is_cut(browser, pages):
    browser.open(pages["one run"], scheme="dark")
    browser.draw_all()
    shape = (
        "return [...document.querySelectorAll('.panel canvas')].map((c) => c.getBoundingClientRect())"
        ".map((box) => box.width / box.height)"
    )
    on_screen = browser.js(shape)
    size = {"width": 794, "height": 900, "deviceScaleFactor": 1, "mobile": False}  # A4
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.js("dispatchEvent(new Event('beforeprint'))")
    browser.wait(
        "const shown = [...document.querySelectorAll('.drawing')].filter((d) => !d.closest('[hidden]'));"
        "return shown.every((d) => d.classList.contains('drawn'))"
        " && shown.filter((d) => d.closest('[data-kind=attention]'))"
        ".every((d) => d.querySelector('canvas')?.width > 100)",
        "not all is drawn",
    )
    try:
        papers = browser.js(
            "return [document.body, ...document.querySelectorAll('.card, .slider, .drawing')]"
            ".map((e) => getComputedStyle(e).backgroundColor)"
        )
        assert set(papers) <= {"rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"}
        assert browser.js(CUT) == []
        # A printer does not wait until a canvas is drawn again: it is scaled, as it was on the screen.
        shapes = np.array(browser.js(shape))
        assert shapes == pytest.approx(on_screen, rel=0.02)
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_circuit_of_many_heads_scrolls_on_a_phone(browser, tmp_path):
    effects = {(f"L0H{head}", "logits"): (1.0, 1.0) for head in range(12)}
    effects |= {("embed", f"L0H{head}.V"): (0.5, 0.5) for head in range(12)}
    browser.open(write(with_paths(effects), tmp_path / "circuit.html"), 390)
    browser.draw_all()
    assert browser.js(COVERED) == []
    assert browser.js(CUT) == []
    drawing = browser.driver.find_element(By.CSS_SELECTOR, "#figure-circuit .drawing")
    whole, seen = browser.js("return [arguments[0].scrollWidth, arguments[0].clientWidth]", drawing)
    assert whole > seen
    assert browser.js("return document.documentElement.scrollWidth") <= 390
    assert violations(browser) == []
