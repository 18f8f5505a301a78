"""The first screen in a real browser: it fits, follows the slider, and keeps its state in the address."""

import time
from pathlib import Path

import pytest
from report_examples import holds, with_paths
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from window import Browser

import mechmarkov as mm
from mechmarkov.report.html import write
from mechmarkov.report.words.title import MAX_TITLE_WORDS

pytestmark = pytest.mark.browser

PROBES = ["behaviour", "attention", "alignment", "ablation", "storage", "dynamics"]
STEPS = [0, 1, 2, 3, 5, 8, 10, 15, 20, 50]
TITLE = "return document.querySelector('h1').innerText.trim()"
READY = "return [...document.querySelectorAll('.hero .drawing')].every((d) => d.matches('.drawn'))"


@pytest.fixture(scope="module")
def walk_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = mm.probe(mm.example("walk"), PROBES, steps=STEPS, sequences=16)
    return write(result, tmp_path_factory.mktemp("first") / "walk.html")


def opened(browser: Browser, path: Path, address: str = "") -> None:
    browser.open(path, address=address)
    browser.wait(READY, "the first screen is not drawn")


def test_the_answer_fits_on_one_screen(browser, walk_path):
    opened(browser, walk_path)
    bottoms = browser.js(
        "return [...document.querySelectorAll('.hero figure, .slider, .tile')]"
        ".map((e) => e.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 2 + 1 + 4
    assert max(bottoms) <= 800
    badge, words = browser.js(TITLE).split(maxsplit=1)
    assert badge == "solved"
    assert words.split()[:3] == ["Learned", "the", "bigram's"]
    assert len(words.split()) <= MAX_TITLE_WORDS
    assert browser.said() == []


def test_circuit_and_answers_are_printed_on_one_page(browser, walk_path):
    opened(browser, walk_path)
    assert 2 <= browser.printed_pages(8.27, 11.69) <= 12
    # What the first page of A4 has room for: 27.3 cm between margins, 18.6 cm wide, at 96 pixels an inch.
    size = {"width": 703, "height": 1031, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.js("dispatchEvent(new Event('beforeprint'))")
    boxes = browser.js(
        "return [...document.querySelectorAll('.hero .drawing, .tile')].map((e) => e.getBoundingClientRect())"
        ".map((box) => [box.right, box.bottom])"
    )
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert len(boxes) == 2 + 4
    assert all(right <= 703 and bottom <= 1031 for right, bottom in boxes)


def test_a_slider_event_redraws_what_is_in_sight_alone(browser, walk_path):
    opened(browser, walk_path)
    browser.driver.find_element(By.ID, "step").send_keys(Keys.ARROW_LEFT)
    redrawn = "return Number(document.documentElement.dataset.redrawn)"
    assert browser.js(redrawn) == 1  # the circuit; the curve's cursor moves without a redraw
    everything = browser.draw_all()
    browser.js("scrollTo({top: 0, behavior: 'instant'})")
    time.sleep(0.5)
    browser.driver.find_element(By.ID, "step").send_keys(Keys.ARROW_LEFT)
    assert 1 <= browser.js(redrawn) < len(everything) / 3
    # What was out of sight is at the slider's step when it comes into sight.
    stale = "document.querySelector('#probe-1 figure')"
    browser.js(f"{stale}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    lengths = f"return Array.from({stale}.querySelector('.drawing')._fullData[0].x)"
    browser.driver.find_element(By.ID, "step").send_keys(Keys.HOME)
    first = browser.js(lengths)
    browser.driver.find_element(By.ID, "step").send_keys(Keys.END)
    assert browser.js(lengths) != first
    assert browser.said() == []


def test_everything_on_the_first_screen_follows_the_slider(browser, walk_path):
    opened(browser, walk_path)
    learned = browser.js("return document.querySelector('.tiles').innerText")
    browser.driver.find_element(By.ID, "step").send_keys(Keys.HOME)
    assert browser.js(TITLE).startswith("untrained")
    untrained = browser.js("return document.querySelector('.tiles').innerText")
    assert "L0H0" in learned.split("How did it get there?")[0]
    assert "No part holds the bigram" in untrained
    answers = (
        "return [...document.querySelectorAll('.tile div:not([hidden]) .answer')].map((e) => e.innerText)"
    )
    assert not any("L0H0" in answer for answer in browser.js(answers))
    words = "document.querySelectorAll('[data-at]:not(.cursor):not([hidden])')"
    shown = browser.js(f"return [...{words}].map((e) => e.dataset.at)")
    assert set(shown) == {"0"}


def test_the_curve_is_a_slider_and_plays(browser, walk_path):
    opened(browser, walk_path)
    curve = browser.driver.find_element(By.CSS_SELECTOR, "#figure-curve .nsewdrag")
    ActionChains(browser.driver).move_to_element_with_offset(
        curve, -curve.size["width"] // 2 + 12, 0
    ).click().perform()
    assert browser.js("return document.getElementById('step-shown').textContent") == "0"
    play = browser.driver.find_element(By.ID, "play")
    play.click()
    browser.wait("return Number(document.getElementById('step').value) >= 2", "it does not play")
    play.click()
    at = browser.js("return document.getElementById('step').value")
    time.sleep(1.0)
    assert browser.js("return document.getElementById('step').value") == at
    points = "return document.querySelector('#figure-curve .drawing')._fullData[0].x.length"
    assert browser.js(points) == len(STEPS)


def test_the_address_keeps_step_head_and_sequence(browser, walk_path):
    opened(browser, walk_path)
    browser.driver.find_element(By.ID, "step").send_keys(Keys.HOME)
    browser.driver.find_element(By.CSS_SELECTOR, "button.head").click()
    browser.wait(
        "return document.querySelector('#head-L0H0 .drawing.drawn')", "the head's panel is not drawn"
    )
    address = browser.js("return location.hash")
    assert "step=0" in address
    assert "head=L0H0" in address
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    assert browser.js("return document.getElementById('head-L0H0').hidden")
    opened(browser, walk_path, "#step=3&head=L0H0&sequence=1")
    assert browser.js("return document.getElementById('step-shown').textContent") == "3"
    assert not browser.js("return document.getElementById('head-L0H0').hidden")
    assert browser.js("return document.querySelector('.sequence select').value") == "1"
    assert browser.said() == []


def test_a_click_on_a_head_of_the_circuit_opens_its_panel(browser, walk_path):
    opened(browser, walk_path)
    boxes = "[...document.querySelectorAll('#figure-circuit .annotation')]"
    box = f"{boxes}.find((e) => e.textContent.startsWith('L0H0'))"
    head = browser.js(f"return {box}.querySelector('.cursor-pointer') ?? {box}")
    ActionChains(browser.driver).move_to_element(head).click().perform()
    browser.wait("return !document.getElementById('head-L0H0').hidden", "the panel stays closed")
    said = browser.js("return document.getElementById('head-L0H0').innerText")
    assert "the loss rises by" in said
    assert "times sqrt P" in said  # the fitted scale


def test_what_circuitsvis_cannot_outline_is_a_click_away(browser, tmp_path):
    result = mm.probe(mm.example("induction"), ["attention", "induction", "ablation"], sequences=8)
    opened(browser, write(result, tmp_path / "induction.html"))
    browser.draw_all()
    head = result["induction"].scores["induction_head"].value
    chosen = browser.js("return document.querySelector('#figure-1-1 input:checked').parentElement.innerText")
    assert chosen.strip() == head  # which the verdict names
    button = browser.driver.find_element(By.CSS_SELECTOR, "#figure-1-1 .outlines")
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()
    browser.wait(
        f"return document.querySelector('#head-{head}:not([hidden]) .drawing.drawn')",
        "the panel is not drawn",
    )
    assert "Outlined: what an ideal induction head reads" in browser.js(
        f"return document.getElementById('head-{head}').innerText"
    )
    assert browser.js(f"return document.querySelectorAll('#figure-{head}-0 .shapelayer path').length") > 0
    assert browser.said() == []


def test_what_a_heads_panel_covers_is_redrawn_once_the_panel_is_closed(browser, walk_path):
    opened(browser, walk_path)
    effects = (
        "return document.querySelector('#figure-circuit .drawing').data"
        ".filter((t) => t.meta?.row).map((t) => t.meta.row.nats)"
    )
    learned = browser.js(effects)
    browser.driver.find_element(By.CSS_SELECTOR, "button.head").click()
    browser.wait(
        "return document.querySelectorAll('#head-L0H0 .drawing.drawn').length === 2", "the panel is not drawn"
    )
    browser.driver.find_element(By.ID, "step").send_keys(Keys.HOME)
    assert browser.js(effects) == learned
    assert browser.js("return Number(document.documentElement.dataset.redrawn)") == 2  # the panel's own
    ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
    assert browser.js(effects) != learned
    assert browser.said() == []


def test_grey_paths_are_behind_a_threshold(browser, tmp_path):
    paths = {
        ("embed", "L0H0.V"): (1.0, 1.0),
        ("embed", "L0H1.V"): (0.5, 0.5),
        ("embed", "logits"): (0.2, 0.2),
    }
    result = with_paths(paths, storage=holds("L0H0", L0H0=1.0))
    opened(browser, write(result, tmp_path / "circuit.html"))
    drawn = "return document.querySelector('#figure-circuit .drawing').data.filter((t) => t.meta?.row).length"
    assert browser.js(drawn) == 3
    move = (
        "const slider = document.getElementById('threshold');"
        "slider.value = arguments[0]; slider.dispatchEvent(new Event('input'))"
    )
    for threshold, left in ((30, 2), (60, 1), (100, 1), (0, 3)):
        browser.js(move, threshold)
        assert browser.js(drawn) == left


def test_one_step_shows_where_it_stands(browser, tmp_path):
    result = mm.probe(mm.example("walk"), ["behaviour"], sequences=16)
    opened(browser, write(result, tmp_path / "one.html"))
    said = browser.js(
        "const curve = document.getElementById('figure-curve');"
        "return curve.innerText + curve.querySelector('svg').textContent "
    )
    for words in ("Where the accuracy stands", "this model", "uniform", "best"):
        assert words in said
    assert not browser.driver.find_elements(By.ID, "step")


def test_a_figure_is_copied_as_a_picture_with_its_caption(browser, walk_path, tmp_path):
    allow = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)
    opened(browser, walk_path)
    button = browser.driver.find_element(By.CSS_SELECTOR, "#figure-curve .copy")
    button.click()
    for _ in range(100):
        made = [path for path in tmp_path.iterdir() if path.suffix == ".png"]
        if made or button.text.startswith("Copied"):
            break
        time.sleep(0.1)
    assert made or button.text.startswith("Copied")
    if made:  # where the browser gives no clipboard
        assert made[0].read_bytes().startswith(b"\x89PNG")
    assert browser.said() == []


@pytest.mark.parametrize(("before", "after"), [(390, 1280), (1280, 390), (1280, 1000)])
def test_a_window_that_changes_leaves_figures_their_height(browser, walk_path, before, after):
    browser.open(walk_path, before)
    browser.draw_all()
    size = {"width": after, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    time.sleep(0.5)  # plotly draws again a moment later
    heights = browser.js(
        "return [...document.querySelectorAll('.js-plotly-plot')].filter((e) => e.checkVisibility())"
        ".map((e) => [e.clientHeight, e.querySelector('.main-svg').clientHeight])"
    )
    assert len(heights) > 4
    assert all(frame == drawn > 100 for frame, drawn in heights)
