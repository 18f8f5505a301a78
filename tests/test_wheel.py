"""The wheel, built and used away from the checkout."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheel_check import problems

pytestmark = pytest.mark.system

TOLD = ("py.typed is missing", "'tests'", "CITATION.cff states version", "probes.degeneracy is not")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A clean environment that holds the wheel, and reuses the dependencies that are installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-deps", wheel], check=True)
    # Only a path, not a site directory: the checkout's own .pth is not followed from here.
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "borrowed.pth").write_text(borrowed + "\n", "utf-8")
    return wheel, python


def test_the_wheel_holds_one_package_and_its_files(installed):
    assert problems(installed[0]) == []


def test_a_wheel_that_lacks_or_holds_too_much_is_told(installed, tmp_path):
    broken = tmp_path / installed[0].name
    with zipfile.ZipFile(installed[0]) as whole, zipfile.ZipFile(broken, "w") as archive:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("METADATA"):
                content = content.replace(b"Version: 0", b"Version: 9").replace(b"Project-URL", b"Project")
                content = re.sub(rb"https://[^)]*belief.md", b"docs/belief.md", content)
            if name.endswith("sbom.cdx.json"):
                content = content.replace(b'"version": "', b'"version": "9', 1)
            if name not in ("mechmarkov/py.typed", "mechmarkov/probes/degeneracy.py"):
                archive.writestr(name, content)
        archive.writestr("tests/test_wheel.py", "")
    told = "\n".join(problems(broken))
    for wrong in (
        *TOLD,
        "no Project-URL",
        "sbom.cdx.json is not of what it needs",
        "links to docs/belief.md",
    ):
        assert wrong in told


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
    summary = json.loads((tmp_path / "report" / "summary.json").read_text("utf-8"))
    assert {"behaviour", "attention", "alignment"} <= set(summary["probes"])
    assert summary["failed"] == {}
