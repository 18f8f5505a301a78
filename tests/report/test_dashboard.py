"""A folder of probed runs on one page: what is read, what is refused, and the page in a browser."""

import json
from pathlib import Path

import pytest
from looking import assert_nothing_is_wrong
from report_examples import PAYLOADS
from selenium.webdriver.common.by import By
from window import Browser

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


def test_each_run_has_a_row_as_probed(folder: Path) -> None:
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


def test_the_first_screen_is_in_the_summary(folder: Path) -> None:
    page = (folder / "walk" / "report.html").read_text("utf-8")
    told = json.loads((folder / "walk" / "summary.json").read_text("utf-8"))
    assert told["headline"] in page


def test_the_page_and_the_data_have_the_same_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["index", str(folder), "--json"])
    told = json.loads(capsys.readouterr().out)
    listed = json.loads((folder / "index.json").read_text("utf-8"))
    assert {key: told[key] for key in listed} == listed
    page = (folder / "index.html").read_text("utf-8")
    assert page.count("<tr data-badge=") == len(listed["runs"]) == 3


@pytest.mark.parametrize(
    ("name", "expected"), [("nothing", "is not a folder"), ("empty", "has no summary.json, expected reports")]
)
def test_a_folder_without_runs_is_one_line(
    name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as left:
        main(["index", str(tmp_path / name)])
    told = capsys.readouterr()
    assert (left.value.code, told.out, len(told.err.splitlines())) == (2, "", 1)
    assert expected in told.err
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_filters_and_headings_work(browser: Browser, folder: Path, width: int, scheme: str) -> None:
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
