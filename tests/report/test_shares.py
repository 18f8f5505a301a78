"""Shares of runs that differ in their seed only, where `probe` gets several runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from looking import assert_nothing_is_wrong

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.report.compare import shares_of_results
from mechmarkov.report.dashboard import read_dashboard
from mechmarkov.report.shares import CountedRun, shares_of, told_shares
from mechmarkov.theory.bootstrap import wilson

HEAD = "an induction head"
ROWS = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.15, 0.6]]


def test_six_of_eight_seeds():
    runs = [CountedRun("a", "solved", {HEAD: seed < 6}) for seed in range(8)]
    runs += [CountedRun("a", "", {HEAD: None}), CountedRun("b", "solved", {HEAD: True})]
    shares = {share.what: share for share in shares_of(runs)}
    assert set(shares) == {"solved", HEAD}
    head = shares[HEAD]
    assert (head.hits, head.of, head.undecided, head.interval) == (6, 8, 1, wilson(6 / 8, 8))
    assert told_shares(shares_of(runs))[1] == (
        "an induction head: 6 of 8 runs (0.409 to 0.929, Wilson's 95 % interval), 1 more undecided"
    )
    two = [*runs, CountedRun("b", "stuck", {})]
    assert {line.partition(": ")[0] for line in told_shares(shares_of(two))} == {"a", "b"}


@pytest.mark.usefixtures("few_nulls")
def test_several_runs_end_with_their_shares(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        replace(mm.example("walk"), seed=seed).save(f"seed-{seed}.pt")
    words = ["probe", ".", "--probes", "attention", "--sequences", "64", "--out", "out"]
    main(words)
    *_, blank, parent, previous, page = capsys.readouterr().out.splitlines()
    assert (blank, page) == ("", "out/report.html")
    rest = "2 of 2 runs (0.342 to 1.000, Wilson's 95 % interval)"
    assert parent == f"a head that reads the parent: {rest}"
    assert previous == f"a head that reads the previous token: {rest}"
    assert parent.replace("'", "&#39;") in (tmp_path / page).read_text("utf-8")
    main([*words, "--json"])
    shares = json.loads(capsys.readouterr().out)["shares"]
    assert [(share["hits"], share["of"]) for share in shares] == [(2, 2), (2, 2)]


@pytest.mark.browser
@pytest.mark.usefixtures("few_nulls")
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_shares_can_be_read_on_the_page(browser, tmp_path, width, scheme):
    result = mm.probe(mm.example("walk"), ["attention"], sequences=64)
    other = replace(result, metadata=result.metadata | {"seed": 1})
    browser.open(mm.write_comparison({"a": result, "b": other}, tmp_path / "two.html"), width, scheme)
    shown = browser.js("return document.querySelector('[aria-labelledby=shares] li').innerText")
    assert shown.startswith("a head that reads the parent: 2 of 2 runs (0.342 to 1.000")
    assert_nothing_is_wrong(browser, width)


@pytest.mark.usefixtures("few_nulls")
def test_runs_of_unlike_settings_have_no_share(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mm.example("walk").save("walk.pt")
    mm.example("trap").save("trap.pt")
    main(["probe", "walk.pt", "trap.pt", "--probes", "attention", "--sequences", "64", "--json"])
    assert json.loads(capsys.readouterr().out)["shares"] == []
    assert "Of these runs" not in (tmp_path / "report" / "report.html").read_text("utf-8")


def table_on(source: mm.sources.Source, **fields: object) -> mm.Run:
    table = torch.tensor(np.log(ROWS)).float()
    return replace(mm.Run.from_model(direct_table(table, 12), source=source), **fields)


SOURCES = {
    "chain": (mm.Chain(ROWS), mm.Chain([row[::-1] for row in ROWS])),
    "parent at lag 2": tuple(mm.LaggedChain(rows, 2) for rows in (ROWS, ROWS[::-1])),
    "mixture": tuple(
        mm.sources.ChainMixture(chains=(ROWS, other)) for other in (ROWS[::-1], [row[::-1] for row in ROWS])
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_sources_of_one_title_are_not_seeds_of_one(kind):
    """A source's title need not have its numbers: runs of two were counted as two seeds of one."""
    results = {
        f"{i}": mm.probe(table_on(source, seed=seed), ["behaviour"], sequences=32)
        for i, (source, seed) in enumerate(zip(SOURCES[kind], (0, 1), strict=True))
    }
    assert len({result.metadata["source"] for result in results.values()}) == 1
    assert shares_of_results(results) == []
    again = {"2": mm.probe(table_on(SOURCES[kind][1], seed=2), ["behaviour"], sequences=32)}
    shares = shares_of_results(results | again)
    assert {share.of + share.undecided for share in shares} == {2}
    assert all(share.setting.endswith(", as 1") for share in shares)


@pytest.mark.parametrize("what", ["training", "step", "seed"])
def test_runs_that_differ_in_more_or_in_less_than_a_seed_are_not_counted(what, tmp_path):
    walk = mm.example("walk")
    slower = walk.recipe | {"optimiser": walk.recipe["optimiser"] | {"lr": 0.1}}
    others = {
        "training": (replace(walk, seed=1, recipe=slower), "last"),
        "step": (replace(walk, seed=1), [10]),
        "seed": (walk, "last"),  # the same run again
    }
    other, steps = others[what]
    for name, (run, at) in {"a": (walk, "last"), "b": (other, steps)}.items():
        mm.probe(run, ["behaviour"], steps=at, sequences=32).save(tmp_path / name)
    assert read_dashboard(tmp_path).shares() == []


def test_seeds_of_one_setting_are_counted_in_a_folder(tmp_path):
    for seed in (0, 1):
        result = mm.probe(replace(mm.example("walk"), seed=seed), ["behaviour"], sequences=32)
        result.save(tmp_path / f"{seed}")
    assert {share.of for share in read_dashboard(tmp_path).shares()} == {2}
