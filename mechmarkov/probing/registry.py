"""Loading the probes that are registered in the entry-point group `mechmarkov.probes`."""

from mechmarkov.probe_names import registered
from mechmarkov.probing.probe import Probe
from mechmarkov.utils import plugins


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
