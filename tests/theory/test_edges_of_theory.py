"""Theory at its edges: what is accepted there, and what the formulas give where they change over."""

import math

import numpy as np
import pytest

from mechmarkov.theory.bootstrap import interval, mean_after, ratio, resampled_means, standard_error, wilson
from mechmarkov.theory.canonical import CANCELS, basin, best_offset, best_slope
from mechmarkov.theory.canonical import loss as canonical_loss
from mechmarkov.theory.kernel import (
    argmax_sets,
    circulant_share,
    cosine,
    double_centred,
    kl,
    slope,
    target_for,
)
from mechmarkov.theory.lag_sets import over_window
from mechmarkov.theory.learning_coefficient import of_canonical_line, of_tied_plateau
from mechmarkov.theory.predictors import histories, in_context_order, k_step, switching
from mechmarkov.theory.shapley import coalitions, exact, sampled
from mechmarkov.theory.unigram_trap import unigram_point
from mechmarkov.theory.walk.trap_spectrum import trap_spectrum
from mechmarkov.theory.worst_case import largest_sum

P = np.array([[0.8, 0.2], [0.3, 0.7]])
PI = np.array([0.6, 0.4])


# -- predictors ----------------------------------------------------------------------------------------------


def test_a_lag_beyond_the_sequence_leaves_the_unigram():
    tokens = np.array([[1, 0, 1]])
    for k, blind in ((1, 0), (2, 1), (3, 2), (4, 3), (9, 3)):
        law = k_step(tokens, P, PI, k)[0]
        assert law[:blind].tolist() == [PI.tolist()] * blind
        assert law[blind:].tolist() == P[tokens[0, : 3 - blind]].tolist()
    with pytest.raises(ValueError, match="k is 0, expected a lag of at least 1"):
        k_step(tokens, P, PI, 0)


def test_a_short_past_has_the_law_of_what_there_is():
    laws = [np.full((2**n, 2), [n / 10, 1 - n / 10]) for n in (1, 2, 3)]
    assert histories(np.array([[0, 1]]), laws)[0, :, 0].tolist() == [0.1, 0.2]
    assert histories(np.array([[0, 1, 0, 1]]), laws)[0, :, 0].tolist() == [0.1, 0.2, 0.3, 0.3]
    assert in_context_order(np.array([[0, 0, 0, 0]]), 2, 2)[0].round(3).tolist() == [
        [0.5, 0.5],
        [0.5, 0.5],
        [0.667, 0.333],
        [0.75, 0.25],
    ]
    assert switching(np.array([[0, 0, 1]]))[0, :, 1].tolist() == pytest.approx([0.5, 1 / 3, 0.5])


# -- tables --------------------------------------------------------------------------------------------------


def test_maxima_are_equal_to_a_millionth():
    table = np.array([[2.0, 2.0 - 1.9e-6, 2.0 - 2.1e-6], [0.0, 0.0, 1.0]])
    assert argmax_sets(table).tolist() == [[True, True, False], [False, False, True]]


def test_a_table_that_is_zero_has_no_direction():
    zero = np.zeros((2, 2))
    assert float(cosine(zero, P)) == float(cosine(zero, zero)) == 0
    assert float(cosine(1e-300 * P, P)) == pytest.approx(1)
    assert math.isnan(float(circulant_share(zero)))
    assert math.isnan(float(slope(P, zero)))
    constant = np.full((2, 2), 0.1)
    assert double_centred(constant + np.array([[0, 1], [0, 1]]) * 0.3).tolist() == zero.tolist()


@pytest.mark.parametrize(
    ("objective", "name"),
    [("raw_log", "sqrt P"), ("cross_entropy", "log P"), ("normalised_log", "P"), ("squared", "P")],
)
def test_a_loss_has_its_target(objective, name):
    assert target_for(objective, P)[0] == name
    certain = np.array([[1.0, 0.0], [0.3, 0.7]])
    assert target_for(objective, certain)[0] == ("P" if name == "log P" else name)
    assert float(kl(np.array([1.0, 0.0]), np.array([0.0, 1.0]))) == pytest.approx(-math.log(1e-12))


# -- intervals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "n", "hits"),
    [(0.5, 1, (0, 1)), (0.5, 2, (1, 1)), (0.25, 2, (0, 1)), (0.75, 2, (1, 2)), (0.7, 10, (7, 7))],
)
def test_half_a_hit_is_between_two(share, n, hits):
    z = 1.959963984540054

    def end(k, sign):
        p = k / n
        root = math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (p + z * z / (2 * n) + sign * z * root) / (1 + z * z / n)

    assert wilson(share, n) == pytest.approx((end(hits[0], -1), end(hits[1], 1)), abs=1e-12)


def test_one_sequence_has_no_error():
    assert standard_error(np.array([[3.0]])).tolist() == [math.inf]
    assert float(standard_error(np.array([1.0, 3.0]))) == pytest.approx(1.0)
    value, error = ratio(np.array([1.0, 3.0]), np.array([-2.0, -2.0]))
    assert (float(value), float(error)) == pytest.approx((-1.0, 0.5))


def test_a_state_of_one_sequence_has_no_error():
    parents, values = np.array([[0, 1], [0, 0], [0, 0]]), np.array([[1.0, 5.0], [2.0, 2.0], [3.0, 3.0]])
    mean, error = mean_after(parents, values, 3)
    assert mean[:2].tolist() == pytest.approx([11 / 5, 5.0])
    assert math.isnan(mean[2])
    assert math.isfinite(error[0])
    assert error[1] == math.inf


def test_an_interval_is_of_its_level():
    values = np.random.default_rng(0).normal(size=400)
    draws = resampled_means(values)
    for level in (0.5, 0.95):
        ends = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
        assert [float(end) for end in interval(values, level=level)] == pytest.approx(list(ends))
    assert resampled_means(values, draws=7).shape == (7,)
    assert not np.array_equal(draws, resampled_means(values, seed=1))
    low, _ = interval(np.zeros((3, 2, 5)))
    assert low.shape == (3, 2)


# -- players -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("players", [0, 1, 3])
def test_values_add_up_to_the_worth_of_all(players):
    worth = np.random.default_rng(0).normal(size=(2**players, 2))
    values = exact(worth)
    assert values.shape == (players, 2)
    assert coalitions(players).shape == (2**players, players)
    np.testing.assert_allclose(values.sum(0), worth[-1] - worth[0], atol=1e-12)


@pytest.mark.parametrize(("permutations", "pairs"), [(4, 2), (5, 2), (6, 3)])
def test_orders_come_in_pairs(permutations, pairs):
    asked = []

    def worth(members):
        asked.append(len(members))
        return members.prod(-1).astype(float)

    sampled(worth, 3, permutations=permutations)
    assert asked == [4] * (2 * pairs)
    with pytest.raises(ValueError, match="permutations is 3, expected at least 4"):
        sampled(worth, 3, permutations=3)


# -- models --------------------------------------------------------------------------------------------------


def test_a_law_adds_up_to_a_millionth():
    for off, is_law in ((0.9e-6, True), (1.1e-6, False), (-1.1e-6, False)):
        near = P + np.array([[off, 0], [0, 0]])
        if is_law:
            unigram_point(near, PI, tied=True)
        else:
            with pytest.raises(ValueError, match=r"P\[0\] is .*, expected a law"):
                unigram_point(near, PI, tied=True)


@pytest.mark.parametrize(
    ("w", "p", "q", "end"),
    [
        (0.1, 0.2, 0.3, "bigram"),
        (CANCELS, 0.2, 0.3, "bigram"),
        (-0.8, 0.2, 0.3, "unigram"),
        (0.1, 0.5, 0.8, "unigram"),
        (-0.8, 0.5, 0.8, "bigram"),
        (0.1, 0.25, 0.75, "independent"),
    ],
)
def test_a_start_is_in_a_basin(w, p, q, end):
    assert basin(1e-3, w, p, q) == end
    assert basin(2.0, -0.1, p, q) == ("independent" if p + q == 1 else "bigram")
    assert basin(2.0, -0.8, p, q) == ("independent" if p + q == 1 else "bigram")
    assert basin(2.0, 0.1, p, q) == ("independent" if p + q == 1 else "bigram" if p + q < 1 else "unigram")


@pytest.mark.parametrize(("p", "q"), [(0.2, 0.3), (0.3, 0.2), (0.4, 0.4), (0.6, 0.9)])
def test_the_best_slope_reaches_the_entropy_rate(p, q):
    def entropy(x):
        return -x * math.log(x) - (1 - x) * math.log(1 - x)

    s = np.array([best_slope(p, q), 0.0])
    of_states = (q * entropy(p) + p * entropy(q)) / (p + q)
    assert canonical_loss(s, p, q) == pytest.approx([of_states, entropy(p / (p + q))])
    assert best_offset(s, p, q) == pytest.approx([math.log(p / (1 - p)), math.log(p / q)])


def test_a_plateau_is_a_minimum_only_where_states_switch():
    often = np.array([[0.4, 0.6], [0.5, 0.5]])
    pi = np.array([5, 6]) / 11
    assert [of_tied_plateau(often, pi, d) for d in (1, 2, 3)] == [1.0, 1.5, 2.0]
    half = np.full((2, 2), 0.5)
    assert of_tied_plateau(half, np.full(2, 0.5), 1) is None
    assert of_canonical_line(half, (2.0, 1.0)) is None
    assert of_canonical_line(often, (2.0, 0.0)) is None
    assert of_canonical_line(often, (2.0, 0.1)) == 1.0


@pytest.mark.parametrize(("n_states", "length"), [(3, 4), (3, 7), (4, 9)])
def test_a_trap_needs_whole_turns(n_states, length):
    given = {"position_norm": 1.0, "alpha": 0.3, "query_mass": 0.2, "slope": -2.0}
    spectrum = trap_spectrum(n_states=n_states, length=length, **given)
    # Two pairs for each of K - 1 modes, then the other positions, then what else of V is free.
    sizes = 4 * (n_states - 1), length - 1 - n_states, (n_states - 1) * (n_states - 2)
    assert len(spectrum.eigenvalues) == sum(sizes)
    assert spectrum.eigenvalues[0] == pytest.approx(-max(spectrum.growth_position, spectrum.growth_token))
    for pair in (spectrum.growing_position, spectrum.growing_token):
        assert math.hypot(*pair) == pytest.approx(1)
    with pytest.raises(ValueError, match=f"expected a divisor of length - 1 = {length}: else"):
        trap_spectrum(n_states=n_states, length=length + 1, **given)


@pytest.mark.parametrize(("lags", "window", "is_right"), [([1], 1, True), ([2], 1, False), ([0], 1, False)])
def test_lags_lie_in_their_window(lags, window, is_right):
    if is_right:
        assert over_window(P[None], lags, window).shape == (1, 2, 2)
    else:
        with pytest.raises(ValueError, match=r"^lags are .*, expected 1 ascending lags from 1 to 1$"):
            over_window(P[None], lags, window)


def test_no_allowed_context_is_the_worst_of_none():
    gain = np.array([[1.0, 0.0], [0.0, 3.0]])
    nothing = np.array([[True, True], [False, False]])
    for transitions in (None, np.eye(2, dtype=bool), np.ones((2, 2), bool)):
        assert float(largest_sum(gain, nothing, transitions).value) == -math.inf
    assert float(largest_sum(gain[:1], nothing[:1], np.eye(2, dtype=bool)).value) == 1.0
