"""What models of tokens lose is counted per source symbol: against the linear solve of the law of tokens."""

import pytest

import mechmarkov as mm
from experiments.tokenised.laws import loss, source
from experiments.tokenised.training import dictionary, excess, known
from mechmarkov.sources import Tokenised


@pytest.mark.parametrize(("order", "words"), [(1, 16), (2, 16), (4, 64)])
def test_the_unigram_of_tokens_loses_its_exact_excess(order, words):
    tokeniser = dictionary(order, words)
    read = Tokenised(source=source(order), tokeniser=tokeniser)
    recipe = mm.load_recipe("tokens-lzw").with_set(["steps=1", "checkpoints=[0]"])
    model, unigram = excess(mm.train(recipe.replace(source=read.model_dump()), seed=0), known(read, 32))
    expected = loss(order, tokeniser.transducer(2)) - source(order).entropy_rate
    # 128 sequences of 32 tokens; the first token of each is predicted by the unigram whatever is known.
    assert unigram == pytest.approx(expected, rel=0.05)
    assert model > unigram  # after one step it is near the uniform law
