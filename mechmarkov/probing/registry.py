"""Which probes there are: every entry point of the group `mechmarkov.probes`, ours and others' alike."""

from importlib.metadata import EntryPoint

from mechmarkov.probing.probe import Probe
from mechmarkov.utils import plugins

GROUP = "mechmarkov.probes"

# The order of a report: what was learned, where it looks, what it holds; then everybody else's by name.
FIRST = (
    *("behaviour", "attention", "alignment", "induction", "ablation", "storage", "program"),
    *("dynamics", "symmetry", "landscape"),
)


def registered() -> dict[str, EntryPoint]:
    """The entry points by probe name, nothing imported.

    Raises:
        ValueError: If two distributions register one name; the message names both.
    """
    rank = {name: i for i, name in enumerate(FIRST)}
    found = plugins.registered(GROUP)
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
        raise ValueError(f"{plugins.origin(entry)} is a {type(probe).__name__}, expected a mechmarkov Probe")
    if probe.name != name:
        raise ValueError(f"{plugins.origin(entry)} is registered as {name!r} but calls itself {probe.name!r}")
    return probe
