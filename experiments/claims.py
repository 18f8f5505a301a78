"""What was found of a statement, and the verdict that the two allow.

Words about a paper are in a study's `claims.toml`, so that they can be corrected without measuring again.
What was measured is a `Finding`, made by code. A `Claim` joins them, and its verdict follows by one rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool
from scipy.stats import binomtest

from experiments.statements import Kind, Statement, check_one_of

Verdict = Literal[
    "holds",
    "holds with a correction",
    "does not hold",
    "not found in training",
    "our question: yes",
    "our question: no",
    "undecided",
    "not testable here",
]
Direction = Literal["for", "corrected", "against", "untested"]
Evidence = Literal[
    "proved", "computed exactly", "sampled", "trained at the paper's setting", "trained at another"
]

EXACT: tuple[Evidence, ...] = ("proved", "computed exactly")
THEIRS: Evidence = "trained at the paper's setting"
ENOUGH_SEEDS = 16  # at the paper's own setting, before a claim can be said not to hold
NEED_DEFENCE: tuple[Verdict, ...] = ("holds with a correction", "does not hold", "not found in training")
MARKS: dict[Evidence, str] = {
    "proved": "proved",
    "computed exactly": "computed",
    "sampled": "sampled",
    THEIRS: "trained, theirs",
    "trained at another": "trained, other",
}


def wilson(hits: int, n: int) -> tuple[float, float, float]:
    """A frequency with its 95 % Wilson interval: (low, value, high)."""
    interval = binomtest(int(hits), int(n)).proportion_ci(method="wilson")
    return float(interval.low), float(hits / n), float(interval.high)


def share(hits: int, n: int) -> str:
    """A frequency as text, with its 95 % Wilson interval.

    Example:
        >>> share(5, 6)
        '5/6 [0.44, 0.97]'
    """
    low, _, high = wilson(hits, n)
    return f"{hits}/{n} [{low:.2f}, {high:.2f}]"


def holds(condition: Any, corrected: Any = False) -> Direction:
    """Which way a measurement points: for a claim, for a weaker form of it, or against it.

    Example:
        >>> holds(0.4 > 0.5, corrected=0.4 > 0.3)
        'corrected'
    """
    if condition:
        return "for"
    return "corrected" if corrected else "against"


@dataclass(frozen=True)
class Finding:
    """What one measurement says of one statement.

    Attributes:
        key: Of the statement.
        measured: What was measured, with intervals; folded away where `number` says the gist.
        direction: Which way it points, from `holds`; "untested" where it could not be measured.
        our_setting: What it was measured on, and how.
        evidence: A proof; a computation without a random number; a sample of instances; training at the
            paper's own setting; training at another one.
        count: In how many of how many runs or instances the statement is true.
        case: Which of several cases, such as "two symbols".
        number: The one number of the row; by default the count with its interval, else `measured`.
        sample: Of a sample that is no count: its size and the 95 % interval of what decides.
        proof: Where the argument stands: a file of the repository, with an anchor.
        data: What the models were trained on; the harness fills it in.
        error: Standard errors of means over evaluation sequences, as shares; the harness fills it in.

    Raises:
        ValueError: Evidence without what it needs: a proof, a count of runs, the interval of a sample; or a
            direction or evidence of another name.
    """

    key: str
    measured: str
    direction: Direction
    our_setting: str
    evidence: Evidence
    count: tuple[int, int] | None = None
    case: str = ""
    number: str = ""
    sample: tuple[int, float, float] | None = None
    proof: str = ""
    data: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        """Each kind of evidence must come with what bears it."""
        check_one_of(Direction, f"{self.key}: direction", self.direction)
        check_one_of(Evidence, f"{self.key}: evidence", self.evidence)
        if self.count is not None:
            hits, n = map(int, self.count)  # numpy's too
            if not 0 <= hits <= n or n == 0:
                raise ValueError(f"{self.key}: count is {hits} of {n} runs, expected at most all of some")
            object.__setattr__(self, "count", (hits, n))
        if self.direction == "untested":
            return
        sampled = self.count is not None or (self.evidence == "sampled" and self.sample is not None)
        if self.evidence in EXACT and (self.count or self.sample):
            raise ValueError(f"{self.key}: evidence is {self.evidence!r}, which has no interval, but a count")
        if self.evidence not in EXACT and not sampled:
            raise ValueError(f"{self.key}: evidence is {self.evidence!r} and there is no count of runs")
        if (self.evidence == "proved") != bool(self.proof):
            raise ValueError(f"{self.key}: evidence is {self.evidence!r} and the proof at {self.proof!r}")

    @property
    def leaning(self) -> int:
        """1 for the statement, -1 against it, 0 for neither: what a smaller run must not turn round."""
        if self.direction == "untested":
            return 0
        if self.count is None:
            return -1 if self.direction == "against" else 1
        hits, n = self.count
        return (2 * hits > n) - (2 * hits < n)

    @property
    def gist(self) -> str:
        """The one number of the row."""
        if self.number or self.direction == "untested":
            return self.number or "–"
        return self.measured if self.count is None else share(*self.count)


def unfinished(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings of a quick run that ends before what they are about: they decide nothing."""
    return [replace(one, direction="untested", count=None) for one in findings]


def of_seeds(
    key: str, hits: Bool[np.ndarray, " seed"], text: str, our_setting: str, *, case: str = ""
) -> Finding:
    """The finding of a statement about trained models: in which seeds it is true, and what was measured."""
    count = int(hits.sum()), len(hits)
    measured = f"{share(*count)} seeds; {text}"
    return Finding(
        key, measured, holds(hits.all()), our_setting, "trained at another", count=count, case=case
    )


def verdict(kind: Kind, finding: Finding, has_a_measure: bool = True) -> Verdict:
    """The one rule.

    A count's 95 % interval (Wilson) decides, and one that includes one half decides nothing. A fair coin
    decides in one of eight draws of 4 runs, one of sixteen of 5, at most one of twelve of more. A claim of a
    paper does not hold where there is a proof or an exact counterexample, or the paper's own setting with at
    least 16 seeds; elsewhere it was not found in training. Where the paper says nothing that would decide, a
    threshold is ours: it can neither correct the paper nor refute it.

    Args:
        kind: Of the statement.
        finding: What was measured of it.
        has_a_measure: Whether the paper says what would decide.

    Example:
        >>> seen = dict(key="a", measured="", our_setting="", evidence="trained at another")
        >>> verdict("paper", Finding(direction="for", count=(3, 3), **seen))
        'undecided'
        >>> verdict("paper", Finding(direction="against", count=(0, 30), **seen))
        'not found in training'
        >>> verdict("paper", Finding(direction="corrected", count=(30, 30), **seen), has_a_measure=False)
        'undecided'
    """
    direction, n, exact = finding.direction, 0, finding.evidence in EXACT
    if direction == "untested":
        return "not testable here"
    if finding.count is not None:
        hits, n = finding.count
        low, _, high = wilson(hits, n)
        if low <= 0.5 <= high:
            return "undecided"
        if high < 0.5:
            direction = "against"
        elif direction == "against":
            direction = "for"
    if kind == "question":
        return "our question: no" if direction == "against" else "our question: yes"
    if direction == "for":
        return "holds"
    if direction == "corrected":
        return "holds with a correction" if exact or has_a_measure else "undecided"
    if exact or (finding.evidence == THEIRS and n >= ENOUGH_SEEDS and has_a_measure):
        return "does not hold"
    return "undecided" if finding.evidence == "sampled" else "not found in training"


@dataclass(frozen=True)
class Claim:
    """A statement, what was found of it, and the command that finds it again.

    Attributes:
        statement: What is claimed.
        finding: What was found.
        study: The folder.
        measurement: The one of its measurements, as `--only` names it.
        case_id: The finding's case, as the row's identifier names it.

    Raises:
        ValueError: The verdict is not the statement's own, and nothing says what a defender would answer, or
            what holds instead.
    """

    statement: Statement
    finding: Finding
    study: str
    measurement: str
    case_id: str = ""

    def __post_init__(self) -> None:
        """A verdict against a paper must carry the answer to it, and what holds instead."""
        if self.statement.kind != "paper" or self.verdict not in NEED_DEFENCE:
            return
        if not self.statement.defence:
            raise ValueError(f"{self.finding.key} {self.verdict}: it needs a line of defence")
        if self.verdict != "not found in training" and not self.statement.equation:
            raise ValueError(f"{self.finding.key} {self.verdict}: it needs the equation that says why")

    @property
    def identifier(self) -> str:
        """The row's name, which does not change with its words: `random_walks.direction_P`."""
        parts = [self.study, self.finding.key, self.case_id]
        return ".".join(part for part in parts if part)

    @property
    def command(self) -> str:
        """What measures it again."""
        return f"python -m experiments.{self.study} --only {self.measurement}"

    @property
    def verdict(self) -> Verdict:
        """What statement and finding allow to be said."""
        return verdict(self.statement.kind, self.finding, self.statement.has_a_measure)

    @property
    def strength(self) -> str:
        """The kind of evidence, in a word or two."""
        return "none" if self.finding.direction == "untested" else MARKS[self.finding.evidence]

    @property
    def text(self) -> str:
        """The claim, after its case."""
        return f"{self.finding.case}: {self.statement.claim}" if self.finding.case else self.statement.claim
