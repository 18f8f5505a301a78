"""Every folder of experiments: its page is made of its committed results, one of each measurement."""

import pytest

from experiments import verdicts
from experiments.claims import Finding
from experiments.claims_table import table
from experiments.harness import Measured, Study, load, load_figure, save

STUDIES = verdicts.studies()
ids = [study.folder.name for study in STUDIES]


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_the_committed_page_is_the_committed_results(study):
    assert {path.stem for path in (study.folder / "results").glob("*.json")} == set(study.names)
    assert (study.folder / "README.md").read_text() == study.page(study.folder)


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_every_claim_names_the_command_that_measures_it_again(study):
    for name in study.names:
        for claim in study.claims(name, load(study.folder, name)[0]):
            assert claim.command == f"python -m experiments.{study.folder.name} --only {name}"
    # Of one measurement it may be nothing: its runs were those of another.
    assert sum(load(study.folder, name)[1] for name in study.names) > 10


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


STATEMENTS = """
[paper.own]
source = "a paper"
read = "summary"
paper_setting = "theirs"
differs = "the seed"

[bar]
paper = "own"
claim = "E[x | y] is one"
where = "theorem 1"
words = "equation: E[x | y] = 1"
"""


def a(quick: bool) -> Measured:
    """A measurement."""
    return Measured([Finding("bar", "1.0", "for", "ours", "derivation")])


def test_saved_results_are_read_again(tmp_path):
    (tmp_path / "claims.toml").write_text(STATEMENTS)
    study = Study(tmp_path, "about", [a])
    measured = study.measure("a", quick=True)
    save(tmp_path, "a", measured, seconds=90)
    (tmp_path / "reading.md").write_text("# A\n\n{table}\n\n{details}\n\n{minutes} minutes")
    assert load(tmp_path, "a") == (measured.findings, 90)
    (claim,) = study.committed()
    assert claim.command == f"python -m experiments.{tmp_path.name} --only a"
    written = study.page(tmp_path)
    assert table([claim]) in written
    assert "E[x \\| y]" in written  # a bar would have ended the cell
    for text in ("equation: E[x | y] = 1", "theirs", "ours", "the seed", "●●● exact", "1.5 minutes"):
        assert text in written
