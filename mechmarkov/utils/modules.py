"""Packages that can be called, as `mm.probes()`, and names that are loaded when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from mechmarkov.utils.shadowed import explaining


def make_callable(name: str, function: Callable[[], Any]) -> None:
    """Let a loaded module be called as a function without arguments.

    Example:
        >>> sys.modules["here"] = here = ModuleType("here")
        >>> make_callable("here", lambda: ["a", "b"])
        >>> here()
        ['a', 'b']
    """
    module = sys.modules[name]
    module.__class__ = type(
        name, (ModuleType,), {"__call__": lambda _: function(), "__doc__": function.__doc__}
    )


def loaded_when_used(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, by which each of its names is imported when it is first used.

    Args:
        module: The package's name.
        homes: The module of each name.

    Example:
        >>> get = loaded_when_used("here", {"sqrt": "math"})
        >>> get("sqrt")(4.0)
        2.0
        >>> get("root")
        Traceback (most recent call last):
        AttributeError: module 'here' has no attribute 'root'
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        with explaining():  # what is imported may import what a file next to a script hides
            return getattr(import_module(homes[name]), name)

    return get
