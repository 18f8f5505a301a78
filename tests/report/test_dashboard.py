"""A folder of probed runs on one page: what is read, what is refused, and the page in a browser."""

import json
import os
import sys
from pathlib import Path

import pytest
from looking import assert_nothing_is_wrong
from report_examples import PAYLOADS
from selenium.webdriver.common.by import By

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.report.dashboard import read_dashboard, write_dashboard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two probed runs, one of them deeper, one that nothing decides, and a file that is not a summary."""
    folder = tmp_path_factory.mktemp("probed")
    for name, place in {"walk": "walk", "induction": "chains/induction"}.items():
        mm.probe(mm.example(name), ["behaviour"], sequences=64).save(folder / place)
    told = json.loads((folder / "walk" / "summary.json").read_text("utf-8"))
    hostile = {**told, "badge": None, "headline": PAYLOADS[0], "run": {"title": PAYLOADS[1]}, "probes": {}}
    for name, data in {
        "hostile": hostile,
        "broken": {"run": []},
        "endless": told | {"curve": _endless()},
    }.items():
        (folder / name).mkdir()
        (folder / name / "summary.json").write_text(json.dumps(data), "utf-8")
    return folder


def _endless() -> dict[str, list[float]]:
    return {"step": [0, 1], "loss": [1.0, float("inf")]}


def test_each_run_has_a_row_as_probed(folder):
    board = read_dashboard(folder)
    rows = {run.folder: run for run in board.runs}
    assert list(rows) == ["chains/induction", "hostile", "walk"]
    walk = rows["walk"]
    told = json.loads((folder / "walk" / "summary.json").read_text("utf-8"))
    assert (walk.headline, walk.badge) == (told["headline"], told["badge"] or "")
    assert walk.excess == told["probes"]["behaviour"]["scores"]["excess_loss"]["value"]
    assert walk.curve is not None
    assert walk.curve["step"][-1] == walk.step == 50
    assert (rows["hostile"].report, rows["hostile"].excess) == ("", None)
    assert set(board.unread) == {"broken", "endless"}
    assert "expected finite numbers" in board.unread["endless"]


@pytest.mark.skipif(sys.platform != "linux", reason="names that are no text are those of Linux")
def test_what_no_page_can_hold_is_told(folder, tmp_path, capsys):
    told = json.loads((folder / "walk" / "summary.json").read_text("utf-8"))
    for name, data in {
        "good": told,
        "half": told | {"headline": "\ud800"},
        os.fsdecode(b"b\xff"): told,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(data), "utf-8")
    main(["index", str(tmp_path)])
    printed = capsys.readouterr()
    assert [line.split(":")[0] for line in printed.out.splitlines()[:1]] == ["good"]
    assert r"warning: b\udcff: its name is not UTF-8 text: rename" in printed.err
    assert "half of a pair of surrogates, expected text" in printed.err


def test_the_first_screen_is_in_the_summary(folder):
    page = (folder / "walk" / "report.html").read_text("utf-8")
    told = json.loads((folder / "walk" / "summary.json").read_text("utf-8"))
    assert told["headline"] in page


def test_the_page_and_the_data_have_the_same_rows(folder, capsys):
    main(["index", str(folder), "--json"])
    told = json.loads(capsys.readouterr().out)
    listed = json.loads((folder / "index.json").read_text("utf-8"))
    assert {key: told[key] for key in listed} == listed
    page = (folder / "index.html").read_text("utf-8")
    assert page.count("<tr data-badge=") == len(listed["runs"]) == 3


def test_the_share_of_seeds_that_form_a_circuit(folder, tmp_path, capsys):
    """Of 64 seeds 8 have an induction head, 54 have none, and in 2 it is open; one seed of another source."""
    told = json.loads((folder / "chains" / "induction" / "summary.json").read_text("utf-8"))
    statuses = ["shown"] * 8 + ["excluded"] * 54 + ["open"] * 2 + ["shown"]
    for seed, status in enumerate(statuses):
        said = {"relation": "is_induction_head", "status": status, "probe": "induction", "subject": ["L1H0"]}
        run = told["run"] | {"seed": seed} | ({"source": "another"} if seed == 64 else {})
        data = told | {"run": run, "claims": [said], "probes": {"induction": {}}, "badge": "partly"}
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "summary.json").write_text(json.dumps(data), "utf-8")
    main(["index", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    heads = "an induction head: 8 of 62 runs (0.067 to 0.234, Wilson's 95 % interval), 2 more undecided"
    assert heads in lines
    assert "solved: 0 of 64 runs (0.000 to 0.057, Wilson's 95 % interval)" in lines
    assert not [line for line in lines if "parent" in line or "another" in line]
    page = (tmp_path / "index.html").read_text("utf-8")
    assert heads.replace("'", "&#39;") in page
    (share,) = [
        share
        for share in json.loads((tmp_path / "index.json").read_text("utf-8"))["shares"]
        if share["what"] == "an induction head"
    ]
    low, high = share["interval"]
    assert (share["hits"], share["of"], share["undecided"]) == (8, 62, 2)
    for end in (low, high):  # where the score test's statistic is the normal's 97.5 % point
        assert abs(8 / 62 - end) / (end * (1 - end) / 62) ** 0.5 == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"), [("nothing", "is not a folder"), ("empty", "has no summary.json, expected reports")]
)
def test_a_folder_without_runs_is_one_line(name, expected, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as left:
        main(["index", str(tmp_path / name)])
    told = capsys.readouterr()
    assert (left.value.code, told.out, len(told.err.splitlines())) == (2, "", 1)
    assert expected in told.err
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_filters_and_headings_work(browser, folder, width, scheme):
    path = write_dashboard(read_dashboard(folder))
    browser.open(path, width, scheme)
    shown = (
        "return [...document.querySelectorAll('tbody tr:not([hidden]) th')].map((e) => e.textContent.trim())"
    )
    assert browser.js(shown) == ["chains/induction", "hostile", "walk"]
    browser.driver.find_element(By.ID, "search").send_keys("circle")
    assert browser.js(shown) == ["walk"]
    assert browser.js("return document.getElementById('count').textContent") == "1 of 3 runs"
    browser.driver.refresh()
    assert browser.js(shown) == ["walk"]
    browser.js("const box = document.getElementById('search'); box.value = '';"
               "box.dispatchEvent(new Event('input', {bubbles: true}))")  # fmt: skip
    browser.js("document.querySelector(\"[name=badge][value='undecided']\").click()")
    undecided = [run.folder for run in read_dashboard(folder).runs if not run.badge]
    assert browser.js(shown) == [n for n in ("chains/induction", "hostile", "walk") if n not in undecided]
    browser.js("document.querySelector(\"[name=badge][value='undecided']\").click()")
    browser.js("document.querySelectorAll('[data-sort]')[3].click()")
    assert browser.js(shown)[-1] == "hostile"  # it has no number
    losses = [run.excess for run in read_dashboard(folder).runs if run.excess is not None]
    assert len(losses) == 2
    link = browser.driver.find_element(By.LINK_TEXT, "walk").get_attribute("href")
    assert link == (folder / "walk" / "report.html").as_uri()
    assert_nothing_is_wrong(browser, width)
