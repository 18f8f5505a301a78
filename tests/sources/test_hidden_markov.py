"""Hidden chains: against the sum over all hidden paths, for all short sequences."""

from itertools import product

import numpy as np
import pytest
import torch
from enumeration import EXACT, assert_exact, assert_posterior, generator, hidden_paths

from mechmarkov.sources import Chain, HiddenMarkov

T2, E3 = [[0.9, 0.1], [0.3, 0.7]], [[0.8, 0.15, 0.05], [0.1, 0.2, 0.7]]
T3, E2 = [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]], [[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]]
CASES = [
    HiddenMarkov(transitions=T2, emissions=E3),
    HiddenMarkov(transitions=T3, emissions=E2),
    HiddenMarkov(transitions=T2, emissions=[[1, 0, 0], [0, 1, 0]]),  # the third is never emitted
    HiddenMarkov(transitions=[[0, 1], [1, 0]], emissions=[[0.5, 0.5], [1, 0]]),
]


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_laws_draws_and_best_against_all_short_sequences(source):
    assert_exact(source, lambda x: sum(p for _, p in hidden_paths(source, x)), 4)
    assert source.best().name == "forward_filter"


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_beliefs_are_the_law_of_the_hidden_state(source):
    tokens = source.sample(8, 5, generator=generator()).numpy()

    def with_each_last_state(x):
        paths = list(hidden_paths(source, x))
        return [sum(p for hidden, p in paths if hidden[-1] == i) for i in range(source.n_hidden)]

    assert_posterior(source.beliefs(tokens), tokens, with_each_last_state)


def test_beliefs_are_calibrated_on_the_hidden_states_that_were_drawn():
    source, n = HiddenMarkov(transitions=T2, emissions=E3), 20_000
    tokens, hidden = source.sample_with_hidden(n, 12, generator=generator())
    belief = source.beliefs(tokens.numpy())[:, -1, 1]
    excess = (hidden[:, -1].numpy() == 1) - belief
    for low in np.arange(0, 1, 0.1):
        bin_ = (belief >= low) & (belief < low + 0.1)
        sigma = np.sqrt((belief * (1 - belief))[bin_].sum())
        assert abs(excess[bin_].sum()) <= 5 * sigma


def test_a_hidden_state_that_is_seen_is_a_chain():
    source, chain = HiddenMarkov(transitions=T3, emissions=np.eye(3)), Chain(T3)
    tokens, hidden = source.sample_with_hidden(5, 40, generator=generator())
    assert torch.equal(tokens, hidden)
    np.testing.assert_allclose(source.P, chain.P, **EXACT)
    np.testing.assert_allclose(source.step_law(3), chain.step_law(3), **EXACT)
    theirs = chain.best().probabilities(tokens.numpy())
    np.testing.assert_allclose(source.best().probabilities(tokens.numpy()), theirs, **EXACT)


def test_a_token_that_cannot_be_tells_nothing():
    source = HiddenMarkov(transitions=[[0, 1], [1, 0]], emissions=[[0, 1], [1, 0]])
    beliefs = source.beliefs(np.array([[0, 0, 0]]))[0]
    np.testing.assert_array_equal(beliefs, [[0, 1], [1, 0], [0, 1]])  # the second 0 is passed over
    never_emits_2 = HiddenMarkov(transitions=T2, emissions=[[1, 0, 0], [0, 1, 0]])
    assert never_emits_2.P[2].tolist() == pytest.approx([0.75, 0.25, 0])  # the row of 2 is pi


def test_long_sequences_do_not_underflow():
    source = HiddenMarkov(transitions=T2, emissions=E3)
    tokens = source.sample(3, 3000, generator=generator()).numpy()
    beliefs = source.beliefs(tokens)
    np.testing.assert_allclose(beliefs.sum(-1), 1, **EXACT)
    # The filter forgets where it began: from the middle on it comes to the same.
    np.testing.assert_allclose(source.beliefs(tokens[:, 1500:])[:, -1], beliefs[:, -1], **EXACT)


def test_what_it_says_of_itself():
    source = HiddenMarkov(transitions=np.array(T2), emissions=torch.tensor(E3, dtype=torch.float64))
    assert source == HiddenMarkov(transitions=T2, emissions=E3)
    assert source.title() == "3 tokens from a hidden Markov model of 2 states"
    assert (source.n_states, source.n_hidden, source.redraws) == (3, 2, False)
    names = ["uniform", "unigram", "bigram", "step_2", "step_3", "step_4", "forward_filter"]
    assert list(source.predictors()) == names


def test_mess3_has_the_published_labelled_matrices():
    """Marzen & Crutchfield 2017, with Shai et al.'s x = 0.05 and a = 0.85, entry by entry."""
    x, a = 0.05, 0.85
    b, y = (1 - a) / 2, 1 - 2 * x
    published = np.array(
        [
            [[a * y, b * x, b * x], [a * x, b * y, b * x], [a * x, b * x, b * y]],
            [[b * y, a * x, b * x], [b * x, a * y, b * x], [b * x, a * x, b * y]],
            [[b * y, b * x, a * x], [b * x, b * y, a * x], [b * x, b * x, a * y]],
        ]
    )
    source = HiddenMarkov.mess3()
    np.testing.assert_allclose(np.einsum("ij,jt->tij", source.T, source.E), published, **EXACT)


def test_rrxor_without_noise_is_two_bits_and_their_exclusive_or():
    source = HiddenMarkov.rrxor(noise=0.0)
    for phase in range(3):
        start = np.array([0.5, 0.5, *[0] * 6])
        for _ in range(phase):
            start = start @ source.T
        for x in product(range(2), repeat=6):
            law = start * source.E[:, x[0]]
            for token in x[1:]:
                law = (law @ source.T) * source.E[:, token]
            at = range(-phase % 3, 4, 3)
            whole = [x[t] ^ x[t + 1] == x[t + 2] for t in at]
            assert (law.sum() > 0) == all(whole)


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_the_laws_of_hidden_states_are_those_of_all_paths_that_are_in_them(source):
    tokens = np.array([[0, 0, 1], [0, 1, 0]]) % source.n_states
    laws = source.laws_of_hidden(tokens)
    for x, found in zip(tokens, laws, strict=True):
        for t, hidden in product(range(3), range(source.n_hidden)):
            joint = [
                sum(p for h, p in hidden_paths(source, (*x[: t + 1], y)) if h[t] == hidden)
                for y in range(source.n_states)
            ]
            if sum(joint) > 0:
                np.testing.assert_allclose(found[t, hidden], np.array(joint) / sum(joint), **EXACT)
