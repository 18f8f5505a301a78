"""Shares of runs that differ in their seed only, where `probe` gets several runs."""

import json

import pytest
from looking import assert_nothing_is_wrong

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.report.shares import CountedRun, shares_of, told_shares
from mechmarkov.theory.bootstrap import wilson

HEAD = "an induction head"


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
        mm.example("walk").save(f"seed-{seed}.pt")
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
    browser.open(mm.write_comparison({"a": result, "b": result}, tmp_path / "two.html"), width, scheme)
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
