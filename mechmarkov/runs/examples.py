"""The bundled runs: small, trained, ready to be probed."""

from importlib import resources

from mechmarkov.catalogue import check_example
from mechmarkov.runs.loading import load
from mechmarkov.runs.run import Run


def example(name: str = "walk") -> Run:
    """Load a bundled run: small, trained, ready to be probed. `mm.examples()` has their names.

    Raises:
        ValueError: If there is none of that name.

    Example:
        >>> example("walk").source.title()
        'Circle walk on 6 states, p = 0.5'
    """
    check_example(name)
    with resources.as_file(resources.files("mechmarkov.runs") / "examples" / f"{name}.pt") as path:
        return load(path)
