"""The page on writing a source: its own code, built, installed, trained on and probed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mechmarkov as mm
from mechmarkov.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-source.md").read_text()


def code(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.fixture
def installed(tmp_path_factory, monkeypatch):
    """The page's two files, built and installed as `pip install ./ladder-source` does."""
    folder = tmp_path_factory.mktemp("ladder-source")
    (folder / "pyproject.toml").write_text(code("toml"))
    (folder / "ladder_source.py").write_text(code("python"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--target", folder / "site"]
    subprocess.run([*pip, *flags, folder], check=True)
    monkeypatch.syspath_prepend(folder / "site")


def test_it_is_forty_lines():
    lines = [line for line in code("python").splitlines() if line.strip()]
    assert len(lines) <= 40


def test_the_pages_source_is_trained_on_and_probed(installed, tmp_path, capsys):
    data = {"kind": "ladder", "n_states": 5, "up": 0.6, "down": 0.2}
    source = mm.sources.source_from_data(data)
    assert type(source).__module__ == "ladder_source"
    np.testing.assert_allclose(
        source.P[[0, 0, 2, 2, 2, 4, 4], [0, 1, 1, 2, 3, 3, 4]], [0.4, 0.6, 0.2, 0.2, 0.6, 0.2, 0.8]
    )
    np.testing.assert_allclose(source.pi, 3.0 ** np.arange(5) / 121)  # detailed balance, up / down = 3

    small = ["steps=2", "data={batch=4}", "model.n_ctx=16"]
    table = 'source={kind="ladder", n_states=5, up=0.6, down=0.2}'
    changes = [word for change in [table, *small] for word in ("--set", change)]
    main(["train", "binary-p02-q03-untied", *changes, "--out", str(tmp_path)])
    run = mm.load(tmp_path / "run.pt")
    assert run.source == source
    assert run.recipe["source"] == data
    assert run.steps[-1] == 2

    main(["probe", str(tmp_path / "run.pt"), "--probes", "behaviour", "--out", str(tmp_path / "report")])
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert summary["failed"] == summary["skipped"] == {}
    scores = summary["probes"]["behaviour"]["scores"]
    assert scores["kl_best"]["value"] == scores["kl_bigram"]["value"] > 0
    report = (tmp_path / "report" / "report.html").read_text()
    assert "Ladder of 5 rungs, up 0.6, down 0.2" in report
    assert "no direction" in report

    capsys.readouterr()
    for change, said in {
        "source.up=1.2": "source.up is 1.2, expected a probability in [0, 1]",
        "source.upp=0.5": "unknown key source.upp, did you mean source.up?",
        "source.down=0.9": "source: up is 0.6 and down is 0.9, expected both above 0, their sum at most 1",
    }.items():
        with pytest.raises(SystemExit) as end:
            main(["train", "binary-p02-q03-untied", *changes, "--set", change])
        assert end.value.code == 2
        assert capsys.readouterr().err == f"error: {said}\n"


def test_the_links_of_the_page_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if not link.startswith("https:")]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
