"""Which probes there are and what each asks, without importing one: `mechmarkov probes` loads no torch."""

from importlib.metadata import EntryPoint

from mechmarkov.utils import plugins
from mechmarkov.utils.text import clean

GROUP = "mechmarkov.probes"

# The order of a report: what was learned, where it looks, what it holds; then everybody else's by name.
FIRST = (
    *("behaviour", "attention", "alignment", "induction", "ablation", "storage", "program"),
    *("belief", "graph"),
    *("dynamics", "symmetry", "landscape", "degeneracy"),
    "certificate",
)


def registered() -> dict[str, EntryPoint]:
    """The entry points by probe name, ours and others'.

    Raises:
        ValueError: If two distributions register one name; the message names both.
    """
    found = plugins.registered(GROUP)
    return {name: found[name] for name in dict.fromkeys([*FIRST, *found]) if name in found}


def questions() -> dict[str, str]:
    """Returns the question of each probe, by its name, as its source states it; none is loaded."""
    return {name: question(entry) for name, entry in registered().items()}


def question(entry: EntryPoint) -> str:
    """A probe's question as its source states it; where it is not a literal there, the place of the probe.

    Example:
        >>> question(registered()["behaviour"])
        'Which exact predictor does the model imitate, and to how many nats?'
        >>> question(EntryPoint("own", "a_package.that_is_missing:probe", "mechmarkov.probes"))
        'no question in the source of a_package.that_is_missing'
    """
    asked = plugins.written_argument(entry, "question", 1)
    return f"no question in the source of {entry.module}" if asked is None else clean(asked)
