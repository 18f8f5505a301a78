"""Which probes there are: every entry point of the group `mechmarkov.probes`, ours and others' alike."""

from importlib.metadata import EntryPoint, entry_points

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


def load_probe(name: str) -> Probe:
    """Load one probe by name.

    Raises:
        ValueError: If no probe has that name, or what is registered under it is not one.
    """
    found = registered()
    if name not in found:
        raise ValueError(f"no probe is named {name!r}; there are {', '.join(found)}")
    entry = found[name]
    probe = entry.load()
    if not isinstance(probe, Probe):
        raise ValueError(f"{_home(entry)} is a {type(probe).__name__}, expected a mechmarkov Probe")
    if probe.name != name:
        raise ValueError(f"{_home(entry)} is registered as {name!r} but calls itself {probe.name!r}")
    return probe
