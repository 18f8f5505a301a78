"""The test of one law: exact under one law of any order, and sure of chains that differ."""

from itertools import pairwise, permutations, product

import numpy as np
import pytest
import torch
from scipy import stats

import mechmarkov as mm
from mechmarkov.sources.estimation import homogeneity as module
from mechmarkov.sources.estimation.homogeneity import ENDED, OneLawWarning, homogeneity

P3 = np.random.default_rng(1).dirichlet(np.ones(3), 3)
SECOND = np.random.default_rng(2).dirichlet(np.ones(3), (3, 3)).tolist()
ONE_LAW = {
    "order 1": (mm.Chain(P3), 1),
    "order 1, tested as of order 3": (mm.Chain(P3), 3),
    "slow": (mm.Binary(p=0.02, q=0.03), 1),
    "independent": (mm.Chain(np.tile(P3[0], (3, 1))), 1),
    "order 2": (mm.OrderK(SECOND), 2),
    "order 2, from lags": (mm.LaggedChain(lag=2, P=P3), 2),
}
SEVERAL = {
    "3 states": mm.DirichletChains(n_states=3),
    "20 states": mm.DirichletChains(n_states=20),
    "2 states, order 2": mm.DirichletChains(n_states=2, order=2, start="uniform"),
    "two chains": mm.sources.ChainMixture(chains=[P3, P3[::-1]]),
    "chains that are much alike": mm.DirichletChains(n_states=3, concentration=10.0),
}


def drawn(source, sequences, length, seed=0):
    return source.sample(sequences, length, generator=torch.Generator().manual_seed(seed)).numpy()


def exchanged(paths, n_states, order, **options):
    return homogeneity(paths.ravel(), [paths.shape[1]] * len(paths), n_states, order, **options)


@pytest.mark.repeated
@pytest.mark.parametrize(("sequences", "length"), [(40, 50), (300, 16), (4, 200)])
@pytest.mark.parametrize("name", ONE_LAW)
def test_under_one_law_the_p_value_is_uniform(name, sequences, length):
    """Of 100 draws; ties are broken at random."""
    source, order = ONE_LAW[name]
    rng = np.random.default_rng(0)
    tokens = (drawn(source, sequences, length, seed) for seed in range(100))
    found = [exchanged(each, source.n_states, order, draws=49).p_value for each in tokens]
    assert stats.kstest(np.array(found) - rng.random(100) / 50, "uniform").pvalue > 1e-3
    assert np.mean(np.array(found) <= 0.02) < 0.09


@pytest.mark.parametrize(("sequences", "length"), [(60, 32), (400, 16), (5, 300)])
@pytest.mark.parametrize("name", SEVERAL)
def test_chains_that_differ_are_seen_in_every_draw(name, sequences, length):
    if name == "20 states" and sequences * length < 2000:
        length *= 4  # a row is seen once or twice
    source = SEVERAL[name]
    if name == "chains that are much alike" or sequences == 5:
        length *= 4
    for seed in range(3):
        paths = drawn(source, sequences, length, seed)
        assert exchanged(paths, source.n_states, 2, draws=99).p_value == 1 / 100


def test_a_few_draws_of_one_law_are_not_doubted():
    """The gate's own look at what `repeated` counts: of 40 draws about two are below 0.05."""
    found = [exchanged(drawn(mm.Chain(P3), 50, 20, seed), 3, 1, draws=99).p_value for seed in range(40)]
    assert sum(p <= 0.05 for p in found) <= 7
    assert 0.3 < np.mean(found) < 0.7


def test_exchanged_sequences_are_every_arrangement_alike():
    """All assignments of next states that keep what follows what at every position, by brute force."""
    paths = np.array([[0, 1, 0, 0], [0, 1, 1, 0], [1, 1, 0, 1], [0, 0, 1, 1]])

    def arrangements(prefixes, t):
        if t == 4:
            yield tuple(map(tuple, prefixes))
            return
        groups = {}
        for row, prefix in enumerate(prefixes):
            groups.setdefault(prefix[-1], []).append(row)
        pools = {}
        for row in range(4):
            pools.setdefault(paths[row, t - 1], []).append(paths[row, t])
        for choice in product(*(set(permutations(pools[state])) for state in groups)):
            longer = list(prefixes)
            for rows, following in zip(groups.values(), choice, strict=True):
                for row, state in zip(rows, following, strict=True):
                    longer[row] = (*longer[row], int(state))
            yield from arrangements(longer, t + 1)

    firsts = ([(state,) for state in first] for first in set(permutations(paths[:, 0].tolist())))
    expected = {found for first in firsts for found in arrangements(first, 1)}
    drawn_anew = module._exchange(paths, module._contexts(paths, 1), 40_000, np.random.default_rng(0))
    found, count = np.unique(drawn_anew.reshape(40_000, -1), axis=0, return_counts=True)
    assert {tuple(map(tuple, one.reshape(4, 4).tolist())) for one in found} == expected
    assert stats.chisquare(count).pvalue > 1e-3


@pytest.mark.parametrize("order", [1, 2, 4])
def test_an_exchange_keeps_what_follows_what_at_every_position(order):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 12, 50)
    paths = np.where(np.arange(12) < lengths[:, None], rng.integers(0, 2, (50, 12)), ENDED)
    for found in module._exchange(paths, module._contexts(paths, order), 20, rng):
        for t in range(order, 12):
            window = slice(t - order, t + 1)
            assert sorted(found[:, window].tolist()) == sorted(paths[:, window].tolist())
        assert sorted((found != ENDED).sum(1).tolist()) == sorted(lengths.tolist())


def test_the_statistic_by_its_definition():
    """The chance of each next state in turn, given the counts so far and the prior."""
    rng = np.random.default_rng(0)
    paths = rng.integers(0, 3, (6, 9))
    paths[2, 5:] = ENDED
    prior = rng.random((3, 3)) + 0.5
    prior *= 3 / prior.sum(1, keepdims=True)
    total = 0.0
    for path in paths:
        counts = prior.copy()
        for before, after in pairwise(path):
            if after != ENDED:
                total += np.log(counts[before, after] / counts[before].sum())
                counts[before, after] += 1
    assert module._evidence(paths, prior) == pytest.approx(total, abs=1e-10)


def test_what_is_not_one_law_for_other_reasons():
    """A law that changes from position to position is one law; two halves of a text have none to compare."""
    rng = np.random.default_rng(0)
    changing = np.stack([rng.random(200) < 0.5 + 0.4 * np.sin(t) for t in range(30)], 1).astype(int)
    assert exchanged(changing, 2, 1).p_value > 0.01
    assert homogeneity(rng.integers(0, 2, 500), [500], 2, 1) is None
    assert homogeneity(rng.integers(0, 2, 400), [2] * 200, 2, 1) is None


def test_the_same_data_have_the_same_p_value():
    paths = drawn(mm.Chain(P3), 60, 30)
    assert exchanged(paths, 3, 1) == exchanged(paths, 3, 1)
    assert exchanged(paths, 3, 1).p_value != exchanged(paths, 3, 1, seed=1).p_value


def test_large_data_are_looked_at_in_part():
    many = exchanged(drawn(mm.DirichletChains(n_states=3), 5000, 20), 3, 1)
    assert many.p_value == 1 / 500
    assert many.sequences < 1000
    long = exchanged(drawn(mm.DirichletChains(n_states=3), 3, 60_000), 3, 1)
    assert (long.p_value, long.sequences) == (1 / 500, 3)


def test_a_pooled_law_is_warned_of_when_it_is_read():
    chains = drawn(mm.DirichletChains(n_states=3), 200, 17)
    said = (
        r"^the sequences do not look like draws of one law of order \d \(p = 0.002\), .* mm.DirichletChains"
    )
    with pytest.warns(OneLawWarning, match=said):
        source = mm.Observed(chains)
    again = mm.sources.source_from_data(
        source.model_dump(mode="json")
    )  # as from a run file, which says it no more
    assert again.doubt_of_one_law() == source.doubt_of_one_law() is not None
    one = mm.Observed(drawn(mm.Chain(P3), 200, 17))
    assert one.doubt_of_one_law() is None
    assert 0.002 < one.homogeneity.p_value <= 1
    assert mm.Observed("the cat sat on the mat. " * 40).homogeneity is None
