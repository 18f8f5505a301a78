"""The guide and the tutorials, without building them: `make docs` and `make notebooks` do that."""

import ast
import pkgutil
import re
from inspect import ismodule
from pathlib import Path

import pytest
import yaml
from test_house import FLOORS

import mechmarkov as mm

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md"))
# From the command line's own help, and from the reports of `docs/guide/gallery.py`.
MADE = {"docs/command-line.md", "docs/gallery/gallery.md", "docs/gallery/glossary.md"}


def in_navigation() -> list[str]:
    """The files of the guide's navigation, as they are called in the repository."""
    found = []

    def walk(entry) -> None:
        if isinstance(entry, str):
            found.append(entry)
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                walk(part)

    walk(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    return found


def test_every_page_and_every_tutorial_is_in_the_navigation_once():
    entries = in_navigation()
    assert len(entries) == len(set(entries))
    pages = {str(path.relative_to(ROOT)) for path in PAGES}
    tutorials = {str(path.relative_to(ROOT).with_suffix(".md")) for path in TUTORIALS}
    assert len(tutorials) >= 5
    assert not pages & tutorials  # one would be written over the other
    assert {entry for entry in entries if entry.startswith("docs/")} == pages | tutorials | MADE
    others = [entry for entry in entries if not entry.startswith("docs/")]
    assert [entry for entry in others if not (ROOT / entry).is_file()] == []


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s#]+)", text) if not link.startswith(("http", "mailto"))]


@pytest.mark.parametrize(
    "page", [*PAGES, *TUTORIALS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_every_link_leads_to_a_file(page):
    # To a file: a folder has no page in the guide.
    found = [page.parent / link for link in links(page.read_text("utf-8"))]
    made = {ROOT / name for name in MADE}
    assert [path for path in found if not path.is_file() and path not in made] == []


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_use_public_names(tutorial):
    tree = ast.parse(tutorial.read_text("utf-8"))
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in used if isinstance(node.value, ast.Name) and node.value.id == "mm"}
    assert names
    assert sorted(names - set(mm.__all__)) == []


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_promise_and_assert(tutorial):
    tree = ast.parse(tutorial.read_text("utf-8"))
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 5
    text = tutorial.read_text("utf-8")
    assert "format_name: percent" in text
    assert re.search(r"^# # \w", text, re.MULTILINE)  # a title, for the page and the notebook


def test_every_public_name_is_on_one_page():
    """By the place it is defined at, since some modules and functions share a name."""
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    assert len(shown) == len(set(shown))
    public = {name: getattr(mm, name) for name in mm.__all__}
    places = {
        name: found.__name__ if ismodule(found) else f"{found.__module__}.{name}"
        for name, found in public.items()
    }
    assert {name: place for name, place in places.items() if place not in shown} == {}


def test_the_picture_of_the_house_is_the_one_that_the_imports_are_read_by():
    (picture,) = re.findall(
        r"```text\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.DOTALL
    )
    assert [line.split()[0] for line in picture.splitlines()] == list(reversed(FLOORS))
    assert all(len(line.split()) > 3 for line in picture.splitlines())


def test_contributing_is_one_screen():
    assert len((ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines()) <= 50


def make_targets(path: Path) -> set[str]:
    """The targets that a file calls make with."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")]
    calls = re.findall(r"\bmake ([a-z][a-z0-9-]*(?: [a-z][a-z0-9-]*)*)", "\n".join(lines))
    return {target for call in calls for target in call.split()}


def test_the_forge_calls_the_make_targets_of_the_gate():
    known = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    gate = make_targets(ROOT / ".ci" / "run")
    forge = make_targets(ROOT / ".github" / "workflows" / "ci.yml")
    tests = {target for target in known if target.startswith("test")}
    tests -= {"test-machines", "test-slow", "test-tools", "test-versions"}
    assert {"lint", "types", "notebooks", "docs"} | tests <= gate
    assert gate - {"install", "gallery"} <= forge  # which others make too
    assert forge <= known


NAMED = sorted(
    {
        line.removeprefix("::: ")
        for page in (ROOT / "docs" / "api").glob("*.md")
        for line in page.read_text().splitlines()
        if line.startswith("::: ")
    }
)


def test_what_the_reference_names_is_there():
    for name in NAMED:
        assert pkgutil.resolve_name(name) is not None, name
