"""Words: every verdict, heading, tile and caption has one idea a sentence, in at most 25 words."""

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.claims.arbiter import contradictions
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import cancelling_tables, direct_table, value_table
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.tiles import MAX_ANSWER_WORDS
from mechmarkov.report.words.title import MAX_TITLE_WORDS

MAX_WORDS = 25
P = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])
TABLE = torch.tensor(np.log(P), dtype=torch.float32)
CHAIN, REDRAWN = mm.Chain(P.tolist()), mm.DirichletChains(n_states=3)


def handset(model: Callable[[], torch.nn.Module], source: mm.Source) -> Callable[[], mm.Run]:
    return lambda: mm.Run.from_model(model(), source=source)


RUNS: dict[str, Callable[[], mm.Run]] = {
    "walk": lambda: mm.example("walk"),
    "trap": lambda: mm.example("trap"),
    "value table": handset(lambda: value_table(TABLE, 16), CHAIN),
    "two back": handset(lambda: value_table(TABLE, 16, lag=2), CHAIN),
    "cancelling": handset(lambda: cancelling_tables(TABLE, 16), CHAIN),
    "nothing": handset(lambda: direct_table(torch.zeros(3, 3), 16), CHAIN),
    "another law": handset(lambda: direct_table(TABLE[[1, 2, 0]], 16), CHAIN),
    "induction pair": handset(lambda: induction_pair(3, 24), REDRAWN),
}


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


IN_SYSTEM = {"value table", "two back", "nothing", "another law"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.system if name in IN_SYSTEM else ()) for name in RUNS]
)
@pytest.mark.usefixtures("few_nulls")
def test_no_sentence_is_long_and_no_two_disagree(name: str) -> None:
    result = mm.probe(RUNS[name](), sequences=8)
    assert not result.failed
    assert long_sentences(read(result)) == []
    assert list(contradictions(result.claims)) == []
    screen = headline(result)
    assert len(screen.title.split()) <= MAX_TITLE_WORDS
    assert all(len(tile.answer.split()) <= MAX_ANSWER_WORDS for tile in screen.tiles)


def test_a_long_sentence_is_found() -> None:
    long = " ".join(["word"] * (MAX_WORDS + 1))
    assert long_sentences([f"Short. W{long}. Short."]) == [f"W{long}."]
