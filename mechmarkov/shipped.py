"""What has a name: everything that a command or a recipe calls by one."""

from mechmarkov.bench import registered as methods
from mechmarkov.bench.cases import QUESTIONS
from mechmarkov.runs import examples
from mechmarkov.sources.base.registry import GROUP
from mechmarkov.sweeps import load_sweep, shipped_sweeps
from mechmarkov.training import load_recipe, recipes
from mechmarkov.utils.plugins import registered


def names() -> dict[str, dict[str, str]]:
    """Returns what there is of each kind, name to title, by how it is called."""
    return {
        "recipes: mechmarkov train NAME": {name: load_recipe(name).title for name in recipes()},
        "sweeps: mechmarkov sweep NAME": {name: load_sweep(name).title for name in shipped_sweeps()},
        "bundled runs: mechmarkov probe --example NAME": examples(),
        'kinds of source: {"kind": "NAME", …}': dict.fromkeys(registered(GROUP), ""),
        "methods: mechmarkov bench --methods NAME": dict.fromkeys(methods(), ""),
        "cases: mechmarkov bench --cases NAME": QUESTIONS,
    }
