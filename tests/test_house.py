"""The layout: imports point one way, and what stands where."""

import ast
import doctest
import importlib
import pkgutil
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mechmarkov.probes

ROOT = Path(__file__).parents[1]
# From the ground up: a room imports from itself and from those before it.
FLOORS = (
    "utils",
    "probe_names",
    "theory",
    "safe",
    "sources",
    "objectives",
    "models",
    "importing",
    "runs",
    "training",
    "interventions",
    "probing",
    "curvature",
    "report",
    "result",
    "probe_run",
    "probes",
    "show",
    "sweeps",
    "cli",
)
COMMANDS = {"mechmarkov.cli"}  # imports what a command needs when it is called: `--help` loads no torch


def modules() -> dict[str, Path]:
    """Every module of the library by its name when installed."""
    found = {}
    for path in [*(ROOT / "mechmarkov").rglob("*.py"), *(ROOT / "probes").rglob("*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "mechmarkov" else ("mechmarkov", *parts)
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported(name: str, tree: ast.AST) -> set[str]:
    """The modules of the library that some code imports."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names
            }
    return {other for other in found if other in MODULES and other not in ("mechmarkov", name)}


def room(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "mechmarkov"])
def test_imports_point_down(name):
    above = {
        other for other in imported(name, TREES[name]) if FLOORS.index(room(other)) > FLOORS.index(room(name))
    }
    assert not above


def test_no_module_imports_itself_through_others():
    graph = {name: imported(name, tree) for name, tree in TREES.items() if name != "mechmarkov"}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import circle: {' → '.join(error.args[1])}")


@pytest.mark.parametrize("name", [name for name in MODULES if name not in {"mechmarkov", *COMMANDS}])
def test_no_import_hides_in_a_function_or_behind_a_condition(name):
    inside = [node for node in TREES[name].body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not set().union(*(imported(name, node) for node in inside))


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("mechmarkov.probes")])
def test_nothing_imports_a_probe_by_name(name):
    assert not {other for other in imported(name, TREES[name]) if other.startswith("mechmarkov.probes")}


@pytest.mark.parametrize("name", [name for name in MODULES if room(name + ".") == "theory"])
def test_theory_knows_no_torch(name):
    found = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(TREES[name])
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert "torch" not in found


def test_models_know_no_data():
    models = [name for name in MODULES if room(name + ".") == "models"]
    assert models
    assert not {other for name in models for other in imported(name, TREES[name]) if room(other) == "sources"}


def test_a_probe_imports_no_other_probe():
    for name in (name for name in MODULES if name.count(".") >= 2 and room(name) == "probes"):
        others = {
            other.split(".")[2]
            for other in imported(name, TREES[name])
            if other.count(".") >= 2 and room(other) == "probes"
        }
        assert others <= {name.split(".")[2]}, name


def test_no_folder_has_more_than_fifteen_files():
    folders = {path.parent for path in MODULES.values()}
    crowded = {
        str(folder.relative_to(ROOT)): n for folder in folders if (n := len(list(folder.glob("*.py")))) > 15
    }
    assert not crowded


@pytest.mark.parametrize(
    "name", [found.name for found in pkgutil.walk_packages(mechmarkov.probes.__path__, "mechmarkov.probes.")]
)
def test_examples_of_the_probes(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
