"""The benchmark's files, its command and its page, and names that anybody gives."""

import csv
import json
import re
from html import unescape
from itertools import count
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from benchmarks.methods import with_tables
from mechmarkov.bench import CASES, METRICS, SCORES, Method, check, run
from mechmarkov.bench.leaderboard import places, summary
from mechmarkov.bench.method import GROUP, load_method
from mechmarkov.bench.page import FILES, as_markdown, as_text, save, sections
from mechmarkov.bench.run import CELLS
from mechmarkov.cli import cli
from mechmarkov.utils.plugins import registered


def test_a_method_and_a_case_given_twice_run_once(tmp_path):
    arguments = ["bench", "--methods", "eap,eap", "--cases", "direct,direct", "--seeds", "1"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert len(pd.read_csv(tmp_path / "scores.csv")) == len(METRICS)
    assert len(run(["eap", "eap"], ["direct", "direct"], seeds=1).scores) == len(METRICS)


def test_the_command_writes_its_files_and_prints_a_table(tmp_path):
    arguments = [
        "bench",
        "--methods",
        "eap,eap-ig,acdc,noise-edges",
        "--cases",
        "head,plateau",
        "--seeds",
        "3",
    ]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, CELLS}
    page = (tmp_path / "bench.html").read_text("utf-8")
    assert "Content-Security-Policy" in page
    assert "head, KL from the clean output: claimed against exact" in page
    for words in (*METRICS.values(), *(SCORES[name][2] for name in ("rank", "built", "cpr", "cmd"))):
        assert words in unescape(page)
    rows = pd.read_csv(tmp_path / "effects.csv")
    assert len(rows[rows["method"] == "eap"]) == 2 * 3 * 5  # cases, seeds, edges; in its own metric
    assert len(rows[rows["method"] == "eap-ig"]) == 2 * 2 * 3 * 5
    board = json.loads((tmp_path / "leaderboard.json").read_text("utf-8"))
    assert {each["metric"] for each in board["firsts"]} == set(METRICS)
    table = [
        line for line in result.output.splitlines() if line.startswith(("edges  ", "eap  ", "noise-edges  "))
    ]
    assert len(table) == 3 * (1 + len(METRICS))  # of the places and of each metric
    assert "|" not in "".join(table)
    for head, first, _ in zip(*[iter(table)] * 3, strict=True):  # columns stand under one another
        for column in re.finditer(r"\S+(?: \S+)*", head):
            assert first[column.start() - 1 : column.start()] in (" ", "")
            assert first[column.start()] != " "


def test_json_is_the_leaderboard(tmp_path):
    arguments = [
        "bench",
        "--methods",
        "eap",
        "--cases",
        "head",
        "--seeds",
        "1",
        "--json",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(cli, arguments)
    assert json.loads(result.output) == json.loads((tmp_path / "leaderboard.json").read_text("utf-8"))


def test_the_other_kind_of_pairs_is_said(tmp_path):
    arguments = ["bench", "--methods", "eap", "--cases", "head", "--seeds", "1", "--pairs", "resampled"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path)])
    assert "every prediction is read" in result.output
    assert json.loads((tmp_path / "leaderboard.json").read_text("utf-8"))["pairs"] == "resampled"


def test_methods_that_claim_no_effects_have_a_page(tmp_path):
    found = run(["noise-features"], ["direct"], seeds=1)
    page = save(found, tmp_path).read_text("utf-8")
    assert "noise-features" in page
    assert "claimed against exact" not in page
    assert pd.read_csv(tmp_path / "effects.csv").empty


def test_tables_say_where_a_method_has_a_reason():
    """Only where another one has a score, or a promise was broken."""
    silent = Method("silent", "nodes", lambda case: "it diverged" if case.name == "head" else {"embed": 1})
    text = as_text(run([silent, "attribution-patching"], ["head", "direct"], seeds=2))
    assert re.search(r"silent +2 +head +it diverged", text)
    assert re.search(r"silent +2 +direct +lacks a claim about 'L0H0'", text)
    # Nobody claims a belief here.
    assert "Silent" not in as_text(run(["belief-probe", "linear-probe"], ["head"], seeds=1))


def test_of_many_reasons_three_are_shown():
    draws = count()
    silent = Method("silent", "nodes", lambda case: f"it is draw {next(draws)}")
    found = run([silent, "attribution-patching"], ["direct"], seeds=5)
    (rows,) = [
        table.rows for section in sections(found) if section.title == "Silent." for table in section.tables
    ]
    assert [row[1] for row in rows] == ["1", "1", "1", "2"]
    assert rows[-1][3] == "2 other reasons, in reasons.csv"


def test_the_documents_tables_are_put_between_its_marks():
    found = run(["eap", "noise-edges"], ["head"], seeds=1)
    page = "before\n<!-- measured by benchmarks/methods.py -->\nold\n<!-- end of what is measured -->\nafter"
    text = as_markdown(found)
    assert text in with_tables(page, found)
    assert text.startswith("First to order the effects of edges: open for logit difference and ")
    assert "old" not in with_tables(page, found)


NAME = "=cmd|' /C calc'!A0<img src=x onerror=alert(1)>`|"
WHY = "-2+3 | <script>alert(1)</script> [here](http://a.b) *so*\nnext"


def test_names_and_reasons_of_plugins_are_text(tmp_path):
    def claims(case):
        return WHY if case.name == "head" else dict.fromkeys(case.nodes, 1.0)

    found = run([Method(NAME, "nodes", claims), "attribution-patching"], ["head", "direct"], seeds=1)
    page = save(found, tmp_path).read_text("utf-8")
    assert "<img" not in page
    text = as_markdown(found)
    name = "`` =cmd\\|' /C calc'!A0<img src=x onerror=alert(1)>`\\| ``"  # code, in which HTML is text
    assert f"\n| {name} | this metric |" in text
    why = r"-2+3 \| &lt;script&gt;alert(1)&lt;/script&gt; \[here\](http://a.b) \*so\* next"
    assert f"\n| {name} | 1 | `head` | {why} |\n" in text
    with (tmp_path / "effects.csv").open(encoding="utf-8", newline="") as file:
        names = {row["method"] for row in csv.DictReader(file)}
    assert names == {f"'{NAME}", "attribution-patching"}
    with (tmp_path / "reasons.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["method"], row["reason"][:4]) == (f"'{NAME}", "'-2+")


def test_the_documents_submissions_keep_their_promises():
    """Each has ten lines at most, and a score."""
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")
    methods = []
    for code in re.findall(r"```python\n(from mechmarkov\.bench.*?)```", page, re.DOTALL):
        assert len([line for line in code.splitlines() if line.strip()]) <= 10
        names: dict = {}
        exec(code, names)
        methods.append(names["method"])
    for method in methods:
        check(method, ["split", "belief"])
    scores = run([*methods, "resample-ablation"], ["split", "belief"], seeds=1).scores
    rank = scores.set_index(["method", "metric", "case"])["rank"]
    assert rank["my-patching", "kl", "split"] == pytest.approx(1)
    error = scores.set_index(["method", "metric", "case"])["belief_error"]
    assert error["my-belief", "", "belief"] < 1e-6


def test_the_document_names_every_case_score_and_method():
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")
    ours = {entry.name for entry in registered(GROUP).values() if entry.value.startswith("mechmarkov.")}
    for name in [*CASES, *SCORES, *METRICS, *ours]:
        assert f"`{name}`" in page, name


def test_the_least_error_stands_first():
    table = as_text(run(["noise-layers", "logit-lens"], ["head"], seeds=1)).partition("KL from")[2]
    lines = [
        line.split()[0] for line in table.splitlines() if line.startswith(("logit-lens  ", "noise-layers  "))
    ]
    assert lines[:2] == ["logit-lens", "noise-layers"]


def test_a_table_has_the_places_of_its_sentence():
    """One number for each method, also where it answers more cases than others do."""
    noise = load_method("noise-edges")
    few = Method("few", "edges", lambda case: "not here" if case.name == "direct" else noise.claims(case))
    found = run([few, "eap", "noise-edges"], ["direct", "head", "cancel"], seeds=3)
    means = summary(found).reset_index(["own"], drop=True)
    for each in places(found):
        assert set(each.cases) == {"head", "cancel"}
        for name, score in each.methods.items():
            row = means.loc[each.of, each.metric, name]
            assert (row[each.score], row["cases"]) == (pytest.approx(score.value), 2)
    tables = [table for section in sections(found) for table in section.tables if table.title == "edges"]
    assert len(tables) == 1 + len(METRICS)
    for each, table in zip(places(found), tables[1:], strict=True):
        assert [str(row[0]) for row in table.rows] == [*each.methods]
        at = table.head.index(each.score)
        assert all(re.fullmatch(r"\S+ \(\S+ to \S+\)", row[at]) for row in table.rows)  # three seeds


def test_columns_of_places_are_no_scores():
    """A score is called `kl` too, and has another meaning."""
    found = run(["eap"], ["head"], seeds=1)
    assert not SCORES.keys() & set(sections(found)[0].tables[0].head)
