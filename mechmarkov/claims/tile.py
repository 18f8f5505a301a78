"""What a probe gives the first screen: the claims that answer one of its questions, and a small picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mechmarkov.claims.claim import Claim

LEARNED = "What has it learned?"
LIVES = "Where does it live?"
CAME = "How did it get there?"
STUCK = "Is it stuck?"
QUESTIONS = (LEARNED, LIVES, CAME, STUCK)  # in their order; a probe's own question comes behind them


@dataclass(frozen=True)
class Tile:
    """The answer of one probe to one question.

    Attributes:
        question: One of `QUESTIONS`, or the probe's own.
        answer: The claims whose short forms are the answer.
        more: The claims whose sentences stand under it.
        number: The claim whose value is shown with its null.
        bars: Names and values of a small picture, in one unit.
        together: A claim of several parts, whose value is one more row of the picture.
        picture: What the bars are: a key of `mechmarkov.report.words.tiles.PICTURES`.
        rank: A number; of two answers to a question that with the lower one is shown.
        of_run: Whether it is about the whole run, whatever the slider shows.
    """

    question: str
    answer: Sequence[Claim]
    more: Sequence[Claim] = ()
    number: Claim | None = None
    bars: Mapping[str, float] = field(default_factory=dict)
    picture: str = ""
    together: Claim | None = None
    rank: int = 0
    of_run: bool = False
