"""The report's page: what is in it, what is not, and how it reaches the disk."""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_examples import (
    PAYLOADS,
    attention_patterns,
    holds,
    hostile_result,
    outcome,
    walk_result,
    with_paths,
)

import mechmarkov as mm
from mechmarkov.catalogue.probes import registered
from mechmarkov.claims.claim import Claim
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.score import Score
from mechmarkov.report.cards import figure_card
from mechmarkov.report.compare import render as compare_page
from mechmarkov.report.figures import heatmap
from mechmarkov.report.first_screen.head_panels import head_panels, outline
from mechmarkov.report.html import render, write
from mechmarkov.report.payload import MOST_LEVEL, figure_data, script_json
from mechmarkov.report.words.outcomes import consistent
from mechmarkov.report.words.sentences import sentence
from mechmarkov.result import Result


class Page(HTMLParser):
    """The tags of a page, and the texts of its scripts and of everything else."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.libraries: list[str] = []
        self.data: dict[str, str] = {}
        self.text: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style", "title"):
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.text.append(data)
        elif self._open[-1][0] == "script":
            kind = self._open[-1][1]
            if kind.get("type") == "application/json":
                self.data[str(kind["id"])] = data
            elif kind.get("class") == "library":
                self.libraries.append(gzip.decompress(base64.b64decode(data)).decode())
            else:
                self.scripts.append(data)


def page_of(figures: list[Figure]) -> str:
    return render(Result({"title": "t"}, [0], {"a": outcome("a", figures=lambda: figures)}))


def data_of(*view: object, **options: object) -> dict:
    return figure_data(Figure("t", "c", "attention", AttentionView(*view, **options)))


@pytest.fixture(scope="module")
def walk_page(walk: Path) -> str:
    return walk.read_text("utf-8")


@pytest.fixture(scope="module")
def parsed(walk_page: str) -> Page:
    return Page(walk_page)


def test_the_policy_names_exactly_the_scripts_of_the_page(parsed):
    policy = next(attrs["content"] for tag, attrs in parsed.tags if attrs.get("http-equiv"))
    assert policy is not None
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    expected = {
        "'sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() + "'"
        for s in [*parsed.scripts, *parsed.libraries]
    }
    assert (len(parsed.scripts), len(parsed.libraries)) == (1, 2)
    assert set(directives.pop("script-src").split()) == expected
    assert directives == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "font-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_each_bundle_is_there_once_and_the_page_is_small(walk_page, parsed):
    both = "".join(parsed.libraries)
    assert both.count("* plotly.js v") == 1
    assert both.count("var CircuitsVis=") == 1
    assert "sourceMappingURL" not in both
    assert len(walk_page.encode()) < 3_000_000


def test_a_bundle_is_left_out_where_no_figure_needs_it():
    plot = Figure("t", "c", "plotly", heatmap(np.eye(2)))
    view = Figure("t", "c", "attention", AttentionView(["0", "1"], attention_patterns(1, 2), ["L0H0"]))
    for figures, plotly, circuitsvis, scripts in (([plot], 1, 0, 1), ([view], 0, 1, 1), ([], 0, 0, 0)):
        page = Page(page_of(figures))
        both = "".join(page.libraries)
        assert (both.count("* plotly.js v"), both.count("var CircuitsVis=")) == (plotly, circuitsvis)
        assert len(page.scripts) == scripts
    assert "script-src 'none'" in page_of([])


def test_nothing_in_the_page_is_loaded_from_elsewhere(parsed):
    for tag, attrs in parsed.tags:
        assert "src" not in attrs, tag
        href = attrs.get("href")
        assert href is None or href == "data:," or href.startswith("#")


def test_the_page_says_what_was_found(parsed):
    text = re.sub(r"\s+", " ", " ".join(parsed.text))
    result = walk_result()
    for entry in result.outcomes.values():
        assert text.count(entry.verdict) in (2, 3)  # in its card, in the list, and where an answer quotes it
        assert entry.probe.question in text
        assert entry.probe.cites in text
        assert all(row in text for row in entry.probe.formula.splitlines())
    for shown in (
        "0.999 probability",
        "0.999 to 0.9995",
        "null 0.0103 (0.0098 to 0.0109) · value above",
        "Unless a row says otherwise, the null is: fresh models.",
        "only defined under softmax",
        "the source keeps one chain, so there is nothing to infer in context",
        "2.13.0",
        "probed at 8 steps from 0 to 50",
    ):
        assert shown in text, shown


def test_a_failed_probe_and_a_probe_that_cannot_draw_leave_the_rest_whole():
    def broken() -> list[Figure]:
        raise RuntimeError("no <b>head</b> here")

    result = walk_result()
    broken_card = outcome("broken", verdict="It was measured all the same.", figures=broken)
    outcomes = {**result.outcomes, "broken": broken_card}
    result = replace(result, outcomes=outcomes, failed={"other": "ValueError: why"})
    text = re.sub(r"\s+", " ", " ".join(Page(render(result)).text))
    assert "The figures of this probe could not be made: RuntimeError: no <b>head</b> here" in text
    assert "It was measured all the same." in text
    assert "ValueError: why" in text
    assert "Attention by lag" in text


@pytest.mark.parametrize(
    ("scores", "mark", "is_open"),
    [
        ([Score(0.9, "share", (0.1, 0.2, 0.3)), Score(0.2, "share", (0.1, 0.2, 0.3))], "●", True),
        ([Score("L0H0", ""), Score(0.2, "share", (0.1, 0.2, 0.3))], "○", False),
        ([Score("L0H0", ""), Score(0.9, "share")], "–", True),  # nothing to be outside of
        ([], "–", True),
    ],
)
def test_a_probe_is_marked_by_its_first_scores_against_their_nulls(scores, mark, is_open):
    found = outcome("a", scores={f"score_{i}": score for i, score in enumerate(scores)})
    page = render(Result({"title": "t"}, [5], {"a": found}))
    assert re.findall(r'class="status" aria-hidden="true">(.)<', page) == [mark]
    assert ('class="fold" open>' in page) == is_open
    assert ("Its first scores are within their nulls" in page) != is_open
    assert page.count("<small>no null</small>") == sum(score.null is None for score in scores)


def test_a_probe_is_listed_with_its_first_claim():
    claims = [
        Claim(("L0H0",), "matches", ("log P",), 0.9, unit="cosine"),
        Claim(("L0H1",), "attends_to", ("parent",), 0.5, unit="probability"),
    ]
    page = render(Result({"title": "t"}, [5], consistent({"a": outcome("a", claims=claims)})))
    assert f"</a> <span>{sentence(claims[0])}" in page


def test_a_checkpoint_whose_step_is_unknown_is_not_said_to_be_at_step_0():
    for provenance, said in (({"step": "unknown"}, "an unknown step"), ({}, "step 0")):
        page = render(Result({"title": "t", "provenance": provenance}, [0], {}))
        assert f"probed at {said}<" in page.replace("\n", "<")


def test_no_line_ends_inside_an_option_of_the_command_line():
    skipped = {"dynamics": "it needs more: --steps all, or <b>steps='all'</b>"}
    page = render(Result({"title": "t"}, [5], {}, skipped=skipped))
    option = '<span class="option">--steps all</span>'
    assert page.count(option) == 2  # in its tile too
    assert f"it needs more: {option}, or &lt;b&gt;" in page


def test_the_threshold_of_the_circuit_says_of_what_it_is_a_share():
    result = with_paths({("embed", "L0H0.V"): (1.0, 1.0)}, storage=holds("L0H0", L0H0=1.0))
    assert 'title="Grey paths above this share of the largest effect"' in render(result)


def test_a_score_of_one_head_says_of_which():
    score = Score(2.5, "tokens", of="L0H1")
    assert str(score) == "2.5 tokens of L0H1"
    result = Result({"title": "t"}, [5], {"a": outcome("a", scores={"effective": score})})
    for page in (render(result), compare_page({"a": result, "b": result}), result._repr_html_()):
        assert "2.5 tokens of L0H1" in " ".join("".join(Page(page).text).split())


def test_the_command_names_no_probe_that_was_skipped():
    def command(result: Result) -> str:
        return next(text for text in Page(render(result)).text if text.startswith("mechmarkov probe"))

    walk = walk_result()
    rest = {name: "why" for name in registered() if name not in walk.outcomes}
    assert "--probes" not in command(replace(walk, skipped=rest))
    some = replace(walk, skipped={"graph": "why"}, failed={"storage": "why"})
    assert "--probes behaviour,attention,alignment,storage --steps" in command(some)
    degeneracy = walk.outcomes["behaviour"]
    degeneracy = replace(degeneracy, probe=replace(degeneracy.probe, name="degeneracy", on_request=True))
    asked = {**walk.outcomes, "degeneracy": degeneracy}
    del rest["degeneracy"]
    assert "alignment,degeneracy --steps" in command(replace(walk, outcomes=asked, skipped=rest))
    assert "--probes graph --steps" in command(replace(walk, outcomes={}, skipped={"graph": "why"}))


def test_hostile_text_makes_no_tag_and_breaks_no_script(hostile):
    page = Page(hostile.read_text("utf-8"))
    assert len(page.scripts) == 1
    ours = """
        html head meta link title style script body header main footer section article h1 h2 h3 p ul li
        a span  dl dt dd dfn em div table caption thead tbody tr th td strong small svg rect line circle
        details  summary canvas code figure figcaption fieldset legend label input noscript button
    """
    assert {tag for tag, _ in page.tags} <= set(ours.split())
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    text = " ".join(page.text)
    for payload in PAYLOADS[:5]:
        assert payload in text
    assert len(page.data) == 6  # of five figures, and the steps
    for block in page.data.values():
        assert not set(block) & set("<>&\u2028\u2029")
        json.loads(block)


def test_the_data_of_a_figure_are_its_numbers():
    patterns = attention_patterns(2, 5)
    data = data_of(list("abcde"), patterns, ["L0H0", "L0H1"])
    assert data["causal"] is True
    assert data["strongest"] == patterns.max()
    levels = np.frombuffer(base64.b64decode(data["patterns"]), "<i2").reshape(2, 15)
    seen = patterns[:, *np.tril_indices(5)]
    assert np.abs(levels / MOST_LEVEL * patterns.max() - seen).max() <= 0.5 / MOST_LEVEL
    plot = figure_data(Figure("t", "c", "plotly", heatmap(np.array([[0.125, np.nan], [np.inf, 2.0]]))))
    z = plot["figure"]["data"][0]["z"]
    numbers = np.frombuffer(base64.b64decode(z["bdata"]), z["dtype"])
    assert numbers[[0, 3]].tolist() == [0.125, 2.0]
    assert np.isnan(numbers[[1, 2]]).all()
    json.loads(script_json(plot))


def test_the_scale_of_attention_is_said():
    view = AttentionView(list("abc"), np.full((1, 3, 3), 1 / 3), ["L0H0"])
    page = page_of([Figure("t", "What it shows.", "attention", view)])
    scale = "White is uniform attention or less, the darkest 8 times uniform or more."
    assert f"What it shows. {scale}" in " ".join(Page(page).text)


def test_attention_over_all_keys_is_not_masked():
    assert data_of(list("abc"), np.full((1, 3, 3), 1 / 3), ["L0H0"])["causal"] is False


def test_long_contexts_show_their_end():
    tokens = [str(position) for position in range(200)]
    data = data_of(tokens, attention_patterns(1, 200), ["L0H0"])
    assert (data["tokens"][0], data["tokens"][-1], data["positions"]) == ("72", "199", 200)
    assert len(base64.b64decode(data["patterns"])) == 2 * 128 * 129 // 2


def test_attention_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \[1, 3, 3\], expected \[head, query, key\] = \[1, 2, 2\]"):
        data_of(["a", "b"], attention_patterns(1, 3), ["L0H0"])


def test_script_json_is_safe_and_exact():
    data = {"</script>": ["<!--", "&amp;", "\u2028", "é", 0.1, None]}
    text = script_json(data)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == data
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json([float("nan")])


def test_write_is_whole_or_not_at_all(tmp_path):
    result = walk_result()
    path = write(result, tmp_path / "report.html")
    assert path.read_bytes() == render(result).encode()
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    # The last step fails, because the target is a folder: nothing is left behind.
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write(result, tmp_path / "folder")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "report.html"]
    with pytest.raises(FileNotFoundError, match="expected a file in a folder that exists"):
        write(result, tmp_path / "missing" / "report.html")


def test_the_notebook_shows_scores_and_verdicts_without_scripts():
    page = Page(walk_result()._repr_html_())
    text = re.sub(r"\s+", " ", " ".join(page.text))
    assert "0.9993 probability [0.9991 to 0.9995]" in text
    assert "0.0103 (0.0098 to 0.0109) · above" in text
    assert "does not apply: the source keeps one chain" in text
    assert {tag for tag, _ in page.tags} == {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    hostile = Page(hostile_result()._repr_html_())
    assert {tag for tag, _ in hostile.tags} <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert PAYLOADS[1] in " ".join(hostile.text)


def test_the_notebook_shows_one_outcome():
    result = walk_result()
    text = " ".join(Page(result.outcomes["alignment"]._repr_html_()).text)
    assert "along √P with cosine 0.998" in text
    assert "L0H0 puts" not in text


def test_the_end_of_a_context_is_held_against_uniform_attention_on_all_of_it():
    view = AttentionView(list("abcde"), attention_patterns(1, 5), ["L0H0"], n_keys=64)
    figure = Figure("t", "c", "attention", view)
    assert figure_data(figure)["positions"] == 64
    assert "The last 5 of 64 positions are shown." in figure_card("f", figure).caption


@pytest.mark.usefixtures("few_nulls")
def test_a_heads_panel_names_every_position_by_its_place_in_the_context():
    shown = {}
    for name in ("walk", "induction"):
        result = mm.probe(mm.example(name), ["behaviour", "attention", "ablation"], sequences=8)
        card = head_panels([result])[0].cards[0]
        shown[name] = json.loads(card.json)["figure"]["layout"]
        positions = len(result["attention"].data["key"])
        assert card.caption.endswith(f" The last 24 of {positions} positions are shown.")
        places = [text.split(":")[0] for text in shown[name]["yaxis"]["ticktext"]]
        assert places == [str(i) for i in range(positions - 24, positions)]
    assert shown["walk"]["yaxis"]["ticktext"][-1] == "96: query"
    assert shown["walk"]["xaxis"]["range"] == [0, 1.02]  # the bars of the one row that says something lie
    assert shown["induction"]["xaxis"]["ticktext"] == shown["induction"]["yaxis"]["ticktext"]


def test_an_ideal_of_the_wrong_shape_is_refused():
    view = AttentionView(list("abc"), attention_patterns(1, 3), ["L0H0"], ideal=np.eye(3, dtype=bool))
    with pytest.raises(ValueError, match=r"ideal is bool \(3, 3\), expected booleans of .* \(1, 3, 3\)"):
        outcome("a", figures=lambda: [Figure("t", "c", "attention", view)]).figures()


def test_what_an_ideal_head_reads_is_kept_in_bits():
    ideal = np.stack([np.eye(5, k=-1, dtype=bool), np.tri(5, k=-2, dtype=bool)])
    data = data_of(list("abcde"), attention_patterns(2, 5), ["L0H0", "L0H1"], ideal=ideal)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(data["ideal"]), "u1"))
    assert (bits[:50].reshape(2, 5, 5) == ideal).all()


def test_what_an_ideal_head_reads_is_outlined_key_by_key_and_no_frame_is_cut():
    keys = np.tril(np.ones((24, 24), dtype=bool))
    figure = heatmap(np.zeros((24, 24)))
    outline(figure, keys)
    shapes = figure_data(Figure("t", "c", "plotly", figure))["figure"]["layout"]["shapes"]
    assert sum(shape["path"].count("Z") for shape in shapes) == keys.sum()
    assert all(shape["path"].endswith("Z") for shape in shapes)


def test_a_folder_in_the_place_of_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = r"^path is \., a folder, expected a file: report\.html$"
    with pytest.raises(IsADirectoryError, match=told) as raised:
        write(walk_result(), ".")
    assert raised.value.errno is None
