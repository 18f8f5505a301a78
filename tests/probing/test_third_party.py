"""The page on writing a probe: its own code, built, installed and asked."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from distributions import install

import mechmarkov as mm
from mechmarkov.catalogue.probes import GROUP
from mechmarkov.cli import main

pytestmark = pytest.mark.usefixtures("few_nulls")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-probe.md").read_text("utf-8")


def code(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def build_and_install(folder: Path, site: Path) -> None:
    """Build a folder with the page's two files and install it, as `pip install ./folder` does."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(code("toml"), "utf-8")
    (folder / "entropy_probe.py").write_text(code("python"), "utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, *flags, "--target", site, folder], check=True)


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Three places with a package each: the page's, one that raises, and one that takes the page's name."""
    folder = tmp_path_factory.mktemp("third-party")
    build_and_install(folder / "page", folder / "site")
    raises = code("python").replace('"entropy", "How', '"unlucky", "How')
    raises = raises.replace(
        "    entropy = entr", '    raise ZeroDivisionError("no luck today")\n    entropy = entr'
    )
    assert raises.count("unlucky") == raises.count("no luck today") == 1
    install(folder / "raising", "unlucky-probe", GROUP, "unlucky = unlucky_probe:probe", unlucky_probe=raises)
    second = {"second_opinion": code("python")}
    install(folder / "duplicate", "second-opinion", GROUP, "entropy = second_opinion:probe", **second)
    return folder


def test_it_is_thirty_lines():
    lines = [line for line in code("python").splitlines() if line.strip()]
    assert len(lines) <= 30


def test_the_pages_probe_is_listed_asked_and_reported(sites, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(sites / "site")
    main(["probes"])
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed["entropy"] == "How sure is the model?"
    assert "behaviour" in listed

    main(["probe", "--probes", "entropy,behaviour", "--steps", "0,50", "--out", str(tmp_path)])
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert list(summary["probes"]) == ["entropy", "behaviour"]
    assert summary["failed"] == {}
    # The number against one computed here, from the model itself.
    run = mm.example("walk")
    batch = mm.Subject.of(run).batch
    score = run.model(step=50)(batch.tokens)[:, -1].detach().double().numpy().clip(min=0)
    p = score / score.sum(-1, keepdims=True)
    expected = -(p * np.log(np.where(p > 0, p, 1))).sum(-1).mean()
    found = summary["probes"]["entropy"]["scores"]["entropy"]
    assert found["value"] == pytest.approx(expected, rel=1e-5)
    assert found["unit"] == "nats"
    low, _, high = found["null"]
    assert low <= high <= np.log(6) + 1e-6
    (claim,) = [one for one in summary["claims"] if one["probe"] == "entropy"]
    assert (claim["relation"], claim["object"]) == ("measures", ["mean entropy"])
    assert claim["value"] == pytest.approx(expected, rel=1e-5)
    verdict = summary["probes"]["entropy"]["verdict"]
    assert f"{expected:.3g}" in verdict
    report = (tmp_path / "report.html").read_text("utf-8")
    for words in ("How sure is the model?", verdict, "Entropy at each position"):
        assert words in report
    with xr.open_dataset(tmp_path / "results.nc", group="entropy", engine="h5netcdf") as data:
        assert data["entropy"].dims == ("step", "position")
        assert float(data["entropy"][-1, 0]) == pytest.approx(expected, rel=1e-5)


def test_a_probe_that_raises_fails_alone(sites, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(sites / "site")
    monkeypatch.syspath_prepend(sites / "raising")
    with pytest.raises(SystemExit) as end:
        main(["probe", "--probes", "unlucky,entropy,attention", "--out", str(tmp_path)])
    assert end.value.code == 1
    assert "unlucky: failed: ZeroDivisionError: no luck today" in capsys.readouterr().err
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert summary["failed"] == {"unlucky": "ZeroDivisionError: no luck today (unlucky_probe.py, line 9)"}
    assert list(summary["probes"]) == ["entropy", "attention"]
    report = (tmp_path / "report.html").read_text("utf-8")
    assert "no luck today" in report
    assert "How sure is the model?" in report


def test_two_packages_with_one_name_are_an_error_that_names_both(sites, monkeypatch, capsys):
    monkeypatch.syspath_prepend(sites / "site")
    monkeypatch.syspath_prepend(sites / "duplicate")
    with pytest.raises(SystemExit) as end:
        main(["probes"])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: two probes are named 'entropy': ")
    assert "entropy_probe:probe of entropy-probe" in line
    assert "second_opinion:probe of second-opinion" in line


def test_the_links_of_the_page_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
