"""Every folder of experiments: its page is made of its committed results, one of each measurement."""

import re
from collections import Counter

import pytest

from experiments import verdicts
from experiments.claims import NEED_DEFENCE, Finding
from experiments.claims_table import LONGEST_ROW, table
from experiments.exactness import exactly
from experiments.harness import Measured, Study, load, load_figure, save

STUDIES = verdicts.studies()
ids = [study.folder.name for study in STUDIES]


@pytest.fixture(scope="module")
def pages():
    return verdicts.files()


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


@pytest.mark.parametrize("name", ["verdicts.md", *(name for name, _, _ in verdicts.OWN.values())])
def test_pages_have_all_claims_and_no_row_is_long(pages, name):
    text = pages[name]
    assert (verdicts.DOCS / name).read_text() == text
    rows = [line for line in text.splitlines() if line.startswith("| [") and "](#" in line]
    assert max(map(len, rows)) <= LONGEST_ROW
    folded = re.findall(r'<details id="([^"]+)"', text)
    assert len(folded) == len(set(folded))
    assert set(re.findall(r"\]\(#([\w.]+\.[\w.]+)\)", text)) == set(folded)


def test_every_claim_stands_on_one_of_the_pages(pages):
    names = {claim.identifier for claim in verdicts.committed()}
    pages = [pages[name] for name in ("verdicts.md", *(name for name, _, _ in verdicts.OWN.values()))]
    folded = [name for page in pages for name in re.findall(r'<details id="([^"]+)"', page)]
    assert sorted(folded) == sorted(names)


@pytest.mark.parametrize("name", ["corrections.md", "coverage.md", "claims.json", "claims.schema.json"])
def test_what_is_written_from_the_claims_is_committed(pages, name):
    assert (verdicts.DOCS / name).read_text() == pages[name]


def test_every_link_to_a_row_leads_to_it(pages):
    folded = {name: set(re.findall(r'<details id="([^"]+)"', text)) for name, text in pages.items()}
    for name in ("coverage.md", "corrections.md"):
        links = re.findall(r"\]\(([\w-]+\.md)#([\w.]+)\)", pages[name])
        assert links
        assert [row for page, row in links if row not in folded[page]] == []


def test_what_does_not_stand_is_among_the_corrections(pages):
    for claim in verdicts.committed():
        listed = f"(verdicts.md#{claim.identifier})" in pages["corrections.md"]
        assert listed == (claim.statement.kind == "paper" and claim.verdict in NEED_DEFENCE), claim.identifier


def test_the_first_table_counts_the_rows(pages):
    head, *sections = re.split(r"^## ", pages["verdicts.md"], flags=re.MULTILINE)
    counted = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in head.splitlines() if "](#" in line
    ]
    assert len(counted) == len(sections)
    for (paper, *numbers, _), section in zip(counted, sections, strict=True):
        assert section.splitlines()[0] == re.findall(r"\[(.*)\]", paper)[0]
        shown = Counter(
            re.findall(r"\*\*([^*]+)\*\*", "\n".join(re.findall(r"^\| \[.*$", section, re.MULTILINE)))
        )
        assert sum(map(int, numbers[:6])) == shown.total()
        assert int(numbers[0]) == shown["holds"]
        assert int(numbers[2]) == shown["does not hold"]


def test_every_proof_is_written_down():
    for claim in verdicts.committed():
        if claim.finding.proof:
            path, anchor = claim.finding.proof.split("#")
            text = (verdicts.HERE.parent / path).read_text()
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}


STATEMENTS = """
[paper.own]
about = "shi2025"
read = "summary"
paper_setting = "theirs"
differs = "the seed"

[bar]
paper = "own"
claim = "E[x | y] is one"
where = "theorem 1"
words = "equation: E[x | y] = 1"
"""


@exactly
def a(quick: bool) -> Measured:
    """A measurement."""
    return Measured([Finding("bar", "1.0", "for", "ours", "computed exactly")])


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
    for text in ("equation: E[x | y] = 1", "theirs", "ours", "the seed", "| computed |", "1.5 minutes"):
        assert text in written
