"""The layout: imports point one way, and what stands where."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the ground up: a room imports from itself and from those before it.
FLOORS = (
    "utils",
    "catalogue",
    "theory",
    "safe",
    "sources",
    "objectives",
    "models",
    "population",
    "importing",
    "runs",
    "certify",
    "training",
    "interventions",
    "claims",
    "probing",
    "curvature",
    "report",
    "own_tokens",
    "result",
    "probe_run",
    "recorder",
    "probes",
    "show",
    "sweeps",
    "bench",
    "quiz",
    "tool_server",
    "cli",
    "__main__",
    "called",
)
IMPORT = (ast.Import, ast.ImportFrom)
COMMANDS = "mechmarkov.cli"  # imports what a command needs when it is called: `--help` loads no torch


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
        if not name.startswith(COMMANDS)
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
    assert known == {"models", "utils"}


OPENINGS = {"What", "Which", "How", "Whether", "Why", "Where", "Of", "As"}
ENTRY = re.compile(r"^ {4}[*\w]+: (?:Of|As|The same)\b", re.MULTILINE)
SECTION = re.compile(r"^(?:Args|Attributes):\n((?: {4}.*\n|\n)*)", re.MULTILINE)
# Words with a plainer one (only, next to, equally, that many, clearly, otherwise), and how often they are
# left: names of conditions and options, and sentences about results. To be lowered.
# Pages made from the experiments' own words.
OF_PAPERS = ("verdicts.md", "corrections.md", "coverage.md", "our-questions.md", "our-derivations.md",
             "beside-the-papers.md")  # fmt: skip
OF_MODELS = ("recipes.md",)  # made from docstrings, which are read already
WORDS = {"alone": 0, "beside": 2, "alike": 9, "so many": 0, "surely": 0, "else where": 0}


def docstrings() -> Iterator[tuple[str, ast.AST, str]]:
    """Every docstring, with its module and node."""
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                yield name, node, ast.get_docstring(node) or ""


@cache
def prose() -> str:
    """Comments and texts with a space in them, of the code, and the pages that are written by hand."""
    parts = [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))
             if path.name not in (*OF_PAPERS, *OF_MODELS)]  # fmt: skip
    for name, tree in trees().items():
        nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        parts += [value for value in nodes if isinstance(value, str) and " " in value]
        tokens = tokenize.generate_tokens(io.StringIO(MODULES[name].read_text("utf-8")).readline)
        parts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(parts)


def test_docstrings_of_functions_and_classes_begin_with_what_is_done_or_returned():
    named = ((f"{name}.{node.name}", text) for name, node, text in docstrings() if hasattr(node, "name"))
    assert [name for name, text in named if {*text.split()[:1]} & OPENINGS] == []


def test_entries_of_arguments_begin_with_an_article_or_a_noun():
    assert [
        f"{name}: {entry}"
        for name, _, text in docstrings()
        for section in SECTION.findall(text + "\n")
        for entry in ENTRY.findall(section)
    ] == []


@pytest.mark.parametrize(("word", "most"), WORDS.items())
def test_words_with_a_plainer_one_get_fewer(word, most):
    found = len(re.findall(rf"\b{word}\b", prose(), re.IGNORECASE))
    assert found <= most
