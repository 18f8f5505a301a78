"""Theorems on tokens of Markov data: against enumeration, dynamic programming and the paper's own example."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from experiments.tokenised import encoders, learnt, theorems
from mechmarkov.theory import transducer


def brute_cross(p, q, words, length=14):
    """H(Q, P) from all sequences of a length: tokens by frequency, each with its stationary probability."""
    P, pi = np.array([[1 - p, p], [q, 1 - q]]), np.array([q, p]) / (p + q)
    tokens = transducer.greedy(words, 2)
    count = np.zeros(len(tokens.words))
    for x in product((0, 1), repeat=length):
        weight = pi[x[0]] * np.prod([P[a, b] for a, b in pairwise(x)])
        for token in tokens.encode(x):
            count[token] += weight
    law = [pi[w[0]] * np.prod([P[a, b] for a, b in pairwise(w)]) for w in tokens.words]
    used = count > 0
    return -(count[used] / count.sum() @ np.log(np.array(law)[used]))


def test_cross_entropy_of_tokens_is_that_of_enumeration():
    words = [(0,), (1,), (0, 0), (0, 1, 1)]
    found = theorems.encoded(0.2, 0.4, transducer.greedy(words, 2))
    # The first and the last tokens of short sequences are others than those of long ones.
    assert found.cross == pytest.approx(brute_cross(0.2, 0.4, words), rel=0.03)
    assert found.delta == 0.2


def test_strings_of_one_symbol_have_no_bound_left():
    found = theorems.encoded(0.1, 0.1, transducer.strings(2, 1))
    assert found.epsilon > 1
    assert found.bound == float("inf")
    assert found.cross == pytest.approx(np.log(2))


@pytest.mark.parametrize("p", [0.2, 0.1, 0.05, 0.01])
def test_one_symbol_less_is_not_enough(p):
    rate = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    length, printed = theorems.strings_needed(p)
    assert length == np.ceil(np.log(2) / rate - 1)
    at = [rate * (1 - 1 / r) + np.log(2) / r for r in (length - 1, length) if r]
    assert at[-1] <= 2 * rate
    assert len(at) == 1 or at[0] > 2 * rate
    assert 2**length < printed


@pytest.mark.parametrize("length", [2, 5, 40])
def test_the_dictionary_has_three_words_a_length(length):
    words = encoders.dictionary(length)
    assert len(words) == len(set(words)) == 3 * length
    assert max(map(len, words)) == length


@pytest.mark.parametrize(("delta", "length"), [(0.3, 4), (0.5, 2), (0.2, 9)])
def test_fewest_tokens_are_those_of_dynamic_programming(delta, length):
    chain = encoders.three_symbols(delta)
    x = chain.sample(1, 20_000, generator=torch.Generator().manual_seed(0))[0].tolist()
    words, fewest = set(encoders.dictionary(length)), [0] * (len(x) + 1)
    for i in range(len(x) - 1, -1, -1):
        ends = range(i + 1, min(i + length, len(x)) + 1)
        fewest[i] = 1 + min(fewest[end] for end in ends if tuple(x[i:end]) in words)
    assert encoders.often(delta, length).sum() * delta / 2 == pytest.approx(fewest[0] / len(x), rel=0.02)


def test_the_printed_argument_needs_the_printed_size():
    delta, rate = 0.04, 0.04 * np.log(2**0.5 / 0.04) + 0.96 * np.log(1 / 0.96)
    length = 1 + 2 * np.log(1 / delta) / delta
    assert delta * np.log(2 * length + 1) / rate == pytest.approx(1.2724, abs=1e-4)
    assert delta * np.log(3 * length) / rate == pytest.approx(1.361, abs=1e-3)


def test_a_minimal_encoder_is_better_than_the_greedy_one():
    assert encoders.minimal_loss(0.1, 48) < encoders.greedy_loss(0.1, 48)
    rate = encoders.three_symbols(0.1).entropy_rate
    assert rate == pytest.approx(0.1 * np.log(2**0.5 / 0.1) + 0.9 * np.log(1 / 0.9))
    assert encoders.minimal_loss(0.1, 48) > rate


def test_definition_3_5_has_the_words_of_its_example():
    assert learnt.parsed([0, 1, 0, 0, 1, 1, 1]) == [(0,), (1,), (0, 0), (1, 1)]
    assert learnt.parsed([1, 1, 1, 1, 1, 1]) == [(1,), (1, 1), (1, 1, 1), (0,)]


def test_the_typical_text_has_no_long_runs():
    text = encoders.typical_text(2)
    shown = "".join(map(str, text))
    assert "000" not in shown
    assert "111" not in shown
    assert len(text) == 6 * 20
    # Of table 2: 0 and 1 first, then pairs of what is new, as often as it goes.
    assert encoders.merged(text, 3) == [(0, 1), (2, 2), (3, 3)]


def test_sequential_pairs_must_be_frequent():
    assert learnt.sequential([0, 1] * 32, 4) == [(0,), (1,), (0, 1), (0, 1, 0, 1), (0, 1) * 4]
    # Twice in a chunk of four symbols, where log 16 = 2.8 is asked.
    assert learnt.sequential([0, 1] * 32, 16) == [(0,), (1,)]
