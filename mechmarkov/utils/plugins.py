"""Plugins: what installed distributions register in an entry-point group, ours and others' alike."""

from importlib.metadata import EntryPoint, entry_points


def registered(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, nothing imported.

    Args:
        group: `mechmarkov.probes` or `mechmarkov.sources`.

    Raises:
        ValueError: Two distributions register one name; the message names both.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if entry.name in found:
            things = group.rpartition(".")[2]
            raise ValueError(
                f"two {things} are named {entry.name!r}: {origin(found[entry.name])} and {origin(entry)}"
            )
        found[entry.name] = entry
    return found


def origin(entry: EntryPoint) -> str:
    """What an entry point refers to and which distribution registers it, for error messages."""
    return f"{entry.value} of {entry.dist.name if entry.dist else 'an unknown distribution'}"
