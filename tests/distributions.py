"""Distributions on disk, whose entry points are found."""

from pathlib import Path


def install(site: Path, name: str, group: str, entry_points: str, **modules: str) -> None:
    """A distribution as an installer leaves it behind: entry points of a group, and modules by name."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry_points}\n", "utf-8")
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text, "utf-8")
