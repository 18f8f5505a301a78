"""Which probes there are: every entry point of the group `mechmarkov.probes`, ours and others' alike."""

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from mechmarkov.probing.probe import Probe

GROUP = "mechmarkov.probes"

# The order of a report: what was learned, where it looks, what it holds; then everybody else's by name.
FIRST = (
    *("behaviour", "attention", "alignment", "induction", "ablation", "storage", "program"),
    *("dynamics", "symmetry", "landscape"),
)


def _home(entry: EntryPoint) -> str:
    return f"{entry.value} of {entry.dist.name if entry.dist else 'an unknown distribution'}"


def registered() -> dict[str, EntryPoint]:
    """The entry points by probe name, nothing imported.

    Raises:
        ValueError: If two distributions register one name; the message names both.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in found:
            raise ValueError(
                f"two probes are named {entry.name!r}: {_home(found[entry.name])} and {_home(entry)}"
            )
        found[entry.name] = entry
    rank = {name: i for i, name in enumerate(FIRST)}
    return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], len(FIRST)), item[0])))


def _check_origin(entry: EntryPoint) -> None:
    """The module must come from the distribution that registered it: a user's `probes/` may shadow ours."""
    module = entry.value.split(":")[0]
    package = module.split(".")[0]
    if entry.dist is None or entry.dist.files is None:
        return
    expected = [Path(str(entry.dist.locate_file(package)))]
    for file in (file for file in entry.dist.files if file.suffix == ".pth"):  # an editable install
        lines = [line.strip() for line in Path(str(file.locate())).read_text().splitlines()]
        if any(line.startswith("import") for line in lines):
            return  # an import hook finds the package: there is no place to compare with
        # Blank lines are no places: as a path they would be the working directory.
        expected += [Path(line) / package for line in lines if line and not line.startswith("#")]
    spec = find_spec(package)
    origins = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    if spec and spec.origin and not origins:
        origins = [Path(spec.origin)]
    wanted = {path.resolve() for path in expected} | {path.with_suffix(".py").resolve() for path in expected}
    if not any(origin.resolve() in wanted for origin in origins):
        places = ", ".join(str(origin) for origin in origins) or "nowhere"
        raise ImportError(
            f"probe {entry.name!r} belongs to {expected[-1]}, but importing {package!r} finds {places}: "
            "rename the folder that shadows it, or run from another directory"
        )


def load_probe(name: str) -> Probe:
    """Load one probe by name.

    Raises:
        ValueError: If no probe has that name, or what is registered under it is not one.
        ImportError: If another package shadows the probe's; the message names both places.
    """
    found = registered()
    if name not in found:
        raise ValueError(f"no probe is named {name!r}; there are {', '.join(found)}")
    entry = found[name]
    _check_origin(entry)
    probe = entry.load()
    if not isinstance(probe, Probe):
        raise ValueError(f"{_home(entry)} is a {type(probe).__name__}, expected a mechmarkov Probe")
    if probe.name != name:
        raise ValueError(f"{_home(entry)} is registered as {name!r} but calls itself {probe.name!r}")
    return probe
