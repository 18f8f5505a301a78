"""The lag of each sequence: against all short sequences."""

import numpy as np
import pytest
import torch
from enumeration import EXACT, assert_exact, assert_posterior, generator, solve, weights_of

from mechmarkov.sources import LaggedChain, SelectiveLag

TWO = [[0.9, 0.1], [0.4, 0.6]]
THREE = [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]]
TRANSIENT = [[0.0, 0.5, 0.5], [0.0, 0.25, 0.75], [0.0, 1.0, 0.0]]
CASES = [
    SelectiveLag(TWO, lags=[1, 2]),
    SelectiveLag(TWO, lags=[3, 1], weights=[0.8, 0.2]),
    SelectiveLag(TWO, lags=[2, 7]),  # longer than the sequences
    SelectiveLag(THREE, lags=[1, 2, 3], weights=[0.5, 0.2, 0.3]),
    SelectiveLag(TRANSIENT, lags=[1, 2]),
]


def given_lag(source, lag, x):
    P, pi = np.array(source.rows), solve(source.rows)
    return np.prod([P[x[t - lag]][x[t]] if t >= lag else pi[x[t]] for t in range(len(x))])


def with_each_lag(source):
    """The joint probability of a sequence and each lag."""
    parts = list(zip(weights_of(source.weights, len(source.lags)), source.lags, strict=True))
    return lambda x: [w * given_lag(source, lag, x) for w, lag in parts]


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_laws_draws_and_best_against_all_short_sequences(source):
    assert_exact(source, lambda x: sum(with_each_lag(source)(x)), 5)


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_the_posterior_over_lags_is_bayes_rule(source):
    tokens = source.sample(10, 9, generator=generator()).numpy()
    assert_posterior(source.posterior(tokens), tokens, with_each_lag(source))


def test_a_long_sequence_tells_its_lag_and_then_the_best_is_that_lags_own():
    source = SelectiveLag(TWO, lags=[1, 2, 5])
    tokens, lags = source.sample_with_hidden(40, 2000, generator=generator())
    found, tokens = source.posterior(tokens.numpy()), tokens.numpy()
    index = np.searchsorted(source.lags, lags.numpy())
    assert (found[np.arange(40), -1, index] > 1 - 1e-9).all()
    assert set(lags.tolist()) == {1, 2, 5}
    best, rules = source.best().probabilities(tokens), source.predictors()
    for i, lag in enumerate(lags.tolist()):
        own = rules[f"lag_{lag}"].probabilities(tokens[i : i + 1])[0]
        np.testing.assert_allclose(best[i, -100:], own[-100:], rtol=0, atol=1e-8)


def test_each_lag_as_often_as_its_weight_says():
    source, n = SelectiveLag(TWO, lags=[1, 2, 5], weights=[0.1, 0.6, 0.3]), 20_000
    lags = source.sample_with_hidden(n, 2, generator=generator())[1].numpy()
    for lag, weight in zip(source.lags, source.prior, strict=True):
        assert abs((lags == lag).sum() - n * weight) < 5 * np.sqrt(n * weight * (1 - weight))


def test_deterministic_chains_show_their_lag():
    source = SelectiveLag([[0, 1, 0], [0, 0, 1], [1, 0, 0]], lags=[1, 3, 4])
    tokens, lags = source.sample_with_hidden(60, 31, generator=generator())
    for x, lag in zip(tokens, lags.tolist(), strict=True):
        assert torch.equal((x[lag:] - x[:-lag]) % 3, torch.ones_like(x[lag:]))
    impossible = np.array([[0, 0, 0, 0, 0]])  # neither one, three nor four back fits
    np.testing.assert_allclose(source.posterior(impossible)[0, -1], 1 / 3)


def test_predictors_see_what_their_names_say():
    source = SelectiveLag(THREE, lags=[2, 4])
    names = ["uniform", "unigram", "bigram", "step_2", "step_3", "step_4", "lag_2", "lag_4", "posterior_lag"]
    rules = source.predictors()
    assert list(rules) == names
    assert not rules["lag_2"].exact
    tokens = source.sample(3, 8, generator=generator()).numpy()
    alone = LaggedChain(THREE, lag=4).best().probabilities(tokens)
    np.testing.assert_allclose(rules["lag_4"].probabilities(tokens), alone, **EXACT)
    np.testing.assert_allclose(rules["bigram"].probabilities(tokens)[0, 0], source.pi, **EXACT)  # no lag 1


def test_what_it_says_of_itself():
    assert SelectiveLag(TWO, lags=np.array([1, 2])) == SelectiveLag(P=TWO, lags=[1, 2])
    source = SelectiveLag(THREE, lags=[1, 2, 4])
    assert source.title() == "Chain on 3 states, the parent at lag 1, 2 or 4 of each sequence"
    assert not source.redraws


@pytest.mark.parametrize("source", CASES, ids=repr)
def test_the_hidden_lag_has_its_posterior_and_the_law_of_the_token_so_far_back(source):
    tokens = source.sample(4, 5, generator=generator()).numpy()
    np.testing.assert_array_equal(source.beliefs(tokens), source.posterior(tokens))
    laws, pi = source.laws_of_hidden(tokens), solve(source.rows)
    for (sequence, t), _ in np.ndenumerate(tokens):
        for i, lag in enumerate(source.lags):
            expected = source.rows[tokens[sequence, t + 1 - lag]] if t + 1 >= lag else pi
            np.testing.assert_allclose(laws[sequence, t, i], expected, **EXACT)
