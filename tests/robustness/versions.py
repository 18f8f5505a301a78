"""The suite with other versions: each Python from 3.11 up that is here, the lowest torch and the pinned one.

    python tests/robustness/versions.py [--list]

TransformerLens is 3.9.0 with the lowest torch and the newest 4 with the pinned one, as `.ci/run` has it. A
pair whose torch comes only with CUDA packages is left out, and it is said: no test needs them, and they are
gigabytes. `--list` says what would run and stops. Environments are kept in build/versions.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / "build" / "versions"
FIRST = 11  # Python 3.11
LAST = 30
DRY = ("install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-")
TIMEOUT = 600  # seconds that pip may take to find out


@dataclass(frozen=True)
class Pair:
    """One environment."""

    python: Path
    version: str
    torch: str
    lens: str

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return ENVIRONMENTS / f"python-{self.version}-torch-{self.torch.strip('~=.*')}"

    @property
    def name(self) -> str:
        """For people."""
        return f"Python {self.version}, torch {self.torch}, transformer-lens {self.lens}"


def pythons() -> dict[str, Path]:
    """Interpreters from 3.11 up, by version, on the path and where pyenv keeps them."""
    found = {}
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(FIRST, LAST):
        inside = sorted(kept.glob(f"3.{minor}.*/bin/python3.{minor}"))
        candidates = [shutil.which(f"python3.{minor}"), *(str(path) for path in reversed(inside))]
        works = [path for path in candidates if path is not None and _works(path)]
        if works:
            found[f"3.{minor}"] = Path(works[0])
    return found


def _works(path: str) -> bool:
    """A shim may stand for an interpreter that is not chosen."""
    return subprocess.run([path, "-c", "import venv"], check=False, capture_output=True).returncode == 0


def pairs() -> list[Pair]:
    """What is to be run."""
    lowest = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    pinned = dict(
        re.findall(r"^([\w-]+)==([\w.]+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    )
    assert lowest is not None
    torches = [(f"=={lowest[1]}.*", "==3.9.0"), (f"=={pinned['torch']}", f"=={pinned['transformer-lens']}")]
    return [
        Pair(path, version, torch, lens) for version, path in pythons().items() for torch, lens in torches
    ]


def without_cuda(pair: Pair) -> str | None:
    """None if its torch can be had without CUDA packages, else why not."""
    if not (pair.folder / "bin" / "python").exists():
        subprocess.run([pair.python, "-m", "venv", pair.folder], check=True)
    pip = [pair.folder / "bin" / "python", "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "--upgrade", "pip"], check=False, capture_output=True)
    try:
        reported = subprocess.run(
            [*pip, *DRY, f"torch{pair.torch}"], capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"pip did not say within {TIMEOUT} s what it would install"
    if reported.returncode:
        return (reported.stderr.strip().splitlines() or ["pip fails"])[-1][:150]
    names = [part["metadata"]["name"] for part in json.loads(reported.stdout)["install"]]
    heavy = [name for name in names if name.startswith(("nvidia-", "cuda-"))]
    return f"its torch comes with {len(heavy)} CUDA packages" if heavy else None


def run(pair: Pair) -> bool:
    """Install the pair and run the suite."""
    python = pair.folder / "bin" / "python"
    free = ("torch==", "transformer-lens==")
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    lines = [line for line in lines if not line.startswith(free)]
    constraints = pair.folder / "constraints.txt"
    constraints.write_text("\n".join(lines) + "\n", "utf-8")
    wanted = [f"torch{pair.torch}", f"transformer-lens{pair.lens}", "-e", f"{ROOT}[dev]"]
    install = [python, "-m", "pip", "install", "--quiet", "-c", constraints, *wanted]
    tests = [
        python, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m",
        "not slow and not browser and not experiments",
    ]  # fmt: skip
    return all(subprocess.run(command, check=False, cwd=ROOT).returncode == 0 for command in (install, tests))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    only_list = parser.parse_args().list
    failed = []
    for pair in pairs():
        why_not = without_cuda(pair)
        print(f"{pair.name}: {f'left out: {why_not}' if why_not else 'runs'}", flush=True)
        if why_not is None and not only_list and not run(pair):
            failed.append(pair.name)
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
