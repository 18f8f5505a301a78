"""What a paper says, what was found, and the verdict that the two allow.

Words about a paper are in a study's `claims.toml`, so that they can be corrected without measuring again.
What was measured is a `Finding`, made by code. A `Claim` joins them, and its verdict follows by one rule.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from scipy.stats import binomtest

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
Evidence = Literal["derivation", "counterexample", "paper's setting", "other setting"]
Kind = Literal["paper", "derived", "question"]
Read = Literal["text", "abstract", "code", "summary", "own"]

EXACT: tuple[Evidence, ...] = ("derivation", "counterexample")
ENOUGH_SEEDS = 16  # at the paper's own setting, before a claim can be said not to hold
NEED_DEFENCE: tuple[Verdict, ...] = ("holds with a correction", "does not hold", "not found in training")
# How the words of a claim are given: literally, or not.
FORMS = ('"', "paraphrase: ", "equation: ", "code: ", "own: ")


def wilson(hits: int, n: int) -> tuple[float, float, float]:
    """A frequency with its 95 % Wilson interval: (low, value, high)."""
    interval = binomtest(int(hits), int(n)).proportion_ci(method="wilson")
    return float(interval.low), float(hits / n), float(interval.high)


def holds(condition: Any, corrected: Any = False) -> Direction:
    """Which way a measurement points: for a claim, for a weaker form of it, or against it.

    Example:
        >>> holds(0.4 > 0.5, corrected=0.4 > 0.3)
        'corrected'
    """
    if condition:
        return "for"
    return "corrected" if corrected else "against"


def of_runs(printed: int, weaker: int, n: int) -> tuple[Direction, tuple[int, int]]:
    """Direction and count of a claim that most runs show as printed, or most show in a weaker form.

    The count is of the printed form where its interval is above one half, else of the weaker one.

    Example:
        >>> of_runs(16, 16, 16), of_runs(6, 8, 8), of_runs(0, 2, 8)
        (('for', (16, 16)), ('corrected', (8, 8)), ('against', (2, 8)))
    """
    if wilson(printed, n)[0] > 0.5:
        return "for", (printed, n)
    return "corrected" if 2 * weaker > n else "against", (weaker, n)


@dataclass(frozen=True)
class Statement:
    """What is claimed, and by whom.

    Attributes:
        claim: In one sentence.
        source: The paper.
        where: Theorem, figure, abstract or file of the code.
        words: The exact words in quotes or the equation; else they begin with what they are, "paraphrase: ".
        read: What was read: the text, its abstract, its public code, or a summary in notes of this project.
        kind: A claim of the paper, a derivation of ours about it, or a question of ours.
        stated: The paper's value.
        paper_setting: What the paper measured or proved it on.
        differs: What is not the same in our setting.
        defence: What a defender of the paper would answer.
    """

    claim: str
    source: str
    where: str
    words: str
    read: Read
    kind: Kind = "paper"
    stated: str = "no number given"
    paper_setting: str = ""
    differs: str = ""
    defence: str = ""

    def __post_init__(self) -> None:
        """Refuse a statement that does not say whose words it tests."""
        for name, allowed in (("read", Read), ("kind", Kind)):
            _check_one_of(allowed, name, getattr(self, name))
        if not self.words.startswith(FORMS):
            raise ValueError(f"words begin {self.words[:20]!r}, expected one of {FORMS}: {self.claim}")
        needed = ["claim", "source", "where"]
        if self.kind == "paper":
            needed += ["paper_setting", "differs"]
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"{name} is missing: {self.claim}")


def statements(folder: Path) -> dict[str, Statement]:
    """A study's statements by key, from `claims.toml`; `[paper.NAME]` holds what claims of one paper share.

    Raises:
        ValueError: A claim names a paper that is not there, lacks a field or has one of another name.
        OSError: There is no such file.
    """
    data = tomllib.loads((folder / "claims.toml").read_text())
    papers = data.pop("paper", {})
    return {key: _statement(key, fields, papers) for key, fields in data.items()}


def _statement(key: str, fields: Mapping[str, Any], papers: Mapping[str, Mapping[str, Any]]) -> Statement:
    if not isinstance(fields, Mapping) or not all(isinstance(text, str) for text in fields.values()):
        raise ValueError(f"claims.toml: {key} is {fields!r}, expected a table of texts")
    paper = fields.get("paper")
    if paper not in papers:
        raise ValueError(f"claims.toml: {key}.paper is {paper!r}, expected one of {', '.join(papers)}")
    own = {name: value for name, value in fields.items() if name != "paper"}
    try:
        return Statement(**{**papers[paper], **own})
    except (TypeError, ValueError) as error:  # of a dataclass: a field that is missing or unknown
        raise ValueError(f"claims.toml: {key}: {error}") from None


def _check_one_of(allowed: Any, name: str, value: str) -> None:
    if value not in get_args(allowed):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, get_args(allowed)))}")


@dataclass(frozen=True)
class Finding:
    """What one measurement says of one statement.

    Attributes:
        key: Of the statement.
        measured: The measured value, with its interval.
        direction: Which way it points, from `holds`; "untested" where it could not be measured.
        our_setting: What it was measured on, and how.
        evidence: A derivation or an exact computation of what was derived; an exact counterexample; training
            at the paper's own setting; training at another one.
        count: In how many of how many runs the statement is true; needed unless the evidence is exact.
        case: Which of several cases, such as "two symbols".
        data: What the models were trained on; the harness fills it in.
        error: Standard errors of means over evaluation sequences, as shares; the harness fills it in.

    Raises:
        ValueError: Trained runs without a count, or a direction or evidence of another name.
    """

    key: str
    measured: str
    direction: Direction
    our_setting: str
    evidence: Evidence
    count: tuple[int, int] | None = None
    case: str = ""
    data: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        """Trained runs are judged by their count's interval, so they must have one."""
        _check_one_of(Direction, f"{self.key}: direction", self.direction)
        _check_one_of(Evidence, f"{self.key}: evidence", self.evidence)
        if self.count is not None:
            hits, n = map(int, self.count)  # numpy's too
            if not 0 <= hits <= n or n == 0:
                raise ValueError(f"{self.key}: count is {hits} of {n} runs, expected at most all of some")
            object.__setattr__(self, "count", (hits, n))
        elif self.direction != "untested" and self.evidence not in EXACT:
            raise ValueError(f"{self.key}: evidence is {self.evidence!r} and there is no count of runs")

    @property
    def leaning(self) -> int:
        """1 for the statement, -1 against it, 0 for neither: what a smaller run must not turn round."""
        if self.direction == "untested":
            return 0
        if self.count is None:
            return -1 if self.direction == "against" else 1
        hits, n = self.count
        return (2 * hits > n) - (2 * hits < n)


def verdict(kind: Kind, finding: Finding) -> Verdict:
    """The one rule.

    A count's 95 % interval (Wilson) decides, and one that includes one half decides nothing. A fair coin
    decides in one of eight draws of 4 runs, one of sixteen of 5, at most one of twelve of more. A claim of a
    paper does not hold where there is a derivation or a counterexample, or the paper's own setting with at
    least 16 seeds; elsewhere it was not found in training.

    Example:
        >>> seen = dict(key="a", measured="", our_setting="", evidence="other setting")
        >>> verdict("paper", Finding(direction="for", count=(3, 3), **seen))
        'undecided'
        >>> verdict("paper", Finding(direction="against", count=(0, 30), **seen))
        'not found in training'
    """
    direction, n = finding.direction, 0
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
    if direction != "against":
        return "holds" if direction == "for" else "holds with a correction"
    own = finding.evidence == "paper's setting" and n >= ENOUGH_SEEDS
    return "does not hold" if finding.evidence in EXACT or own else "not found in training"


@dataclass(frozen=True)
class Claim:
    """A statement, what was found of it, and the command that finds it again.

    Raises:
        ValueError: The verdict is not the statement's own, and nothing says what a defender would answer.
    """

    statement: Statement
    finding: Finding
    command: str

    def __post_init__(self) -> None:
        """A verdict against a paper must carry the answer to it."""
        if self.statement.kind == "paper" and self.verdict in NEED_DEFENCE and not self.statement.defence:
            raise ValueError(f"{self.finding.key} {self.verdict}: it needs a line of defence")

    @property
    def verdict(self) -> Verdict:
        """What statement and finding allow to be said."""
        return verdict(self.statement.kind, self.finding)

    @property
    def strength(self) -> str:
        """How strong the evidence is, at a glance."""
        marks = {"paper's setting": "●● paper's setting", "other setting": "● other setting"}
        if self.finding.direction == "untested":
            return "none"
        return marks.get(self.finding.evidence, "●●● exact")

    @property
    def text(self) -> str:
        """The claim, after its case."""
        return f"{self.finding.case}: {self.statement.claim}" if self.finding.case else self.statement.claim
