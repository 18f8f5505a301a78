"""Mixtures of chains against all short sequences, and the four algorithms against their definitions."""

import numpy as np
import pytest
import torch
from enumeration import (
    EXACT,
    assert_drawn,
    assert_optimal,
    assert_posterior,
    generator,
    path_probability,
    solve,
    table,
    weights_of,
)

from mechmarkov.sources import ChainMixture

TWO = [[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.7, 0.3]]]
THREE = [  # zeros in different places, a transient state in the last
    [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]],
    [[0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]],
    [[0.0, 0.5, 0.5], [0.0, 0.25, 0.75], [0.0, 1.0, 0.0]],
]
CASES = [
    ChainMixture(chains=TWO),
    ChainMixture(chains=TWO, weights=[0.25, 0.75]),
    ChainMixture(chains=THREE, weights=[0.5, 0.2, 0.3]),
    ChainMixture(chains=THREE, weights=[0.5, 0.0, 0.5]),
]


def with_each_chain(source):
    """The joint probability of a sequence and each chain."""
    weights = weights_of(source.weights, len(source.chains))
    parts = [(w, solve(P), np.array(P)) for w, P in zip(weights, source.chains, strict=True)]
    return lambda x: [w * path_probability(pi, P, x) for w, pi, P in parts]


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_sequences_and_the_best_predictor_against_all_short_sequences(source):
    joint = table(lambda x: sum(with_each_chain(source)(x)), source.n_states, 4)
    assert_drawn(source, joint)
    assert_optimal(source, joint)
    assert source.best().name == "bigram_retrieval"


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_the_posterior_is_bayes_rule_with_the_first_token(source):
    tokens = source.sample(20, 6, generator=generator()).numpy()
    assert_posterior(source.posterior(tokens), tokens, with_each_chain(source))


def test_long_sequences_neither_underflow_nor_mislead():
    source = ChainMixture(chains=TWO)
    tokens, choice = source.sample_with_hidden(50, 3000, generator=generator())  # probabilities of 1e-700
    found = source.posterior(tokens.numpy())
    np.testing.assert_allclose(found.sum(-1), 1, **EXACT)
    assert (found[np.arange(50), -1, choice.numpy()] > 1 - 1e-9).all()


def test_tokens_that_no_chain_makes_leave_the_prior():
    cycle = [[[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0, 0, 1], [1, 0, 0], [0, 1, 0]]]
    source = ChainMixture(chains=cycle, weights=[0.25, 0.75])
    found = source.posterior(np.array([[0, 1, 2, 1, 2]]))[0]
    np.testing.assert_allclose(found, [[0.25, 0.75], [1, 0], [1, 0], [0.25, 0.75], [0.25, 0.75]], **EXACT)
    np.testing.assert_allclose(source.best().probabilities(np.array([[0, 0]]))[0, 1], [0, 0.25, 0.75])


def test_the_four_algorithms_by_their_definitions():
    source = ChainMixture(chains=TWO, weights=[0.25, 0.75])
    rules = source.predictors()
    names = ["uniform", "in_context_unigram", "in_context_bigram", "unigram_retrieval", "bigram_retrieval"]
    assert list(rules) == names
    assert [rule.exact for rule in rules.values()] == [True, False, False, False, True]
    x = np.array([[1, 0, 0, 1, 0]])
    laws = {name: rule.probabilities(x)[0, -1] for name, rule in rules.items()}
    np.testing.assert_allclose(laws["uniform"], [0.5, 0.5])
    np.testing.assert_allclose(laws["in_context_unigram"], [4 / 7, 3 / 7])
    np.testing.assert_allclose(laws["in_context_bigram"], [2 / 4, 2 / 4])  # after 0: once 0, once 1
    pi = np.array([solve(P) for P in TWO])
    weight = np.array([0.25, 0.75]) * pi[:, 0] ** 3 * pi[:, 1] ** 2
    np.testing.assert_allclose(laws["unigram_retrieval"], weight @ pi / weight.sum(), **EXACT)
    weight = np.array([0.25, 0.75]) * [path_probability(pi[i], TWO[i], x[0]) for i in range(2)]
    np.testing.assert_allclose(laws["bigram_retrieval"], weight @ np.array(TWO)[:, 0] / weight.sum(), **EXACT)


def test_sequences_come_from_the_chain_they_are_said_to():
    clockwise, back = np.roll(np.eye(5), 1, axis=1), np.roll(np.eye(5), -1, axis=1)
    source = ChainMixture(chains=np.stack([clockwise, back]), weights=np.array([0.3, 0.7]))
    n = 20_000
    tokens, choice = source.sample_with_hidden(n, 4, generator=generator())
    assert torch.equal(tokens.diff() % 5, torch.where(choice == 0, 1, 4)[:, None].expand(-1, 3))
    assert abs(int((choice == 0).sum()) - 0.3 * n) < 5 * np.sqrt(n * 0.21)
    assert torch.equal(tokens, source.sample(n, 4, generator=generator()))


def test_what_it_says_of_itself():
    tensor, arrays = torch.tensor(TWO, dtype=torch.float64), list(map(np.array, TWO))
    assert ChainMixture(chains=tensor) == ChainMixture(chains=arrays) == ChainMixture(chains=TWO)
    source = ChainMixture(chains=THREE)
    assert source.title() == "One of 3 fixed chains on 3 states per sequence"
    assert source.redraws
    with pytest.raises(ValueError, match=r"^tokens run from 0 to 3, expected states from 0 to 2$"):
        source.posterior(np.array([[0, 3]]))


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_the_hidden_chain_has_its_posterior_and_the_law_of_its_row(source):
    tokens = source.sample(4, 6, generator=generator()).numpy()
    np.testing.assert_array_equal(source.beliefs(tokens), source.posterior(tokens))
    laws = source.laws_of_hidden(tokens)
    for (sequence, t), token in np.ndenumerate(tokens):
        for i, P in enumerate(source.chains):
            np.testing.assert_allclose(laws[sequence, t, i], P[token], **EXACT)
