"""The benchmark's files, its command and its page, and methods that other people write."""

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner
from distributions import install

import mechmarkov as mm
from mechmarkov.bench import CASES, SCORES, Method, run
from mechmarkov.bench.method import GROUP
from mechmarkov.bench.page import save, tables
from mechmarkov.cli import cli
from mechmarkov.utils.plugins import registered


def test_a_strangers_method_is_found_by_its_entry_point(tmp_path, monkeypatch):
    text = (
        "from mechmarkov.bench import Method\n"
        "def letters(case):\n"
        "    return {name: len(name) for name in case.edges}\n"
        "method = Method('mine', 'edges', letters, unit='letters')\n"
    )
    install(tmp_path, "theirs", GROUP, "mine = theirs_method:method", theirs_method=text)
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" in mm.bench.registered()
    scores = run(["mine"], ["direct"], seeds=1).scores
    assert np.isnan(scores["error"].item())
    assert np.isfinite(scores["pearson"].item())


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({}, "method 'bad' lacks a claim about 'embed'"),
        ({"embed": 1, "L0H0": 0, "L9H9": 1}, "method 'bad' has a claim about 'L9H9'"),
        ({"embed": float("nan"), "L0H0": 0}, "method 'bad' claims nan for 'embed'"),
    ],
)
def test_claims_that_cannot_be_scored_are_refused_by_name(claims, said):
    with pytest.raises(ValueError, match=said):
        run([Method("bad", "nodes", lambda case: claims)], ["direct"], seeds=1)


@pytest.mark.parametrize(
    ("of", "claim", "said"),
    [
        (
            "subspaces",
            lambda case: np.eye(8),
            r"claims a basis \[8, 8\] in case 'direct', expected an orthonormal",
        ),
        ("subspaces", lambda case: 2 * case.subspace[1], r"claims a basis \[4, 3\]"),
        ("subspaces", lambda case: np.nan * case.subspace[1], r"claims a basis \[4, 3\]"),
        ("coefficients", lambda case: float("nan"), "claims nan in case 'direct', expected a finite number"),
    ],
)
def test_a_whole_stream_or_a_scaled_basis_is_no_subspace_and_nan_no_coefficient(of, claim, said):
    with pytest.raises(ValueError, match=f"method 'bad' {said}"):
        run([Method("bad", of, claim)], ["direct"], seeds=1)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no method is named 'eapp'"):
        run(["eapp"], ["direct"], seeds=1)
    with pytest.raises(ValueError, match="no case is named 'sideways'; there are direct, "):
        run(["eap"], ["sideways"], seeds=1)
    with pytest.raises(ValueError, match="seeds is 0, expected at least 1"):
        run(["eap"], ["direct"], seeds=0)
    ones = [
        Method("ones", "nodes", lambda case, sign=sign: dict.fromkeys(case.nodes, sign)) for sign in (1, -1)
    ]
    with pytest.raises(ValueError, match="two methods are named 'ones', expected different names"):
        run(ones, ["direct"], seeds=1)


def test_a_method_and_a_case_that_are_given_twice_are_run_once(tmp_path):
    arguments = ["bench", "--methods", "eap,eap", "--cases", "direct,direct", "--seeds", "1"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert dict(xr.load_dataset(tmp_path / "scores.nc").sizes) == {"method_name": 1, "case": 1, "seed": 1}
    assert dict(run(["eap", "eap"], ["direct", "direct"], seeds=1).scores.sizes)["case"] == 1


@pytest.mark.parametrize(("seeds", "has"), [(2, False), (3, True)])
def test_moves_have_an_interval_from_three_seeds_on(seeds, has):
    found = run(["eap", "noise-edges"], ["head"], seeds=seeds)
    text = tables(found)
    assert ("95 % intervals over seeds" in text) == has
    assert found.ranks()["low"].notna().all() == has
    assert (len(re.findall(r" to [+-]\d", text)) == 2) == has
    assert "A move is counted in each seed and averaged" in text


def test_the_command_writes_a_page_the_scores_and_every_claim(tmp_path):
    arguments = ["bench", "--methods", "eap,noise-edges", "--cases", "head,plateau", "--seeds", "2"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "eap" in result.output
    page = (tmp_path / "bench.html").read_text("utf-8")
    assert "Content-Security-Policy" in page
    assert "Correlation with exact effects" in page
    rows = pd.read_csv(tmp_path / "effects.csv")
    assert len(rows) == 2 * 2 * 2 * 5  # methods, cases, seeds, edges
    assert rows["in_circuit"].sum() == 2 * 2 * 2
    assert set(xr.load_dataset(tmp_path / "scores.nc").data_vars) >= set(SCORES)


def test_methods_that_claim_no_effects_have_a_page_and_no_scatter(tmp_path):
    found = run(["noise-features"], ["direct"], seeds=1)
    page = save(found, tmp_path).read_text("utf-8")
    assert "noise-features" in page
    assert "claimed against exact" not in page
    assert "noise-features" in (tmp_path / "bench.md").read_text("utf-8")
    assert pd.read_csv(tmp_path / "effects.csv").empty
    assert found.ranks().empty


def test_the_tables_say_where_a_method_has_a_reason_and_another_a_claim():
    silent = Method("silent", "nodes", lambda case: "it diverged" if case.name == "head" else {"embed": 1})
    text = tables(run([silent, "difference-norm"], ["head"], seeds=2))
    assert "| `silent` | 2 | `head` | it diverged |" in text
    # Nobody claims a belief here.
    assert "no-belief" not in tables(run(["belief-probe", "linear-probe"], ["head"], seeds=1))


NAME = "=cmd|' /C calc'!A0<img src=x onerror=alert(1)>`|"
WHY = "-2+3 | <script>alert(1)</script> [here](http://a.b) *so*\nnext"


def test_names_and_reasons_of_plugins_are_text_in_markdown_and_in_a_spreadsheet(tmp_path):
    def claims(case):
        return WHY if case.name == "head" else dict.fromkeys(case.nodes, 1.0)

    found = run([Method(NAME, "nodes", claims), "difference-norm"], ["head", "direct"], seeds=1)
    page = save(found, tmp_path).read_text("utf-8")
    assert "<img" not in page
    text = (tmp_path / "bench.md").read_text("utf-8")
    name = "`` =cmd\\|' /C calc'!A0<img src=x onerror=alert(1)>`\\| ``"  # code, in which HTML is text
    assert f"\n| {name} | nodes |" in text
    why = r"-2+3 \| &lt;script&gt;alert(1)&lt;/script&gt; \[here\](http://a.b) \*so\* next"
    assert f"\n| {name} | 1 | `head` | {why} |\n" in text
    columns = [len(re.split(r"(?<!\\)\|", row)) for row in text.splitlines() if row.startswith("|")]
    assert set(columns) == {4 + 2, 6 + 2, 10 + 2}
    with (tmp_path / "effects.csv").open(encoding="utf-8", newline="") as file:
        assert {row["method"] for row in csv.DictReader(file)} == {f"'{NAME}", "difference-norm"}
    with (tmp_path / "reasons.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["method"], row["reason"][:4]) == (f"'{NAME}", "'-2+")


def test_the_pages_own_method_is_scored_and_the_page_names_every_case_score_and_method():
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")
    methods = []
    for code in re.findall(r"```python\n(from mechmarkov\.bench.*?)```", page, re.DOTALL):
        assert len([line for line in code.splitlines() if line.strip()]) <= 10
        names: dict = {}
        exec(code, names)
        methods.append(names["method"])
    found = run([*methods, "mean-ablation"], ["split", "belief"], seeds=1)
    scores = found.scores.isel(seed=0)
    assert (found.ranks()["moves"] == 0).all()  # equal up to rounding, so they tie
    error = scores["error"].sel(case="split")
    assert error.sel(method_name="my-ablation").item() == pytest.approx(
        error.sel(method_name="mean-ablation").item()
    )
    assert float(scores["belief_error"].sel(method_name="my-belief", case="belief")) < 1e-6
    ours = {entry.name for entry in registered(GROUP).values() if entry.value.startswith("mechmarkov.")}
    families = {"zero-ablation": "`zero-`", "mean-ablation": "`mean-`"}
    for name in [*CASES, *SCORES, *ours]:
        assert families.get(name, f"`{name}`") in page, name
