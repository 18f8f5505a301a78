"""The study that `docs/write-an-experiment.md` shows runs, quick and in full, and is as short as it says."""

import re
import runpy
from pathlib import Path

import pytest

from experiments.harness import load, load_figure

PAGE = (Path(__file__).parents[2] / "docs" / "write-an-experiment.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(STATEMENTS,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def study(tmp_path):
    (tmp_path / "__main__.py").write_text(CODE)
    (tmp_path / "claims.toml").write_text(STATEMENTS)
    return runpy.run_path(str(tmp_path / "__main__.py"))["STUDY"]


def test_the_study_has_60_lines():
    assert len(CODE.splitlines()) <= 62


def test_the_quick_run_prints_its_verdict(study, capsys):
    study.main(["--quick"])
    printed = capsys.readouterr().out
    assert "| [The unigram is learned before the bigram](" in printed
    assert "**undecided**" in printed  # two seeds decide nothing
    assert "2/2 [0.34, 1.00] seeds" in printed


@pytest.mark.experiments
def test_the_full_run_writes_the_page(study):
    (study.folder / "reading.md").write_text("# First the unigram\n\n{table}\n\n{details}\n")
    study.main(["--out", str(study.folder)])
    ((finding,), seconds) = load(study.folder, "unigram_first")
    assert finding.leaning == 1
    assert seconds > 0
    assert finding.measured in (study.folder / "README.md").read_text()
    assert load_figure(study.folder, "distances").layout.title.text
    assert (study.folder / "figures" / "distances.svg").is_file()
