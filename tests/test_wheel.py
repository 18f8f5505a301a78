"""The wheel, built and used away from the checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A clean environment that holds the wheel, and reuses the dependencies that are installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-deps", wheel], check=True)
    # Only a path, not a site directory: the checkout's own .pth is not followed from here.
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "borrowed.pth").write_text(borrowed + "\n")
    return wheel, python


def test_the_wheel_holds_one_package_and_its_files(installed):
    names = zipfile.ZipFile(installed[0]).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"mechmarkov"}
    for needed in (
        "mechmarkov/py.typed",
        "mechmarkov/probes/induction/__init__.py",
        "mechmarkov/probing/fragment.html.j2",
        "mechmarkov/runs/examples/walk.pt",
        "mechmarkov/runs/examples/trap.pt",
        "mechmarkov/training/recipes/walk-k6-half.toml",
        "mechmarkov/report/templates/report.html.j2",
        "mechmarkov/sweeps/examples/binary-phase.toml",
    ):
        assert needed in names


def test_probe_runs_from_the_wheel(installed, tmp_path):
    python = installed[1]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = subprocess.run(
        [python, "-c", "import mechmarkov, mechmarkov.probes as p; print(mechmarkov.__file__, p.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    ).stdout.split()
    assert all(str(python.parents[1]) in path for path in where)
    subprocess.run(
        [python.parent / "mechmarkov", "probe", "--out", "report"], check=True, cwd=tmp_path, env=environment
    )
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert {"behaviour", "attention", "alignment"} <= set(summary["probes"])
    assert summary["failed"] == {}
