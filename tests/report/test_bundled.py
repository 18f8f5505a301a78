"""The reports of the bundled runs with every probe and every step: their size, and that all is readable."""

from pathlib import Path

import pytest
from looking import COVERED, CUT, violations
from reading_aloud import long_sentences, read
from window import Browser

import mechmarkov as mm
from mechmarkov.report.first_screen.headline import at_step, headline
from mechmarkov.report.words.short_forms import MAX_ANSWER_WORDS
from mechmarkov.report.words.tiles import MAX_TILE_WORDS
from mechmarkov.report.words.title import MAX_TITLE_WORDS

# Probing every step of the induction run takes minutes on one core.
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(3600)]

PAPER = (8.27, 11.0)  # inches: as wide as A4, as high as Letter; what fits on it fits on both
MAX_PRINTED_PAGES = 12
MAX_COMPARED_PAGES = 20  # two pairs of figures for each probe


@pytest.mark.parametrize("name", ["walk", "trap", "induction", "mamba", "graph"])
def test_a_bundled_runs_report_is_small_and_readable(browser: Browser, tmp_path: Path, name: str) -> None:
    result = mm.probe(mm.example(name), steps="all")
    for i in range(len(result.steps)):
        said = headline(at_step(result, i))
        assert len(said.title.split()) <= MAX_TITLE_WORDS, said.title
        for tile in said.tiles:
            assert len(tile.sentence.split()) <= MAX_TILE_WORDS, tile.sentence
            assert len(tile.answer.split()) <= MAX_ANSWER_WORDS, tile.answer
    assert long_sentences(read(result)) == []
    assert said.badge == ("trapped" if name == "trap" else "solved")
    path = result.report(tmp_path / "report.html")
    assert path.stat().st_size < 7_000_000
    for width in (390, 1280, 1920):
        browser.open(path, width)
        assert len(browser.draw_all()) > 20
        assert browser.js(CUT) == []
        assert browser.js(COVERED) == []
        assert violations(browser) == []
        assert browser.said() == []
        assert browser.requests() == [path.as_uri()]
    browser.open(path)
    assert 2 <= browser.printed_pages(*PAPER) <= MAX_PRINTED_PAGES


def test_a_comparison_of_all_probes_is_printed_with_the_open_figures(
    browser: Browser, tmp_path: Path
) -> None:
    results = {name: mm.probe(mm.example(name), sequences=64) for name in ("walk", "trap")}
    browser.open(mm.write_comparison(results, tmp_path / "compare.html"))
    assert 2 <= browser.printed_pages(*PAPER) <= MAX_COMPARED_PAGES
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    printed = (
        "return [...document.querySelectorAll('.fold')].map((fold) => [fold.querySelectorAll("
        "':scope > .figures').length, [...fold.querySelectorAll(':scope > .figures')]"
        ".filter((pair) => pair.checkVisibility()).length])"
    )
    pairs = browser.js(printed)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert max(whole for whole, _ in pairs) == 2
    assert all(whole == shown for whole, shown in pairs)
