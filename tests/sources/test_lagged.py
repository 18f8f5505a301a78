"""Chains whose parent sits at a lag against their definition, enumerated."""

import numpy as np
import pytest
import torch
from enumeration import assert_deterministic, assert_drawn, generator, solve, table
from oracles import assert_conditional, assert_laws

from mechmarkov.sources import Binary, Chain, LaggedChain, Switch

P = [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]]
ENDS = [[0.5, 0.5, 0.0], [0.0, 0.3, 0.7], [0.0, 0.6, 0.4]]  # state 0 is left for good
SOURCES = [
    LaggedChain(P, lag=1),
    LaggedChain(P, lag=2),
    LaggedChain(P, lag=3),
    LaggedChain(ENDS, lag=2),
    Switch(p=0.2, q=0.9, lag=2),
    Switch(p=0.5, q=0.8, lag=3),
    Switch(p=1, q=1, lag=2),
]
TABLES = [P, P, P, ENDS, [[0.8, 0.2], [0.9, 0.1]], [[0.5, 0.5], [0.8, 0.2]], [[0, 1], [1, 0]]]


def all_paths(rows, lag, length):
    """The first tokens are stationary and know nothing of each other; each later one follows its parent."""
    start = solve(np.array(rows))

    def probability(x):
        first = np.prod([start[state] for state in x[:lag]])
        return first * np.prod([rows[x[t - lag]][x[t]] for t in range(lag, length)])

    return table(probability, len(rows), length)


@pytest.mark.parametrize(("source", "rows"), list(zip(SOURCES, TABLES, strict=True)), ids=map(repr, SOURCES))
def test_laws_and_samples_by_enumeration(source, rows):
    joint = all_paths(rows, source.lag, 6)
    assert_laws(source, joint)
    assert_drawn(source, all_paths(rows, source.lag, 5))
    if source.entropy_rate:
        assert_deterministic(source)
    assert source.order == source.lag
    if source.lag > 1:
        name = f"lag_{source.lag}"
        assert source.best().name == name
        assert list(source.predictors())[6:] == [name]
        assert_conditional(
            source.best(), joint, lambda t: [t + 1 - source.lag] if t + 1 >= source.lag else []
        )


def test_at_lag_one_it_is_the_chain_to_the_same_tokens():
    for source, chain in ((SOURCES[0], Chain(P)), (Switch(p=0.5, q=0.8, lag=1), Binary(p=0.5, q=0.8))):
        one, other = (s.sample(5, 40, generator=generator()) for s in (source, chain))
        assert torch.equal(one, other)
        np.testing.assert_array_equal(source.P, chain.P)
        np.testing.assert_array_equal(source.pi, chain.pi)
        np.testing.assert_array_equal(source.step_law(5), chain.step_law(5))
        assert source.entropy_rate == chain.entropy_rate
        assert list(source.predictors()) == list(chain.predictors())
        assert source.best().name == "bigram"


def test_neighbours_are_independent_and_parents_are_not():
    source = LaggedChain(P, lag=3)
    for m in (1, 2, 4, 5):
        np.testing.assert_array_equal(source.step_law(m), np.tile(source.pi, (3, 1)))
    np.testing.assert_allclose(source.step_law(6), np.array(P) @ P, rtol=0, atol=1e-15)
    assert source.predictors()["bigram"].probabilities(np.array([[2]]))[0, 0].tolist() == source.pi.tolist()


@pytest.mark.parametrize("length", [1, 2, 5, 7, 300])
def test_a_lag_beyond_the_sequence_gives_independent_tokens(length):
    source = Switch(p=0.01, q=0.01, lag=300)
    tokens = source.sample(400, length, generator=generator())
    assert tokens.shape == (400, length)
    # 400 fair coins a column: five standard deviations of their mean are 0.125.
    assert (tokens.double().mean(0) - 0.5).abs().max() < 0.125
    if length > 1:
        assert ((tokens[:, 1:] != tokens[:, :-1]).double().mean(0) - 0.5).abs().max() < 0.125


def test_each_token_follows_its_parent():
    tokens = Switch(p=1, q=1, lag=4).sample(9, 1_001, generator=generator())
    assert (tokens[:, 4:] == 1 - tokens[:, :-4]).all()
    tokens = LaggedChain(P, lag=5).sample(50, 1_000, generator=generator())
    pairs = torch.bincount((tokens[:, :-5] * 3 + tokens[:, 5:]).flatten(), minlength=9).reshape(3, 3)
    np.testing.assert_array_equal(pairs.numpy() > 0, np.array(P) > 0)


def test_forms_and_titles():
    assert LaggedChain(torch.tensor(P, dtype=torch.float64), lag=np.int64(2)) == LaggedChain(P=P, lag=2)
    assert LaggedChain(P, lag=2).title() == "Chain on 3 states with the parent at lag 2"
    assert Switch(p=0.5, q=0.8, lag=2).title() == "Switch chain, p = 0.5, q = 0.8, lag 2"
