"""The reports of the bundled runs with every probe and every step: their size, and that all is readable."""

from pathlib import Path

import pytest
from looking import COVERED, CUT, violations
from window import Browser

import mechmarkov as mm

# Probing every step of the induction run takes minutes on one core.
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", ["walk", "trap", "induction"])
def test_a_bundled_runs_report_is_small_and_readable(browser: Browser, tmp_path: Path, name: str) -> None:
    result = mm.probe(mm.example(name), steps="all")
    path = result.report(tmp_path / "report.html")
    assert path.stat().st_size < 8_000_000
    for width in (390, 1280, 1920):
        browser.open(path, width)
        assert len(browser.draw_all()) > 20
        assert browser.js(CUT) == []
        assert browser.js(COVERED) == []
        assert violations(browser) == []
        assert browser.said() == []
        assert browser.requests() == [path.as_uri()]
