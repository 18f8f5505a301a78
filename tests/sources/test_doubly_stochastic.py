"""Fresh doubly stochastic chains: their sums, their law, and the posterior for two states."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from enumeration import assert_drawn, assert_optimal, generator, table
from oracles import assert_calibrated
from scipy import stats

from mechmarkov.sources import DoublyStochastic
from mechmarkov.sources.fresh.doubly_stochastic import doubly_stochastic, simplices


def switching_paths(length):
    """The chain switches with a probability whose law is uniform: a Beta integral, by factorials."""

    def probability(x):
        switches = sum(a != b for a, b in pairwise(x))
        stays = length - 1 - switches
        return math.factorial(switches) * math.factorial(stays) / math.factorial(length) / 2

    return table(probability, 2, length)


def test_two_states_switch_with_a_uniform_probability():
    source = DoublyStochastic(n_states=2)
    P = source.sample_chains(20_000, generator=generator()).numpy()
    assert stats.kstest(P[:, 0, 1], "uniform").pvalue > 0.01  # the seed is fixed, so this is no gamble
    np.testing.assert_array_equal(P[:, 0, 1], P[:, 1, 0])
    assert_optimal(source, switching_paths(7))
    assert_drawn(source, switching_paths(5))
    assert source.best().name == "switching"


@pytest.mark.parametrize("n_states", [2, 3, 5, 20])
def test_rows_and_columns_sum_to_one(n_states):
    P = DoublyStochastic(n_states=n_states).sample_chains(2_000, generator=generator()).numpy()
    np.testing.assert_allclose(P.sum(1), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(P.sum(2), 1, rtol=0, atol=1e-12)
    assert (P > 0).all()
    # No state is special: every entry has the same mean.
    error = 5 * P.std(0) / np.sqrt(len(P))
    np.testing.assert_array_less(np.abs(P.mean(0) - 1 / n_states), error)
    assert P.std() > 0.3 / n_states  # and chains differ


def by_rejection(proposals, n_states):
    """The uniform law as the paper's code draws from it: of K states one proposal in 8 (3) or 1031 (4)."""
    P = np.zeros((proposals, n_states, n_states))
    P[:, :-1, :-1] = np.random.default_rng(0).uniform(size=(proposals, n_states - 1, n_states - 1))
    P[:, :-1, -1] = 1 - P[:, :-1, :-1].sum(2)
    P[:, -1] = 1 - P[:, :-1].sum(1)
    return P[(P >= 0).all((1, 2))]


@pytest.mark.parametrize(("n_states", "proposals"), [(3, 40_000), (4, 1_000_000)])
def test_the_uniform_law_is_that_of_rejection(n_states, proposals):
    source = DoublyStochastic(n_states=n_states, law="uniform")
    P = source.sample_chains(4_000, generator=generator()).numpy()
    for axis in (1, 2):
        np.testing.assert_allclose(P.sum(axis), 1, rtol=0, atol=1e-12)
    assert (P > 0).all()
    other = by_rejection(proposals, n_states)
    assert len(other) > 800
    seen = [lambda P, i=i, j=j: P[:, i, j] for i in range(n_states) for j in range(n_states)]
    seen += [lambda P: P.max((1, 2)), lambda P: P.min((1, 2)), np.linalg.det, lambda P: (P**2).sum((1, 2))]
    pvalues = [stats.ks_2samp(look(P), look(other)).pvalue for look in seen]
    assert min(pvalues) > 0.05 / len(seen)  # the seeds are fixed
    scaled = DoublyStochastic(n_states=n_states).sample_chains(2_000, generator=generator()).numpy()
    assert P.std() > 1.02 * scaled.std()  # scaled matrices are more even


@pytest.mark.parametrize("n_states", [2, 3, 4])
def test_all_simplices_have_one_volume(n_states):
    corner = simplices(n_states)[:, :, :-1, :-1].reshape(len(simplices(n_states)), -1, (n_states - 1) ** 2)
    np.testing.assert_allclose(np.abs(np.linalg.det(corner[:, 1:] - corner[:, :1])), 1, rtol=1e-12)


def test_an_entry_of_the_uniform_law_on_three_states():
    # With y = 1 - x the rest has a volume of y² - 5 y³ / 6: mean 1/3, variance 2/45.
    source = DoublyStochastic(n_states=3, law="uniform")
    x = source.sample_chains(40_000, generator=generator()).numpy()[:, 0, 0]
    assert x.mean() == pytest.approx(1 / 3, abs=5 * x.std() / 200)
    assert x.var() == pytest.approx(2 / 45, rel=0.05)


def test_matrices_that_scaling_alone_leaves_far_off():
    # Nearly triangular: the scaled matrix goes to the identity, but only as one over the number of rounds.
    A = torch.full((1, 3, 3), 1e-300, dtype=torch.float64) + torch.ones(3, 3, dtype=torch.float64).triu()
    P = doubly_stochastic(A)
    for axis in (1, 2):
        np.testing.assert_allclose(P.sum(axis), 1, rtol=0, atol=1e-12)
    assert (P > 0).all()
    scaled = A
    for _ in range(30):
        scaled = scaled / scaled.sum(1, keepdim=True)
        scaled = scaled / scaled.sum(2, keepdim=True)
    assert (scaled.sum(1) - 1).abs().max() > 1e-3
    done = torch.tensor([[[0.2, 0.5, 0.3], [0.3, 0.2, 0.5], [0.5, 0.3, 0.2]]], dtype=torch.float64)
    np.testing.assert_allclose(doubly_stochastic(done), done, rtol=0, atol=1e-15)


def test_sequences_are_paths_of_their_chains_and_unigrams_say_nothing():
    source = DoublyStochastic(n_states=3)
    tokens, P = source.sample_with_hidden(5_000, 40, generator=generator(1))
    assert torch.equal(tokens, source.sample(5_000, 40, generator=generator(1)))
    counts = np.zeros((5_000, 3, 3))
    np.add.at(counts, (np.arange(5_000)[:, None], tokens[:, :-1].numpy(), tokens[:, 1:].numpy()), 1)
    assert_calibrated(P.numpy(), counts)
    for t in (0, 1, 39):
        share = np.bincount(tokens[:, t].numpy(), minlength=3) / 5_000
        np.testing.assert_array_less(np.abs(share - 1 / 3), 5 * np.sqrt(2 / 9 / 5_000))


def test_what_it_knows():
    names = ["uniform", "in_context_unigram", "in_context_bigram"]
    assert list(DoublyStochastic(n_states=2).predictors()) == [*names, "switching"]
    rules = DoublyStochastic(n_states=3).predictors()
    assert [rule.exact for rule in rules.values()] == [True, False, False]
    assert list(rules) == names
    assert "no closed form" in DoublyStochastic(n_states=3).best()
    assert DoublyStochastic(n_states=3).redraws
    assert DoublyStochastic(n_states=3).title() == "A fresh doubly stochastic chain on 3 states per sequence"
