"""The notebook example of the README runs as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.system
def test_the_notebook_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(example, str(README), "exec"), names)
    assert "sqrt P" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert tuple(names["logits"].shape) == (512, 97, 6)
    assert names["result"].steps == [0, 1, 2, 50]


def test_every_linked_file_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    missing = [link for link in links if not link.startswith("http") and not (README.parent / link).exists()]
    assert missing == []
