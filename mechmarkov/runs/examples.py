"""The bundled runs: small, trained, ready to be probed."""

from importlib import resources

from mechmarkov.runs.loading import load
from mechmarkov.runs.run import Run

EXAMPLES = {
    "walk": "a random walk on a circle (p = 1/2, 6 states), learned: it selects the parent",
    "trap": "the deterministic walk (p = 1), trapped: flat attention, at chance",
    "induction": "a fresh chain per sequence, two layers: an induction circuit counts pairs in context",
    "mamba": "a fresh chain per sequence, one layer of Mamba-2: its state counts pairs in context",
    "graph": "a fresh chain per sequence along a graph of positions: the first layer attends to parents",
}


def examples() -> dict[str, str]:
    """The bundled runs' names, and what each shows."""
    return dict(EXAMPLES)


def example(name: str = "walk") -> Run:
    """Load a bundled run.

    Raises:
        ValueError: If there is none of that name.
    """
    if not isinstance(name, str) or name not in EXAMPLES:
        raise ValueError(f"no bundled run is called {name!r}; there are {', '.join(EXAMPLES)}")
    with resources.as_file(resources.files("mechmarkov.runs") / "examples" / f"{name}.pt") as path:
        return load(path)
