"""Words: every verdict, heading, tile and caption has one idea a sentence, in at most 25 words."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from reading_aloud import MAX_WORDS, long_sentences, read

import mechmarkov as mm
from mechmarkov.claims.arbiter import contradictions
from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.models.constructions.lookup_tables import cancelling_tables, direct_table, value_table
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.short_forms import MAX_ANSWER_WORDS
from mechmarkov.report.words.title import MAX_TITLE_WORDS

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])
TABLE = torch.tensor(np.log(P), dtype=torch.float32)
CHAIN, REDRAWN = mm.Chain(P.tolist()), mm.DirichletChains(n_states=3)


def handset(model: Callable[[], torch.nn.Module], source: mm.sources.Source) -> Callable[[], mm.Run]:
    return lambda: mm.Run.from_model(model(), source=source)


RUNS: dict[str, Callable[[], mm.Run]] = {
    "trap": lambda: mm.example("trap"),
    "value table": handset(lambda: value_table(TABLE, 16), CHAIN),
    "two back": handset(lambda: value_table(TABLE, 16, lag=2), CHAIN),
    "cancelling": handset(lambda: cancelling_tables(TABLE, 16), CHAIN),
    "nothing": handset(lambda: direct_table(torch.zeros(3, 3), 16), CHAIN),
    "another law": handset(lambda: direct_table(TABLE[[1, 2, 0]], 16), CHAIN),
    "induction pair": handset(lambda: induction_pair(3, 24), REDRAWN),
}


# The bundled walk is among the models of `test_two_hundred_models.py`.
IN_SYSTEM = {"trap", "value table", "two back", "nothing", "another law"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.system if name in IN_SYSTEM else ()) for name in RUNS]
)
@pytest.mark.usefixtures("few_nulls")
def test_no_sentence_is_long_and_no_two_disagree(name):
    result = mm.probe(RUNS[name](), sequences=8)
    assert not result.failed
    assert long_sentences(read(result)) == []
    assert list(contradictions(result.claims)) == []
    screen = headline(result)
    assert len(screen.title.split()) <= MAX_TITLE_WORDS
    assert all(len(tile.answer.split()) <= MAX_ANSWER_WORDS for tile in screen.tiles)


def test_a_long_sentence_is_found():
    long = " ".join(["word"] * (MAX_WORDS + 1))
    assert long_sentences([f"Short. W{long}. Short."]) == [f"W{long}."]
