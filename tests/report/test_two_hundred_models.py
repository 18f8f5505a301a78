"""Over two hundred models, bundled, set by hand, fresh and trained: no two statements on a page disagree."""

import pytest
from conflicts import conflicts
from model_zoo import model_zoo
from reading_aloud import long_sentences, read

import mechmarkov as mm
from mechmarkov.claims.arbiter import contradictions
from mechmarkov.report.first_screen.headline import headline
from mechmarkov.report.words.short_forms import MAX_ANSWER_WORDS
from mechmarkov.report.words.title import MAX_TITLE_WORDS

MODELS = model_zoo()
EVERY = 24  # of them, in the gate; all of them with `make test-slow`


def test_there_are_more_than_two_hundred():
    assert len(MODELS) > 200


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.system if i % EVERY == 0 else pytest.mark.slow)
        for i, name in enumerate(MODELS)
    ],
)
@pytest.mark.usefixtures("few_nulls")
def test_no_two_statements_disagree(name):
    result = mm.probe(MODELS[name](), sequences=16)
    assert not result.failed
    assert conflicts(result) == []
    assert list(contradictions(result.claims)) == []
    assert long_sentences(read(result)) == []
    screen = headline(result)
    assert len(screen.title.split()) <= MAX_TITLE_WORDS
    assert all(len(tile.answer.split()) <= MAX_ANSWER_WORDS for tile in screen.tiles)
