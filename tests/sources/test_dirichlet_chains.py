"""Fresh chains against the Dirichlet law, and sequences against the chains behind them."""

import numpy as np
import pytest
import torch
from enumeration import assert_drawn, assert_optimal, generator, table
from oracles import assert_calibrated
from scipy import stats

from mechmarkov.sources import DirichletChains
from mechmarkov.sources.sampling import law


def chains(n_states, concentration, n):
    source = DirichletChains(n_states=n_states, concentration=concentration)
    return source.sample_chains(n, generator=generator(0)).numpy()


@pytest.mark.parametrize("concentration", [1e-6, 1e-3, 0.1, 1.0, 3.5, 200.0])
@pytest.mark.parametrize("n_states", [2, 3, 6])
def test_rows_have_the_moments_of_the_dirichlet_law(n_states, concentration):
    P = chains(n_states, concentration, 20_000)
    np.testing.assert_allclose(P.sum(axis=-1), 1, rtol=0, atol=1e-14)
    total, mean = n_states * concentration, 1 / n_states
    variance = mean * (1 - mean) / (total + 1)
    covariance = -(mean**2) / (total + 1)
    # Rows are independent, within a chain too: 20 000 K of them. Errors by the central limit theorem, and two
    # in n for what hardly ever happens (a row that is not all on one state).
    rows = P.reshape(-1, n_states) - mean

    def assert_mean(values, expected):
        error = (5 * values.std() + 2 / np.sqrt(len(values))) / np.sqrt(len(values))
        assert values.mean() == pytest.approx(expected, abs=error)

    for j in range(n_states):
        assert_mean(rows[:, j], 0)
        assert_mean(rows[:, j] ** 2, variance)
        assert_mean(rows[:, j] * rows[:, j - 1], covariance)
    # Different rows of one chain know nothing of each other.
    assert_mean((P[:, 0, 0] - mean) * (P[:, 1, 0] - mean), 0)


@pytest.mark.parametrize("concentration", [0.05, 0.3, 1.0, 20.0])
def test_entries_have_beta_laws(concentration):
    entries = chains(3, concentration, 20_000)[:, 1, 2]
    # Kolmogorov and Smirnov's test; the seed is fixed, so this is no gamble.
    assert stats.kstest(entries, stats.beta(concentration, 2 * concentration).cdf).pvalue > 0.01


@pytest.mark.parametrize("concentration", [1e-320, 1e-12, 1e-4, 1e-3, 0.01])
@pytest.mark.parametrize("n_states", [2, 4, 16])
def test_a_tiny_concentration_gives_laws_not_nan(n_states, concentration):
    source = DirichletChains(n_states=n_states, concentration=concentration)
    tokens, P = source.sample_with_hidden(2_000, 20, generator=generator(0))
    assert P.isfinite().all()
    assert (P > 0).all()  # so that each chain has one stationary law
    assert law.eliminate(P).isfinite().all()
    np.testing.assert_allclose(law.eliminate(P).sum(-1), 1, rtol=0, atol=1e-14)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < n_states
    if concentration < 1e-3 / n_states:  # nearly every row is nearly all on one state, each as often
        assert float((P.amax(-1) > 0.999).double().mean()) > 0.98
        best = np.bincount(P.argmax(-1).flatten().numpy(), minlength=n_states)
        n = best.sum()
        np.testing.assert_array_less(np.abs(best - n / n_states), 5 * np.sqrt(n / n_states))


@pytest.mark.parametrize("concentration", [0.3, 1.0, 5.0])
def test_starts_are_stationary_or_uniform_as_asked(concentration):
    for start in ("stationary", "uniform"):
        source = DirichletChains(n_states=3, concentration=concentration, start=start)
        tokens, P = source.sample_with_hidden(30_000, 1, generator=generator(0))
        chain = P.numpy()
        pi = solve(chain) if start == "stationary" else np.full((30_000, 3), 1 / 3)
        assert_calibrated(pi[..., None, :], np.eye(3)[tokens[:, 0].numpy()][..., None, :])


@pytest.mark.parametrize("start", ["stationary", "uniform"])
@pytest.mark.parametrize("concentration", [0.3, 1.0, 5.0])
def test_transitions_are_those_of_the_chain_behind_each_sequence(start, concentration):
    source = DirichletChains(n_states=3, concentration=concentration, start=start)
    tokens, P = source.sample_with_hidden(5_000, 40, generator=generator(1))
    pairs = (tokens[:, :-1] * 3 + tokens[:, 1:]).numpy() + 9 * np.arange(5_000)[:, None]
    assert_calibrated(P.numpy(), np.bincount(pairs.ravel(), minlength=9 * 5_000).reshape(5_000, 3, 3))


def solve(P):
    """The stationary laws by a general solver: `pi (P - 1) = 0`, one equation replaced by `sum pi = 1`."""
    n = P.shape[-1]
    A = np.swapaxes(P, -1, -2) - np.eye(n)
    A[..., -1, :] = 1
    return np.linalg.solve(A, np.eye(n)[:, -1:])[..., 0]


def test_sequences_are_those_drawn_with_their_chains():
    source = DirichletChains(n_states=4)
    tokens, P = source.sample_with_hidden(6, 30, generator=generator(2))
    assert torch.equal(source.sample(6, 30, generator=generator(2)), tokens)
    assert torch.equal(source.sample_chains(6, generator=generator(2)), P)
    assert len({tuple(chain.flatten().tolist()) for chain in P}) == 6
    with pytest.raises(ValueError, match=r"^batch is 0, expected at least 1$"):
        source.sample_chains(0, generator=generator(0))


def tokens_alike(concentration, length):
    """The probability of each path of independent tokens of two states, by Gauss's rule over their law."""
    node, weight = np.polynomial.legendre.leggauss(50)  # the integrand is a polynomial of degree 12 at most
    p = (node + 1) / 2
    prior = weight * (p * (1 - p)) ** (concentration - 1)
    prior /= prior.sum()
    return table(lambda x: float((prior * p ** sum(x) * (1 - p) ** (length - sum(x))).sum()), 2, length)


@pytest.mark.parametrize("concentration", [1.0, 2.0, 4.0])
def test_with_rows_alike_smoothed_counts_of_tokens_are_the_posterior_mean(concentration):
    source = DirichletChains(n_states=2, concentration=concentration, rows="alike")
    assert source.best().name == "in_context_unigram"
    assert "exact posterior mean" in source.best().label
    assert not source.predictors()["in_context_bigram"].exact
    assert_optimal(source, tokens_alike(concentration, 6))
    assert_drawn(source, tokens_alike(concentration, 4))


def test_rows_alike_are_one_draw_and_the_first_token_is_like_the_others():
    source = DirichletChains(n_states=3, concentration=0.5, rows="alike")
    tokens, P = source.sample_with_hidden(20_000, 4, generator=generator(0))
    assert (P[:, :1] == P).all()
    for t in range(4):
        assert_calibrated(P[:, :1].numpy(), np.eye(3)[tokens[:, t].numpy()][:, None])
    title = "A fresh law of independent tokens on 3 states per sequence, from Dirichlet(0.5)"
    assert source.title() == title


ORDERS = [(2, 2), (2, 3), (3, 2)]


def fresh_kernels(n_states, order, length):
    """The probability of each path when every history has a Dirichlet(1) row: Polya urns, one a history."""

    def probability(x):
        p, counts = n_states ** -float(min(order, len(x))), {}
        for t in range(order, len(x)):
            seen = counts.setdefault(x[t - order : t], [1] * n_states)
            p *= seen[x[t]] / sum(seen)
            seen[x[t]] += 1
        return p

    return table(probability, n_states, length)


@pytest.mark.parametrize(("n_states", "order"), ORDERS)
def test_kernels_of_higher_order_and_their_posterior_mean_by_enumeration(n_states, order):
    source = DirichletChains(n_states=n_states, start="uniform", order=order)
    assert source.best().name == f"in_context_order_{order}"
    length = 7 if n_states == 2 else 5
    assert_optimal(source, fresh_kernels(n_states, order, length))
    for short in range(1, 6):
        assert_drawn(source, fresh_kernels(n_states, order, short), n=40_000 if short == 5 else 10_000)


def test_states_of_higher_order_follow_from_the_kernel_behind_each_sequence():
    source = DirichletChains(n_states=3, start="uniform", order=2)
    tokens, kernel = source.sample_with_hidden(4_000, 40, generator=generator(1))
    x = tokens.numpy()
    cell = ((x[:, :-2] * 3 + x[:, 1:-1]) * 3 + x[:, 2:]) + 27 * np.arange(4_000)[:, None]
    assert_calibrated(kernel.numpy(), np.bincount(cell.ravel(), minlength=27 * 4_000).reshape(4_000, 9, 3))
    assert torch.equal(source.sample(4_000, 40, generator=generator(1)), tokens)


def test_what_a_chain_with_an_order_says_of_itself():
    source = DirichletChains(n_states=2, concentration=0.5, start="uniform", order=3)
    title = "A fresh order-3 chain on 2 states per sequence, rows from Dirichlet(0.5), uniform start"
    assert source.title() == title
    assert list(source.predictors())[2:] == ["in_context_bigram", "in_context_order_2", "in_context_order_3"]
    assert [rule.exact for rule in source.predictors().values()] == [True, False, False, False, True]
