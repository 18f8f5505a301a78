"""Plugins: what installed distributions register in an entry-point group, ours and others'."""

import ast
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, TypeVar

from mechmarkov.utils.text import did_you_mean

Loaded = TypeVar("Loaded")


def registered(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group, such as `mechmarkov.probes`, sorted by name; nothing is imported.

    Raises:
        ValueError: Two distributions register one name; the message names both.

    Example:
        >>> "circle" in registered("mechmarkov.sources")
        True
    """
    entries: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=attrgetter("name")):
        if entry.name in entries:
            things = group.rpartition(".")[2]
            raise ValueError(
                f"two {things} are named {entry.name!r}: {origin(entries[entry.name])} and {origin(entry)}"
            )
        entries[entry.name] = entry
    return entries


def load(name: str, kind: type[Loaded], known: Mapping[str, EntryPoint]) -> Loaded:
    """The object that is registered under a name, which it has itself.

    Args:
        name: Its name.
        kind: The class that it is of.
        known: The entry points of its group, from `registered`.

    Raises:
        ValueError: Nothing is, or what is registered is not of that class or calls itself otherwise.
    """
    if name not in known:
        there = f"{', '.join(known)}{did_you_mean(name, known)}"
        raise ValueError(f"no {kind.__name__.lower()} is named {name!r}; there are {there}")
    entry = known[name]
    plugin = entry.load()
    called = getattr(plugin, "name", None)
    if not isinstance(plugin, kind):
        raise ValueError(
            f"{origin(entry)} is a {type(plugin).__name__}, expected a mechmarkov {kind.__name__}"
        )
    if called != name:
        raise ValueError(f"{origin(entry)} is registered as {name!r} but calls itself {called!r}")
    return plugin


def origin(entry: EntryPoint) -> str:
    """Returns what an entry point refers to and which distribution registers it, for error messages."""
    return f"{entry.value} of {entry.dist.name if entry.dist else 'an unknown distribution'}"


def written_argument(entry: EntryPoint, keyword: str, position: int) -> str | None:
    """A text that the source of an entry point's module gives to the call that makes the object.

    It reads `probe = Probe("entropy", "How sure is the model?", …)` and `probe = Probe(question="…", …)`.
    None where there is no source, or the text is not written out in it. Nothing is imported.

    Example:
        >>> written_argument(registered("mechmarkov.probes")["attention"], "name", 0)
        'attention'
    """
    for node in _statements(entry):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if entry.attr in [target.id for target in targets if isinstance(target, ast.Name)]:
                named = [argument.value for argument in node.value.keywords if argument.arg == keyword]
                given = [*named, *node.value.args[position : position + 1]]
                if given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str):
                    return given[0].value
    return None


def written_attribute(entry: EntryPoint, name: str) -> Any:
    """A plain value that the source of an entry point's class gives an attribute; None where it does not.

    It reads `class Circle(…): example: ClassVar[…] = {"n_states": 6}`. Nothing is imported.

    Example:
        >>> written_attribute(registered("mechmarkov.sources")["circle"], "example")
        {'n_states': 6, 'p': 0.75}
    """
    classes = [node for node in _statements(entry) if isinstance(node, ast.ClassDef)]
    bodies = [node.body for node in classes if node.name == entry.attr]
    for line in (line for body in bodies for line in body if isinstance(line, ast.AnnAssign)):
        if isinstance(line.target, ast.Name) and line.target.id == name and line.value is not None:
            try:
                return ast.literal_eval(line.value)
            except ValueError:  # worked out when it is imported
                return None
    return None


def _statements(entry: EntryPoint) -> list[ast.stmt]:
    """The statements of an entry point's module; none where there is no source."""
    try:
        spec = _find(entry.module)
        source = spec.loader.get_source(entry.module)  # type: ignore[union-attr]  # AttributeError is below
        return ast.parse(source).body
    except (AttributeError, ImportError, SyntaxError, TypeError, ValueError):
        return []


def _find(module: str) -> ModuleSpec | None:
    """Returns where a module is, without importing the packages that it is in."""
    first, *rest = module.split(".")
    spec = find_spec(first)
    for part in rest:
        if spec is None:
            break
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    # A package that sets its own path, as a checkout's `mechmarkov.probes`, is imported to be searched.
    return spec or find_spec(module)
