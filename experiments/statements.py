"""What a paper says: statements, in its words, from a study's `claims.toml`, and the papers themselves."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["paper", "derived", "question"]
Read = Literal["text", "code", "abstract", "summary", "own"]

# How the words of a claim are given: literally, or not.
FORMS = ('"', "paraphrase: ", "equation: ", "code: ", "own: ")
NO_NUMBER = "no number given"
PAPERS = Path(__file__).parent / "papers.toml"


@dataclass(frozen=True)
class Paper:
    """A paper that claims are about.

    Attributes:
        key: By which `claims.toml` names it.
        short: Authors and year, as in a sentence.
        title: Its title.
        authors: All of them, in its order.
        year: Of the version that was read.
        venue: Where it appeared.
        doi: Its identifier, without `https://doi.org/`.
        had: What of it could be had: the text, its public code, its abstract.
        seed: Whether the project set out from it.
    """

    key: str
    short: str
    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    doi: str
    had: str
    seed: bool = False


@cache
def papers() -> dict[str, Paper]:
    """All papers by key, in the order of `papers.toml`."""
    data = tomllib.loads(PAPERS.read_text())
    return {
        key: Paper(key, **{**fields, "authors": tuple(fields["authors"])}) for key, fields in data.items()
    }


@dataclass(frozen=True)
class Statement:
    """What is claimed, and by whom.

    Attributes:
        claim: In one sentence.
        about: The key of the paper that claims it, or that it is about.
        where: Theorem, figure, abstract or file of the code.
        words: The exact words in quotes or the equation; else they begin with what they are, "paraphrase: ".
        read: What was read: the text, its public code, its abstract, or a summary in notes of this project.
        kind: A claim of the paper, a derivation of ours about it, or a question of ours.
        stated: The paper's value.
        paper_setting: What the paper measured or proved it on.
        differs: What is not the same in our setting.
        defence: What a defender of the paper would answer.
        equation: What holds instead, or what the counterexample computes.
        fails_at: The lemma, or the step, at which an argument of the paper fails.
    """

    claim: str
    about: str
    where: str
    words: str
    read: Read
    kind: Kind = "paper"
    stated: str = NO_NUMBER
    paper_setting: str = ""
    differs: str = ""
    defence: str = ""
    equation: str = ""
    fails_at: str = ""

    def __post_init__(self) -> None:
        """Refuse a statement that does not say whose words it tests."""
        for name, allowed in (("read", Read), ("kind", Kind)):
            check_one_of(allowed, name, getattr(self, name))
        if self.about not in papers():
            raise ValueError(f"about is {self.about!r}, expected one of {', '.join(papers())}: {self.claim}")
        if not self.words.startswith(FORMS):
            raise ValueError(f"words begin {self.words[:20]!r}, expected one of {FORMS}: {self.claim}")
        needed = ["claim", "where"]
        if self.kind == "paper":
            needed += ["paper_setting", "differs"]
            if self.read == "own":
                raise ValueError(f"read is 'own' and kind is 'paper', expected what was read: {self.claim}")
        for name in needed:
            if not getattr(self, name):
                raise ValueError(f"{name} is missing: {self.claim}")

    @property
    def paper(self) -> Paper:
        """The paper that claims it, or that it is about."""
        return papers()[self.about]

    @property
    def has_a_measure(self) -> bool:
        """Whether the paper says what would decide: a value, an order, a figure; else a threshold is ours."""
        return self.stated not in (NO_NUMBER, "not stated")


def statements(folder: Path) -> dict[str, Statement]:
    """A study's statements by key, from `claims.toml`; `[paper.NAME]` holds what claims of one paper share.

    Raises:
        ValueError: A claim names a paper that is not there, lacks a field or has one of another name.
        OSError: There is no such file.
    """
    data = tomllib.loads((folder / "claims.toml").read_text())
    shared, _ = data.pop("paper", {}), data.pop("cases", {})
    return {key: _statement(key, fields, shared) for key, fields in data.items()}


def cases(folder: Path) -> dict[str, str]:
    """What rows of a study call each case in their identifiers: `[cases]` of `claims.toml`."""
    found: dict[str, str] = tomllib.loads((folder / "claims.toml").read_text()).get("cases", {})
    return found


def _statement(key: str, fields: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]) -> Statement:
    if not isinstance(fields, Mapping) or not all(isinstance(text, str) for text in fields.values()):
        raise ValueError(f"claims.toml: {key} is {fields!r}, expected a table of texts")
    paper = fields.get("paper")
    if paper not in shared:
        raise ValueError(f"claims.toml: {key}.paper is {paper!r}, expected one of {', '.join(shared)}")
    own = {name: value for name, value in fields.items() if name != "paper"}
    try:
        return Statement(**{**shared[paper], **own})
    except (TypeError, ValueError) as error:  # of a dataclass: a field that is missing or unknown
        raise ValueError(f"claims.toml: {key}: {error}") from None


def check_one_of(allowed: Any, name: str, value: str) -> None:
    """Refuse a value that a `Literal` does not have."""
    if value not in get_args(allowed):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, get_args(allowed)))}")
