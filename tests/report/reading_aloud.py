"""All that a reader of a report meets, and its sentences that are too long."""

import re
from collections.abc import Iterable, Iterator

import mechmarkov as mm
from mechmarkov.report.first_screen.headline import headline

MAX_WORDS = 25


def sentences(text: str) -> list[str]:
    """A text's sentences; what follows a colon is of the same one.

    >>> sentences("L0H0 holds it (0.9). Without it 0.5 is left.")
    ['L0H0 holds it (0.9).', 'Without it 0.5 is left.']
    """
    return re.split(r"(?<=[.!?])\s+(?=[A-Z\d])", text)


def long_sentences(texts: Iterable[str]) -> list[str]:
    """The sentences with more words than a reader takes in at once."""
    return [s for text in texts for s in sentences(text) if len(s.split()) > MAX_WORDS]


def read(result: mm.Result) -> Iterator[str]:
    """All that a reader of a report meets, but for scores."""
    screen = headline(result)
    yield screen.title
    for tile in screen.tiles:
        yield from (tile.question, tile.answer, tile.sentence, tile.number, tile.picture)
    for outcome in result.outcomes.values():
        yield from (outcome.probe.question, outcome.verdict)
        for figure in outcome.figures():
            yield from (figure.title, figure.caption)
        yield from (score.reason for score in outcome.scores.values() if score.reason)
    yield from (*result.skipped.values(), *result.warnings)
