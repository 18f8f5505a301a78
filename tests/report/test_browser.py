"""The report as its reader meets it: in a real Chromium with no network."""

import hashlib
from itertools import pairwise

import pytest
from looking import BROKEN
from report_examples import PAYLOADS, attention_patterns, circle, outcome, walk_result
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from window import Browser

from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.score import Score
from mechmarkov.report.html import write
from mechmarkov.result import Result

pytestmark = pytest.mark.browser

# The opaque colours of a canvas, each with the number of its pixels.
PIXELS = """
  const source = arguments[0], canvas = document.createElement("canvas");
  canvas.width = source.width; canvas.height = source.height;
  const context = canvas.getContext("2d"); context.drawImage(source, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const counts = new Map(); for (const pixel of data) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const solid = [...counts].filter(([pixel, count]) => pixel >>> 24 === 255 && count > 50);
  return solid.map(([pixel, count]) => [pixel & 0xffffff, count]);
"""


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark"), (1920, "light")])
def test_every_figure_is_drawn_and_nothing_is_said_or_asked_for(browser, walk, width, scheme):
    browser.open(walk, width, scheme)
    assert len(browser.draw_all()) == 6
    for selector, count in (
        ("path.js-line", 3 + 2 + 1),
        (".barlayer .point path", 4),
        (".heatmaplayer image", 2),
    ):
        sizes = browser.js(
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((e) => e.getBBox()).map((b) => b.width + b.height)",
            f".js-plotly-plot {selector}",
        )
        assert sum(size > 20 for size in sizes) >= count, selector
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.said() == []
    assert browser.requests() == [walk.as_uri()]
    loaded = "performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:'))"
    assert browser.js(f"return {loaded}.length") == 0


@pytest.mark.parametrize(
    "fragment",
    ["1", "-", "--", "-1", "1a", "", "%", "%23", "a b", '"]', "\\", "a:b", "é", "figure", "main > *"],
)
def test_a_fragment_is_whatever_somebody_writes(browser, walk, fragment):
    browser.open(walk)
    browser.js("location.hash = arguments[0]", fragment)
    browser.js("return new Promise((done) => setTimeout(done, 50))")
    assert browser.said() == []
    browser.open(walk, address=f"?again#{fragment}")
    assert browser.said() == []


def test_a_fragment_unfolds_what_it_names(browser, walk):
    browser.open(walk)
    found = "return [...document.querySelectorAll('[id]:has(.fold)')].map((card) => card.id)"
    (name, *_) = browser.js(found)
    is_open = f"return document.querySelector('#{name} .fold').open"
    browser.js("document.querySelectorAll('.fold').forEach((fold) => (fold.open = false))")
    assert not browser.js(is_open)
    browser.js("location.hash = arguments[0]", name)
    browser.wait(is_open, f"{name} stays folded")


def test_a_heat_map_shows_the_matrix(browser, walk):
    browser.open(walk)
    browser.draw_all()
    shown = browser.js(
        "return [...document.querySelectorAll('#figure-3-2 .heatmap-label text')].map((e) => e.textContent)"
    )
    numbers = [float(number) for number in shown]
    assert numbers == circle(6, 0.5).ravel().tolist()
    image = browser.js(
        "return document.querySelector('#figure-3-2 .heatmaplayer image').getAttribute('href')"
    )
    assert image.startswith("data:image/png")
    loaded = browser.driver.execute_async_script(
        "const done = arguments[1], image = new Image();"
        "image.onload = () => done(image.width * image.height);"
        "image.src = arguments[0];",
        image,
    )
    assert loaded > 1000


def test_circuitsvis_draws_the_attention_of_the_chosen_head(browser, walk):
    browser.open(walk)
    browser.draw_all()
    canvas = "#figure-2-1 .panel:not([hidden]) canvas"
    first = dict(browser.js(PIXELS, browser.driver.find_element(By.CSS_SELECTOR, canvas)))
    blue = [
        pixel for pixel in first if (pixel >> 16) > 140 and (pixel & 0xFF) < 80
    ]  # stored as blue, green, red
    assert sum(first[pixel] for pixel in blue) > 1000  # 24 cells of attention near one

    # By keyboard alone: the arrow keys move through the heads.
    radio = browser.driver.find_element(By.CSS_SELECTOR, "#figure-2-1 input")
    radio.send_keys(Keys.ARROW_RIGHT)
    radio = browser.driver.switch_to.active_element
    radio.send_keys(Keys.ARROW_RIGHT)
    browser.wait(
        "return document.querySelector('#figure-2-1-head-2 canvas')?.width > 100", "head 2 is not drawn"
    )
    assert browser.js(
        "return [...document.querySelectorAll('#figure-2-1 .panel:not([hidden])')].map((p) => p.id)"
    ) == ["figure-2-1-head-2"]
    flat = dict(browser.js(PIXELS, browser.driver.find_element(By.CSS_SELECTOR, canvas)))
    blue = [pixel for pixel in flat if (pixel >> 16) > 140 and (pixel & 0xFF) < 80]
    assert sum(flat[pixel] for pixel in blue) < sum(first.values()) / 100
    assert browser.said() == []


def test_circuitsvis_numbers_the_end_of_a_context_by_its_places(browser, tmp_path):
    view = AttentionView(list("abcde"), attention_patterns(2, 5), ["L0H0", "L0H1"], n_keys=64)
    drawn = outcome("a", figures=lambda: [Figure("t", "c", "attention", view)])
    browser.open(write(Result({"title": "t"}, [5], {"a": drawn}), tmp_path / "end.html"))
    browser.draw_all()
    browser.js(
        "const of = CircuitsVis;"
        "CircuitsVis = { ...of, render: (id, kind, props) => {"
        # As CircuitsVis makes the names of its axes.
        "  window.names = props.tokens.map((token, i) => `${token} (${i})`);"
        "  return of.render(id, kind, props);"
        "} };"
        "document.querySelectorAll('.heads input')[1].click();"
    )
    assert browser.js("return names") == ["a (59)", "b (60)", "c (61)", "d (62)", "e (63)"]
    assert browser.said() == []


def test_figures_wait_until_scrolled_to_and_what_is_unfolded_is_drawn_for_print(browser, walk):
    browser.open(walk)
    last = "return document.querySelectorAll('#figure-3-2 .main-svg').length"
    browser.wait("return document.querySelectorAll('#figure-2-1 canvas').length", "no canvas while idle")
    assert browser.js(last) == 0
    browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert browser.js(last) > 0
    waiting = browser.js(
        "return [...document.querySelectorAll('.drawing:not(.drawn)')]"
        ".filter((d) => d.checkVisibility()).map((d) => d.closest('figure').id)"
    )
    assert waiting == []


def test_a_phone_folds_the_probes_and_nothing_is_wider_than_it(browser, walk):
    browser.open(walk, 390)
    assert browser.js("return document.querySelectorAll('.fold[open]').length") == 0
    assert browser.js("return document.documentElement.scrollWidth") <= 390
    assert browser.js("return document.documentElement.scrollHeight") < 12_000
    assert browser.said() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_text_of_figures_follows_the_readers_scheme(browser, walk, scheme):
    browser.open(walk, scheme=scheme)
    browser.draw_all()
    ink = browser.js("return getComputedStyle(document.body).color")
    fills = browser.js(
        "return [...document.querySelectorAll('.xtick text, .xtitle, .legendtext, .infolayer text')]"
        ".map((e) => getComputedStyle(e).fill)"
    )
    assert len(fills) > 20
    assert set(fills) == {ink}


def test_headings_are_in_order_and_figures_have_names(browser, walk):
    browser.open(walk)
    browser.draw_all()
    levels = browser.js(
        "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.js("return document.documentElement.lang") == "en"
    pictures = "document.querySelectorAll('.main-svg[role=img], .panel[role=img], svg.bar[role=img]')"
    browser.wait(f"return {pictures}.length >= 6 + 8", "some picture has no name")
    names = browser.js(f"return [...{pictures}].map((e) => e.getAttribute('aria-label'))")
    assert all(names)


def click_everything(browser: Browser) -> None:
    """Points at and clicks what reacts: heat maps, legends, heads and attention."""
    for selector in (".nsewdrag", ".legendtoggle", ".heads input", "canvas", ".bar"):
        for element in browser.driver.find_elements(By.CSS_SELECTOR, selector)[:12]:
            browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
            if element.is_displayed() or selector == ".nsewdrag":
                ActionChains(browser.driver, duration=20).move_to_element(element).pause(
                    0.05
                ).click().perform()


@pytest.mark.parametrize("policy", [True, False])
def test_hostile_labels_stay_text(browser, hostile, tmp_path, policy):
    page = hostile.read_text(encoding="utf-8")
    start = page.index("<meta http-equiv")
    end = page.index(">", start) + 1
    # The second line of defence must not hide a hole in the first, so the page is tried without its policy
    # too; there, and only there, can a script of the test's own prepare to record what runs.
    recorder = "" if policy else "<script>window.owned = []</script>"
    path = tmp_path / "hostile.html"
    path.write_text(page if policy else page[:start] + recorder + page[end:], encoding="utf-8")
    browser.open(path, 1280)
    assert len(browser.draw_all()) == 5
    title = browser.driver.title
    click_everything(browser)
    assert browser.js("return window.owned?.length ?? 0") == 0
    assert browser.driver.title == title
    assert title.startswith(PAYLOADS[0])
    foreign = "img, script[src], iframe, a[href^=javascript], [onerror], [onload], [onclick]"
    assert browser.js("return document.querySelectorAll(arguments[0]).length", foreign) == 0
    assert browser.said() == []
    assert browser.requests() == [path.as_uri()]


def test_hostile_labels_are_shown_as_they_are(browser, hostile):
    browser.open(hostile, 390)
    browser.draw_all()
    assert browser.js("return document.documentElement.scrollWidth") <= 390
    text = browser.js("return document.querySelector('main').textContent")
    for shown in (*PAYLOADS[:5], r"\u202egnp.exe", r"nul\x00 tab  line  sep  half\ud800", PAYLOADS[7]):
        assert shown in text
    assert "[10000 characters]" in text
    ticks = browser.js(
        "return [...document.querySelectorAll('#figure-1-2 .ytick text')].map((e) => e.textContent)"
    )
    assert ticks == [
        "</script><script>owned.…",
        '<img src=x onerror="own…',
        '"><svg onload="owned.pu…',
        '<a href="javascript:own…',
        "{{7*7}}{% raw %}",
        r"\u202egnp.exe",
        r"nul\x00 tab  line  sep …",
        "&lt;i&gt; %{x} $x^2$",
        "x" * 23 + "…",
    ]
    raw = browser.js(
        "return [...document.querySelectorAll('#figure-1-5 .xtick text')].map((e) => e.textContent)"
    )
    assert raw[1].startswith("<img src=x onerror=")
    assert raw[3].startswith('<a href="javascript:')  # plotly.js would make it a link


def test_a_hover_names_the_cell_as_text(browser, hostile):
    browser.open(hostile)
    browser.draw_all()
    area = browser.driver.find_element(By.CSS_SELECTOR, "#figure-1-2 .nsewdrag")
    browser.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", area)
    ActionChains(browser.driver).move_to_element(area).perform()
    browser.wait("return document.querySelector('#figure-1-2 .hoverlayer text')", "no hover label")
    assert browser.js("return document.querySelector('#figure-1-2 .hoverlayer text').textContent") == (
        "{{7*7}}{% raw %}, {{7*7}}{% raw %}: 0"
    )


def test_the_policy_blocks_a_script_that_slipped_in(browser, walk, tmp_path):
    injected = (
        """<script>document.title = 'owned'</script><img src="data:," onerror="document.title='owned'">"""
    )
    path = tmp_path / "injected.html"
    path.write_text(
        walk.read_text(encoding="utf-8").replace("</main>", injected + "</main>", 1), encoding="utf-8"
    )
    browser.open(path)
    assert len(browser.draw_all()) == 6
    assert "owned" not in browser.driver.title
    refused = [message for message in browser.said() if "Content Security Policy" in message]
    assert len(refused) == 2
    # The same injection runs where there is no policy, so that the test can fail.
    page = path.read_text(encoding="utf-8")
    start = page.index("<meta http-equiv")
    path.write_text(page[:start] + page[page.index(">", start) + 1 :], encoding="utf-8")
    browser.open(path)
    assert browser.driver.title == "owned"


def test_the_policy_admits_no_connection(browser, walk):
    browser.open(walk)
    browser.draw_all()  # plotly.js tries once to make a function of a text, which the policy refuses
    outcome = browser.driver.execute_async_script(
        "const done = arguments[0];"
        "addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective));"
        "fetch('https://example.org/').catch(() => {});"
    )
    assert outcome == "connect-src"
    digest = hashlib.sha256(walk.read_bytes()).hexdigest()
    again = write(walk_result(), walk)  # the page is reproducible
    assert hashlib.sha256(again.read_bytes()).hexdigest() == digest


def test_words_of_scores_are_whole_on_a_phone(browser, tmp_path):
    """Reasons of scores without a value, and values that are words, stand in a narrow column."""
    why = Score(None, "share", reason="only the identity is an automorphism of the chain")
    scores = {"largest_effect_component": Score("undecided", ""), "circulant_share": why}
    result = Result({"title": "of mine"}, [0], {"symmetry": outcome("symmetry", scores=scores)}, {}, {})
    browser.open(write(result, tmp_path / "words.html"), 390)
    assert "automorphism" in browser.js("return document.querySelector('.scores').textContent")
    assert browser.js(BROKEN) == []
