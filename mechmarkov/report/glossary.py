"""What a score is: its formula, range, null and source, for the report and for the guide's glossary."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from mechmarkov.probing.probe import Probe
from mechmarkov.probing.score import Score
from mechmarkov.utils.text import words

# By unit; a unit that is not named has no bounds.
RANGES = {
    "probability": "0 to 1",
    "share": "0 to 1, beyond where paths cancel",
    "share of variance": "0 to 1",
    "share of edges": "0 to 1",
    "share of uniform": "from 0",
    "cosine": "−1 to 1",
    "balance of eigenvalues": "−1 to 1",
    "composition": "0 to 1",
    "of the ideal": "0 without effect, 1 for an ideal head; below 0 where it moves the other way",
    "nats": "0 without effect; below 0 where it harms",
    "nats / weight": "from 0",
    "step": "a kept step",
    "tokens": "from 1",
    "numbers": "from 0",
    "rank": "from 1",
    "lag": "from 1, the last known token",
    "": "a name, or yes or no",
}


@dataclass(frozen=True)
class Explanation:
    """The explanation of a score, in the words of its probe."""

    formula: tuple[str, ...]
    unit: str
    range: str
    null: str
    source: str


def explanation(probe: Probe, name: str, score: Score) -> Explanation:
    """Explain a score by its own formula, or the lines of its probe's that name it, or all of these.

    >>> from mechmarkov.probing.probe import load_probe
    >>> explanation(load_probe("behaviour"), "kl_bigram", Score(0.1, "nats")).range
    'from 0, where the two laws are equal'
    """
    lines = tuple(line.strip() for line in probe.formula.splitlines() if line.strip())
    own, ranges = (
        tuple(text for pattern, text in given.items() if fnmatchcase(name, pattern))
        for given in (probe.formulas, probe.ranges)
    )
    phrase = words(name).lower()
    named = own or tuple(line for line in lines if phrase in line.replace("-", " ").lower())
    null, values = score.null_kind or "", next(iter(ranges), RANGES.get(score.unit, "no bounds"))
    return Explanation(named or lines, score.unit, values, null, probe.cites)
