"""The closed forms of the second step, of V and of the outputs, against walks and powers of matrices."""

from itertools import product

import numpy as np
import pytest

from experiments.random_walks import deterministic, lemmas, limits, other_lags, population
from mechmarkov.theory.walk import reduced_walk


def direction(measured, key, case=""):
    (found,) = [one.direction for one in measured.findings if (one.key, one.case) == (key, case)]
    return found


@pytest.mark.parametrize(("K", "p"), [(5, 0.5), (6, 0.7), (11, 0.8)])
def test_the_preference_is_the_sum_over_a_long_walk(K, p):
    """`D_k = sum_i ([(P^T)^i P^k]_00 - 1/K)`; on an even circle partial sums alternate around it."""
    P, lags = population.transition(K, p), 4
    ways = [np.linalg.matrix_power(P, k) for k in range(1, lags + 1)]
    power, total, partial = np.eye(K), np.zeros(lags), []
    for _ in range(600):
        power = power @ P.T
        total = total + [(power @ way)[0, 0] - 1 / K for way in ways]
        partial.append(total)
    found = np.mean(partial[-2 * K :], axis=0)
    np.testing.assert_allclose(found - found[0], other_lags.preference(K, p, lags), atol=1e-6)


def test_the_circle_from_which_another_token_wins():
    assert other_lags.smallest_circle(0.9, 60) == 26
    assert [int(other_lags.preference(K, 0.9).argmax()) + 1 for K in (25, 26)] == [1, 3]


@pytest.mark.parametrize("p", [0.5, 0.7, 1.0])
def test_a_population_is_every_walk_with_its_probability(p):
    K, N = 5, 5
    walks = population.population(K, N, p)
    assert walks.weights.sum() == pytest.approx(1)
    by_hand: dict[tuple[int, ...], float] = {}
    for moves in product((1, -1), repeat=N - 1):
        path = np.cumsum([0, *moves])
        ahead = tuple((path[-1] - path[:-1]) % K)
        chance = float(np.prod([p if move == 1 else 1 - p for move in moves]))
        by_hand[ahead] = by_hand.get(ahead, 0) + chance
    found: dict[tuple[int, ...], float] = {}
    for row, weight in zip(walks.ahead, walks.weights, strict=True):
        found[tuple(row)] = found.get(tuple(row), 0) + weight
    assert found == pytest.approx(by_hand)


def test_the_law_of_the_label_is_one_step_from_the_parent():
    run = population.descend(6, 5, 0.75, 1)
    _, law = run.outputs(1)
    assert law.sum(1) == pytest.approx(1)
    assert run.walks.weights @ law[:, 0] == pytest.approx(0.75**2 + 0.25**2)  # of the label that came


def test_the_limit_is_where_the_square_root_points():
    for p in (0.5, 0.6, 0.9):
        P = population.transition(6, p).T
        to_p, to_root = limits.directions(np.sqrt(P), p)
        assert to_p == pytest.approx(limits.limit(p))
        assert to_root == pytest.approx(0, abs=1e-12)
    assert limits.remainder(0.9, 0.1, 0.9) == pytest.approx(0)
    assert limits.remainder(3, 1, 0.9) == pytest.approx(0.6)  # |0.1 * 3 - 0.9 * 1|


def test_descent_of_any_loss_is_the_reduced_systems():
    K, N, eps = 6, 12, 0.1
    path = deterministic.ahead(K, N, 1)
    found = deterministic.descend(K, N, 1, deterministic.LOSSES["-log(z + 0.1)"], [1.0] * 3)
    settings = {"position_norm_sq": (deterministic.M + 1) / 2, "eta": 1.0, "eps": eps, "steps": 3}
    expected = reduced_walk.descend(path, np.ones(1), n_states=K, **settings)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.profile, other.profile, rtol=1e-12)
        np.testing.assert_allclose(one.position_logits, other.position_logits, rtol=1e-9, atol=1e-12)


def test_a_wrong_law_of_the_first_step_is_refused(monkeypatch):
    profile = lemmas.first_step_profile
    monkeypatch.setattr(lemmas, "first_step_profile", lambda K, p, N: profile(K, 1 - p, N))
    measured = lemmas.first_step_lemmas(True)
    assert direction(measured, "first_step_law") == "against"
    assert direction(measured, "first_step_largest") == "against"


def test_a_trap_that_is_left_at_one_loss_is_refused(monkeypatch):
    flat = deterministic._flat
    monkeypatch.setattr(deterministic, "_flat", lambda state, path: flat(state, path) and state.step < 50)
    assert direction(deterministic.any_loss(True), "trapped_at_one") == "against"


def test_a_limit_that_is_the_papers_is_told(monkeypatch):
    """Were the outputs to go to the optimal predictor, the rows would hold."""
    apart = limits.apart
    monkeypatch.setattr(limits, "apart", lambda run, step: apart(run, step)[::-1])
    measured = limits.limits(True)
    assert {one.direction for one in measured.findings if one.key == "outputs_converge"} == {"for"}


def test_a_fair_long_walk_settles_on_the_parent(monkeypatch):
    monkeypatch.setattr(other_lags, "CHANCE", 0.5)
    assert other_lags.long_walks(True).findings[0].count == (0, 2)
