"""Is a wheel fit for release? `make wheel-check` asks before it installs it in a clean environment."""

import json
import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.utils import canonicalize_name
from sbom import needed

ROOT = Path(__file__).parents[1]
NEEDED = (
    "mechmarkov/py.typed",
    "mechmarkov/probes/induction/__init__.py",
    "mechmarkov/probing/fragment.html.j2",
    "mechmarkov/runs/examples/walk.pt",
    "mechmarkov/runs/examples/trap.pt",
    "mechmarkov/runs/examples/induction.pt",
    "mechmarkov/runs/examples/mamba.pt",
    "mechmarkov/training/recipes/walk-k6-half.toml",
    "mechmarkov/report/templates/report.html.j2",
    "mechmarkov/report/templates/dashboard.js",
    "mechmarkov/sweeps/examples/binary-phase.toml",
)
VERSIONS = {  # every place that states the version
    "pyproject.toml": r'^version = "(.+)"$',
    "mechmarkov/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}


def components(bill: str) -> dict[str, str]:
    """The packages of a bill of materials and their versions."""
    return {canonicalize_name(one["name"]): one["version"] for one in json.loads(bill)["components"]}


def problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel's metadata and contents, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        bill = f"{info}/sboms/sbom.cdx.json"
        listed = components(archive.read(bill).decode()) if bill in names else {}
    versions = {
        place: re.findall(pattern, (ROOT / place).read_text("utf-8"), re.MULTILINE)
        for place, pattern in VERSIONS.items()
    }
    tops = {name.split("/")[0] for name in names} - {info}
    found = [f"{name} is missing" for name in NEEDED if name not in names]
    found += [f"it holds {sorted(tops)}, expected mechmarkov alone"] if tops != {"mechmarkov"} else []
    found += [f"{info}/licenses/LICENSE is missing"] if f"{info}/licenses/LICENSE" not in names else []
    found += [
        f"{place} states version {stated}, expected {metadata['Version']}, as the wheel does"
        for place, stated in versions.items()
        if stated != [metadata["Version"]]
    ]
    for field in ("Name", "Summary", "License-Expression", "Requires-Python", "Description-Content-Type"):
        found += [f"its metadata has no {field}"] if not metadata[field] else []
    found += [] if metadata.get_all("Project-URL") else ["its metadata has no Project-URL"]
    found += [] if listed == needed() else [f"{bill} is not of what it needs now: make sbom"]
    relative = re.findall(r"\]\((?!https://|#)([^)]*)\)", metadata.get_payload())
    found += [f"its description links to {link}, expected an absolute address" for link in relative]
    modules = re.findall(r"= (mechmarkov[\w.]*):", entry_points)
    places = [(module, module.replace(".", "/")) for module in modules]
    found += [
        f"the entry point {module} is not in it"
        for module, path in places
        if not {f"{path}.py", f"{path}/__init__.py"} & set(names)
    ]
    return found


if __name__ == "__main__":
    wrong = [f"{wheel}: {problem}" for wheel in sys.argv[1:] for problem in problems(Path(wheel))]
    sys.exit("\n".join(wrong) or 0)
