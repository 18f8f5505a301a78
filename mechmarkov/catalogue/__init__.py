"""What has a name: everything that a command or a recipe calls by one. Nothing is imported to find it."""

import ast
import errno
import os
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from mechmarkov.utils.plugins import registered, written_attribute
from mechmarkov.utils.text import did_you_mean, near_misses, shown

ROOT = Path(__file__).parents[1]
WRITTEN = {"recipe": ROOT / "training" / "recipes", "sweep": ROOT / "sweeps" / "examples"}  # in TOML
SOURCES = "mechmarkov.sources"  # entry points
CASES = ROOT / "bench" / "cases.py"
EXAMPLES = {
    "walk": "a random walk on a circle (p = 1/2, 6 states), learned: it selects the parent",
    "trap": "the deterministic walk (p = 1), trapped: flat attention, at chance",
    "induction": "a fresh chain per sequence, two layers: an induction circuit counts pairs in context",
    "mamba": "a fresh chain per sequence, one layer of Mamba-2: its state counts pairs in context",
    "graph": "a fresh chain per sequence along a graph of positions: the first layer attends to parents",
}


def names() -> dict[str, dict[str, str]]:
    """Returns what there is of each kind, name to title, by how it is called."""
    return {
        "recipes: mechmarkov train NAME": recipes(),
        "sweeps: mechmarkov sweep NAME": sweeps(),
        "bundled runs: mechmarkov probe --example NAME": examples(),
        "kinds of source and their fields: mechmarkov recipe new --source NAME": sources(),
        "methods: mechmarkov bench --methods NAME": dict.fromkeys(methods(), ""),
        "cases: mechmarkov bench --cases NAME": questions(),
    }


def recipes() -> dict[str, str]:
    """Returns the title of each shipped recipe, by its name: `mm.train(name)`."""
    return titles("recipe")


def sweeps() -> dict[str, str]:
    """Returns the title of each shipped sweep, by its name: `mm.sweep(name)`."""
    return titles("sweep")


def examples() -> dict[str, str]:
    """Returns what each bundled run shows, by its name: `mm.example(name)`."""
    return dict(EXAMPLES)


def methods() -> list[str]:
    """The names of the methods that `mm.bench` scores, ours and others'; none is loaded."""
    return [*registered("mechmarkov.methods")]


def titles(kind: str) -> dict[str, str]:
    """Returns the title of each shipped "recipe" or "sweep", by its name."""
    files = sorted(WRITTEN[kind].glob("*.toml"), key=lambda path: path.stem)
    return {path.stem: str(tomllib.loads(path.read_text("utf-8")).get("title", "")) for path in files}


def sources() -> dict[str, str]:
    """Returns the fields of each kind of source's example, as the class states it; none is loaded."""
    examples = {kind: written_attribute(entry, "example") for kind, entry in registered(SOURCES).items()}
    return {kind: ", ".join(found) if isinstance(found, dict) else "" for kind, found in examples.items()}


def text(kind: str, name: str) -> str:
    """The TOML of a shipped "recipe" or "sweep".

    Raises:
        ValueError: None has that name.
    """
    if name not in (known := titles(kind)):
        raise ValueError(_no_shipped(kind, name, known))
    return (WRITTEN[kind] / f"{name}.toml").read_text("utf-8")


def _no_shipped(kind: str, name: str, known: Iterable[str]) -> str:
    """The line about a name that is not shipped, with the file that it may mean, of the current folder."""
    files = [path.name for path in Path().glob("*.toml")]
    near = get_close_matches(f"{Path(name).name}.toml", files, n=1, cutoff=0.75)
    hint = f", did you mean the file {near[0]}?" if near else near_misses(name, list(known))
    return f"no shipped {kind} is called {shown(name)}{hint}"


def check_source(kind: str) -> None:
    """Raise ValueError unless a source is registered for a kind; none is loaded."""
    if kind not in (known := registered(SOURCES)):
        raise ValueError(f"no source is called {shown(kind)}{near_misses(kind, list(known))}")


def questions() -> dict[str, str]:
    """Returns what each case of the benchmark asks, as the source of the cases states it."""
    for node in ast.parse(CASES.read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            return {
                ast.literal_eval(name): ast.literal_eval(pair.elts[0])
                for name, pair in zip(node.value.keys, node.value.values, strict=True)
                if name is not None and isinstance(pair, ast.Tuple)
            }
    return {}


def check_written(kind: str, name: str) -> None:
    """Raise for what is neither a file nor the name of a shipped "recipe" or "sweep"; nothing is read.

    Raises:
        ValueError: No shipped one has that name.
        FileNotFoundError: The file is not there.
    """
    known, path = titles(kind), Path(name)
    if name.endswith((".toml", ".json")) or "/" in name:
        if path.stem in known and not path.exists():
            raise ValueError(f"{name}: {os.strerror(errno.ENOENT)}, did you mean {path.stem}?")
        path.stat()
    elif name not in known:
        raise ValueError(_no_shipped(kind, name, known))


def call_of(name: str) -> str:
    """Returns the call in Python that gives the bundled run, or trains the shipped recipe, of a name.

    >>> call_of("walk"), call_of("walk-k6-half"), call_of("run.pt")
    ("mm.example('walk')", "mm.train('walk-k6-half')", '')
    """
    if name in EXAMPLES:
        return f"mm.example({name!r})"
    return f"mm.train({name!r})" if name in recipes() else ""


def example_path(name: str) -> Path:
    """Returns the file of a bundled run.

    Raises:
        ValueError: None has that name.
    """
    if not isinstance(name, str) or name not in EXAMPLES:
        there = f"{', '.join(EXAMPLES)}{did_you_mean(name, EXAMPLES)}"
        raise ValueError(f"no bundled run is called {shown(name)}; there are {there}")
    return ROOT / "runs" / "examples" / f"{name}.pt"


def check_run(name: str) -> None:
    """Raise ValueError unless there is a file, a folder or a recording at that path, or it is on the Hub."""
    path = Path(os.path.expanduser(name))  # which leaves the home of nobody as it is
    if path.suffix == ".toml" and path.is_file():
        trained = f"mechmarkov train {name}, then mechmarkov probe runs/{path.stem}"
        raise ValueError(f"{name}: is a recipe, expected a run, so train it first: {trained}")
    if name.startswith("hf://") or path.exists() or path.with_name(f"{path.name}.steps").exists():
        return
    hint = f": --example {name} is bundled" if name in EXAMPLES else ""
    if name in recipes():
        hint = f": it is a recipe, so train it first: mechmarkov train {name}"
    raise ValueError(f"{name}: cannot be read: {os.strerror(errno.ENOENT)}{hint}")
