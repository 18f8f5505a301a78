"""The recipe that a run file keeps: what probes read of it, checked when the file is read.

A recipe of another program's training may hold anything; only the start and the optimiser are read.
"""

import math
from typing import Any

from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import shown

MOST_STD = 1e3  # as in a recipe


def check_recipe(recipe: dict[str, Any] | None) -> None:
    """Refuse a start or an optimiser that cannot be one.

    Args:
        recipe: Plain values; `init` and `optimiser` are tables, or not there.

    Raises:
        RunFileError: One line that names the field, its value and what was expected.

    Example:
        >>> check_recipe({"optimiser": {"kind": "gd", "lr": "fast"}})
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: recipe.optimiser.lr is 'fast', expected a number above 0
    """
    recipe = recipe or {}
    tables = {name: recipe.get(name) for name in ("init", "optimiser")}
    for name, table in tables.items():
        if table is not None and type(table) is not dict:
            raise RunFileError(f"recipe.{name} is {shown(table)}, expected a section")
    init, optimiser = tables["init"] or {}, tables["optimiser"] or {}
    _expect("optimiser.kind", optimiser.get("kind"), _is_text, "a text such as 'gd'")
    _expect("optimiser.lr", optimiser.get("lr"), lambda x: _is_number(x) and x > 0, "a number above 0")
    _expect("init.scheme", init.get("scheme"), _is_text, "a text such as 'normal'")
    expected = f"a number from 0 to {MOST_STD:g}"
    _expect("init.std", init.get("std"), lambda x: _is_number(x) and 0 <= x <= MOST_STD, expected)


def _expect(name: str, value: Any, good: Any, expected: str) -> None:
    if value is not None and not good(value):
        raise RunFileError(f"recipe.{name} is {shown(value)}, expected {expected}")


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
