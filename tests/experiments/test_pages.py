"""Every folder of experiments: its page is made of its committed results, one of each measurement."""

import importlib

import pytest

from experiments import verdicts
from experiments.claims import Claim, Measured, table
from experiments.store import load, load_figure, page, save

FOLDERS = sorted(path.parent for path in verdicts.HERE.glob("*/run.py"))
ids = [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_the_committed_page_is_the_committed_results(folder):
    measurements = importlib.import_module(f"experiments.{folder.name}.run").MEASUREMENTS
    assert {path.stem for path in (folder / "results").glob("*.json")} == set(measurements)
    assert (folder / "README.md").read_text() == page(folder, measurements)


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_every_claim_names_the_command_that_measures_it_again(folder):
    total = 0.0
    for path in (folder / "results").glob("*.json"):
        claims, seconds = load(folder, path.stem)
        total += seconds
        for claim in claims:
            assert claim.name == path.stem
            assert claim.command == f"python -m experiments.{folder.name} --only {claim.name}"
            assert claim.how  # also for what is not testable here: the reason
    assert total > 10  # of one measurement it may be nothing: its runs were those of another


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_every_picture_of_the_page_is_a_committed_figure_and_the_other_way_round(folder):
    figures = {path.stem for path in (folder / "figures").glob("*.json")}
    assert figures == {path.stem for path in (folder / "figures").glob("*.svg")}
    shown = (folder / "README.md").read_text()
    assert all(f"](figures/{name}.svg)" in shown for name in figures)
    for name in figures:
        assert load_figure(folder, name).data


def test_the_verdicts_of_all_folders_on_one_page():
    assert (verdicts.HERE.parent / "docs" / "verdicts.md").read_text() == verdicts.page()


def test_saved_results_are_read_again(tmp_path):
    claim = Claim("a", "E[x | y] holds", "paper", "1", "1.0", "holds", "how", "command")
    save(tmp_path, "a", Measured([claim]), seconds=90)
    (tmp_path / "reading.md").write_text("# A\n\n{table}\n\n{minutes} minutes")
    assert load(tmp_path, "a") == ([claim], 90)
    written = page(tmp_path, ["a"])
    assert table([claim]) in written
    assert "E[x \\| y]" in written  # a bar would have ended the cell
    assert "1.5 minutes" in written
