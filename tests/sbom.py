"""The bill of materials that the wheel carries (PEP 770): what it needs, at the versions it is tested with.

    make sbom

`cyclonedx-py` writes it. The packages are those that the installed metadata lead to, without the extras, and
the versions those of `constraints.txt`.
"""

import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
BILL = ROOT / "sbom.cdx.json"


def pinned() -> dict[str, str]:
    """The versions of `constraints.txt`, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = [line.partition("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in pairs}


def needed(name: str = "mechmarkov") -> dict[str, str]:
    """What a package needs to run here, and what that needs, with the pinned versions."""
    versions, found, asked = pinned(), {}, [Requirement(name)]
    while asked:
        one = asked.pop()
        try:
            parts = requires(one.name) or []
        except PackageNotFoundError:  # of another system
            continue
        for part in map(Requirement, parts):
            extras = [{"extra": extra} for extra in one.extras] or [{"extra": ""}]
            if part.marker is not None and not any(part.marker.evaluate(extra) for extra in extras):
                continue
            key = canonicalize_name(part.name)
            if key in versions and key not in found:
                found[key] = versions[key]
                asked.append(part)
    return dict(sorted(found.items()))


def main(tool: str) -> None:
    """Write the bill, the same for the same packages."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "needed.txt"
        lines.write_text("".join(f"{name}=={version}\n" for name, version in needed().items()), "utf-8")
        options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library", "--short-PURLs"]
        options += ["--output-reproducible", "-i", "https://pypi.org/simple", "-o", str(BILL)]
        subprocess.run([tool, "requirements", *options, str(lines)], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
