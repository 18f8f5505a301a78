"""Scores of probes for a logger, while somebody's loop trains."""

from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Protocol, runtime_checkable

from mechmarkov.catalogue.probes import registered
from mechmarkov.result import Result
from mechmarkov.utils.errors import list_of
from mechmarkov.utils.text import shown


@runtime_checkable
class Log(Protocol):
    """A function that takes scores: `wandb.log`, or one that writes them elsewhere."""

    def __call__(self, scores: dict[str, float], /, *, step: int) -> object: ...


def headline_numbers(result: Result) -> dict[str, float]:
    """Returns the scores of a `Result` that are numbers (yes is 1), as a logger takes them.

    A name is `mechmarkov/parent_score`, and `mechmarkov/attention/parent_score` where two probes have it.
    """
    owners = Counter(name for outcome in result.values() for name in outcome.scores)
    return {
        f"mechmarkov/{f'{asked}/{name}' if owners[name] > 1 else name}": float(score.value)
        for asked, outcome in result.items()
        for name, score in outcome.scores.items()
        if isinstance(score.value, (bool, int, float))
    }


def checked_probes(probes: Sequence[str], log: Log | None) -> list[str]:
    """Returns the names of probes, checked.

    Args:
        probes: The names; `mm.probes()` has all.
        log: What their scores are given to, called as `log(scores, step=8)`.

    Raises:
        TypeError: `probes` is not a list.
        ValueError: One is not known, probes or log stands without the other, or log is not a logger.

    Example:
        >>> checked_probes([], None)
        []
        >>> checked_probes(["attention"], None)
        Traceback (most recent call last):
        ValueError: probes is ['attention'], but log is None: expected both, or none
    """
    if isinstance(probes, str):
        raise ValueError(f"probes is {shown(probes)}, expected a list of names: [{shown(probes)}]")
    known = registered()
    probes = list_of("probes", list(probes) if isinstance(probes, Mapping) else probes, "a list of names")
    for name in probes:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"probes holds {shown(name)}, expected some of {', '.join(known)}")
    if bool(probes) != (log is not None):
        has = f"probes is {list(probes)}, but log is None" if probes else "log is given, but probes is empty"
        raise ValueError(f"{has}: expected both, or none")
    if log is not None and not callable(log):
        raise ValueError(f"log is {shown(log)}, expected a function such as wandb.log")
    if log is not None and not _takes_a_step(log):
        raise ValueError(f"log is {shown(log)}, expected a function that is called as log(scores, step=8)")
    return list(probes)


def _takes_a_step(log: Log) -> bool:
    try:
        signature(log).bind({}, step=0)
    except TypeError:
        return False
    except ValueError:  # written in C, and says nothing of its arguments
        return True
    return True
