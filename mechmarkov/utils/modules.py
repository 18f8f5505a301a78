"""Packages that can be called: `mm.probes()` lists the probes, though `mm.probes` is their package."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


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
