"""The layout: imports point one way, and what stands where."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the ground up: a room imports from itself and from those before it.
FLOORS = (
    "shadowed",
    "utils",
    "probe_names",
    "theory",
    "safe",
    "sources",
    "objectives",
    "models",
    "compatibility",
    "population",
    "importing",
    "runs",
    "certify",
    "training",
    "interventions",
    "claims",
    "probing",
    "estimated_law",
    "curvature",
    "report",
    "result",
    "probe_run",
    "recorder",
    "probes",
    "show",
    "sweeps",
    "bench",
    "shipped",
    "cli_options",
    "cli_certify",
    "cli",
    "__main__",
)
IMPORT = (ast.Import, ast.ImportFrom)
COMMANDS = {
    "mechmarkov.cli",
    "mechmarkov.cli_certify",
}  # imports what a command needs when it is called: `--help` loads no torch


def modules() -> dict[str, Path]:
    """Every module of the library by its name when installed."""
    found = {}
    for path in [*(ROOT / "mechmarkov").rglob("*.py"), *(ROOT / "probes").rglob("*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "mechmarkov" else ("mechmarkov", *parts)
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


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


@cache
def imports() -> dict[str, set[str]]:
    return {name: imported(name, tree) for name, tree in trees().items() if name != "mechmarkov"}


def test_imports_point_down():
    upward = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if FLOORS.index(room(other)) > FLOORS.index(room(name))
    ]
    assert not upward


def test_no_module_imports_itself_through_others():
    try:
        list(TopologicalSorter(imports()).static_order())
    except CycleError as error:
        pytest.fail(f"import circle: {' → '.join(error.args[1])}")


def test_no_import_hides_in_a_function_or_behind_a_condition():
    hidden = {
        name: set().union(
            *(imported(name, node) for node in trees()[name].body if not isinstance(node, IMPORT))
        )
        for name in imports()
        if name not in COMMANDS
    }
    assert not {name: others for name, others in hidden.items() if others}


def test_nothing_imports_a_probe_by_name():
    inside = "mechmarkov.probes"
    assert not [
        n for n, others in imports().items() if room(n) != "probes" for o in others if o.startswith(inside)
    ]


def test_a_probe_imports_no_other_probe():
    def home(name):
        return name.split(".")[2:3]

    inside = {name: others for name, others in imports().items() if room(name) == "probes"}
    assert not [
        (name, other)
        for name, others in inside.items()
        for other in others & set(inside)
        if home(other) != home(name)
    ]


def test_theory_knows_no_torch_and_models_no_data():
    nodes = [node for name in imports() if room(name) == "theory" for node in ast.walk(trees()[name])]
    assert not [
        node for node in nodes if isinstance(node, ast.Import) and node.names[0].name.startswith("torch")
    ]
    assert not [
        node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch")
    ]
    known = {room(other) for name, others in imports().items() if room(name) == "models" for other in others}
    assert known == {"models", "utils", "shadowed"}
