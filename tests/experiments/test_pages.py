"""Every folder of experiments: its page is made of its committed results, one of each measurement."""

import pytest

from experiments import verdicts
from experiments.harness import Claim, Measured, Study, load, load_figure, save, table

STUDIES = verdicts.studies()
ids = [study.folder.name for study in STUDIES]


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_the_committed_page_is_the_committed_results(study):
    assert {path.stem for path in (study.folder / "results").glob("*.json")} == set(study.names)
    assert (study.folder / "README.md").read_text() == study.page(study.folder)


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_every_claim_names_the_command_that_measures_it_again(study):
    total = 0.0
    for name in study.names:
        claims, seconds = load(study.folder, name)
        total += seconds
        for claim in claims:
            assert claim.name == name
            assert claim.command == f"python -m experiments.{study.folder.name} --only {claim.name}"
            assert claim.how  # also for what is not testable here: the reason
    assert total > 10  # of one measurement it may be nothing: its runs were those of another


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_every_picture_of_the_page_is_a_committed_figure_and_the_other_way_round(study):
    folder = study.folder
    figures = {path.stem for path in (folder / "figures").glob("*.json")}
    assert figures == {path.stem for path in (folder / "figures").glob("*.svg")}
    shown = (folder / "README.md").read_text()
    assert all(f"](figures/{name}.svg)" in shown for name in figures)
    for name in figures:
        assert load_figure(folder, name).data


def test_the_verdicts_of_all_folders_on_one_page():
    assert (verdicts.HERE.parent / "docs" / "verdicts.md").read_text() == verdicts.page()


def a(quick: bool) -> Measured:
    """A measurement."""
    return Measured([Claim("E[x | y] holds", "paper", "1.0", "holds", "how")])


def test_saved_results_are_read_again(tmp_path):
    study = Study(tmp_path, "about", [a])
    measured = study.measure("a", quick=True)
    (claim,) = measured.claims
    assert (claim.name, claim.command) == ("a", f"python -m experiments.{tmp_path.name} --only a")
    save(tmp_path, "a", measured, seconds=90)
    (tmp_path / "reading.md").write_text("# A\n\n{table}\n\n{minutes} minutes")
    assert load(tmp_path, "a") == ([claim], 90)
    written = study.page(tmp_path)
    assert table([claim]) in written
    assert "E[x \\| y]" in written  # a bar would have ended the cell
    assert "1.5 minutes" in written
