"""Hostile labels in a report: whatever a text says, the page has the tags that it has for an ordinary one."""

from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mechmarkov.claims.claim import Claim, Claims
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.outcome import Outcome
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars
from mechmarkov.report.html import render
from mechmarkov.report.payload import figure_data, script_json
from mechmarkov.result import Result

pytestmark = pytest.mark.system

# Without lone surrogates: a probe or a score with one is refused where it is made (`test_contract.py`).
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)  # a page is too slow to be shrunk
PIECES = (
    "<script>alert(1)</script>", "</script>", "<!--", "-->", "]]>", "<img src=x onerror=alert(1)>", '"', "'",
    "`", "&lt;", "&#60;", "{{ 7 * 7 }}", "{% raw %}", "javascript:alert(1)", "\u202e", "\u2028", "\x00",
    "\x1b[2J", "<style>*{display:none}</style>", "<b>", "</figure>", "onload=", "${x}", "\\",
    "%3Cscript%3E", "é", "\n",
)  # fmt: skip
hostile = (
    st.lists(st.sampled_from(PIECES) | st.text(max_size=8), min_size=1, max_size=5).map("".join).filter(bool)
)


class Tags(HTMLParser):
    """The tags of a page with the names of their attributes, and no text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attributes)))


def result(text: str) -> Result:
    """Every place that can hold text of a file holds it."""
    probe = Probe(
        name=text,
        question=text,
        cites=text,
        applies=lambda subject: None,
        measure=lambda subject: xr.Dataset(),
        scores=lambda data, null: {},
        claims=lambda data, scores: [],
        figures=lambda data: [],
    )
    scores = {text: Score(text, text, null=0.5, null_kind=text), f"{text} none": Score(None, "", reason=text)}
    claim = Claim((text,), "measures", (text,), 0.5, unit=text, probe=text)
    outcome = Outcome(probe, xr.Dataset(), None, scores, Claims((claim,)), verdict=text)
    run = dict.fromkeys(("title", "source", "model", "objective"), text) | {"provenance": {"a": text}}
    return Result(
        metadata=run, steps=[5], outcomes={text: outcome}, skipped={text: text}, failed={text: text}
    )


@settings(max_examples=40, deadline=None, phases=QUICK, suppress_health_check=[HealthCheck.too_slow])
@given(hostile)
def test_text_makes_no_tag(text):
    page = render(result(text))
    page.encode()
    # A long title is set in smaller type.
    assert Tags(page).seen in [Tags(render(result(one))).seen for one in ("ordinary", "ordinary " * 12)]


@settings(max_examples=40, deadline=None, phases=QUICK, suppress_health_check=[HealthCheck.too_slow])
@given(hostile)
def test_labels_of_figures_make_no_tag(text):
    labels = [f"{text}{i}" for i in range(3)]
    patterns = np.full((3, 3, 3), 1 / 3)
    for figure in (
        Figure(text, text, "attention", AttentionView(labels, patterns, labels)),
        Figure(
            text, text, "plotly", bars(labels, np.arange(3.0), title=text, x_title=text, y_title=text), "bars"
        ),
    ):
        written = script_json(figure_data(figure))
        assert "<" not in written
        assert written.isascii()
        assert not {chr(0x202E), chr(0)} & set(written.encode().decode("unicode_escape"))
