"""The first step in closed form against enumeration of every path, and against differences of the loss."""

from itertools import product

import numpy as np
import pytest

from mechmarkov.sources import Chain, Circle
from mechmarkov.theory.walk.first_step import (
    circle_first_step_information,
    first_step_gradient,
    first_step_information,
    first_step_profile,
)


def weighted_paths(P, mu, length):
    """Every path of the chain and its probability."""
    paths = np.array(list(product(range(len(P)), repeat=length)))
    weight = mu[paths[:, 0]].copy()
    for t in range(length - 1):
        weight *= P[paths[:, t], paths[:, t + 1]]
    return paths[weight > 0], weight[weight > 0]


def loss(V, paths, weight, eps):
    """`E[-log(f_y + eps)]` at uniform attention, which W = 0 gives: 1 / N on each token and on the query."""
    n_states, length = len(V), paths.shape[1]
    mean_token = np.array([np.bincount(path[:-1], minlength=n_states) for path in paths]) / length
    score = np.einsum("px,px->p", V[paths[:, -1]], mean_token)
    return -(weight * np.log(score + eps)).sum()


def random_chain(n_states, seed):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(n_states), n_states), rng.dirichlet(np.ones(n_states))


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize(("n_states", "length"), [(3, 2), (3, 6), (4, 5), (5, 6)])
def test_the_profile_counts_tokens_behind_the_label_on_all_paths(n_states, p, length):
    profile = np.zeros(n_states)
    for steps in product((1, -1), repeat=length - 1):  # the start does not matter
        weight = np.prod([p if step == 1 else 1 - p for step in steps])
        place = np.concatenate([[0], np.cumsum(steps)])
        np.add.at(profile, (place[-1] - place[:-1]) % n_states, weight)
    modes, found = first_step_profile(n_states, p, length)
    np.testing.assert_allclose(found, profile, rtol=0, atol=1e-12)
    np.testing.assert_allclose(modes, np.fft.ifft(profile) * n_states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize(("n_states", "length"), [(3, 2), (6, 97), (6, 98), (20, 101), (7, 50)])
def test_the_circle_is_a_case_of_the_general_sum(n_states, p, length):
    walk = Circle(n_states=n_states, p=p)
    general = first_step_gradient(walk.P, walk.pi, length)
    profile = first_step_profile(n_states, p, length)[1]
    state = np.arange(n_states)
    expected = profile[(state[:, None] - state) % n_states] / n_states
    np.testing.assert_allclose(general, expected, rtol=0, atol=1e-10)
    information = circle_first_step_information(n_states, p, length)
    assert first_step_information(general) == pytest.approx(information, abs=1e-12)


@pytest.mark.parametrize(("n_states", "length", "seed"), [(2, 2, 0), (2, 7, 1), (3, 5, 2), (4, 4, 3)])
def test_the_gradient_of_any_chain_by_enumeration_and_by_differences(n_states, length, seed):
    P, mu = random_chain(n_states, seed)  # mu is not stationary
    paths, weight = weighted_paths(P, mu, length)
    counted = np.zeros((n_states, n_states))
    for path, w in zip(paths, weight, strict=True):
        for token in path[:-1]:
            counted[path[-1], token] += w
    found = first_step_gradient(P, mu, length)
    np.testing.assert_allclose(found, counted, rtol=0, atol=1e-13)
    assert found.sum() == pytest.approx(length - 1, rel=1e-13)

    # The gradient proper is l'(0) / N of it, l'(0) = -1 / eps.
    eps, h = 0.1, 1e-5
    differences = np.zeros((n_states, n_states))
    for index in np.ndindex(n_states, n_states):
        V = np.zeros((n_states, n_states))
        V[index] = h
        differences[index] = (loss(V, paths, weight, eps) - loss(-V, paths, weight, eps)) / (2 * h)
    np.testing.assert_allclose(differences, -found / (eps * length), rtol=0, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("n_states", [3, 4, 6, 7])
def test_a_deterministic_walk_is_a_trap_iff_the_circle_divides_its_steps(n_states, p):
    step = 1 if p == 1 else -1
    for length in range(2, 4 * n_states + 2):
        information = circle_first_step_information(n_states, p, length)
        trapped = (length - 1) % n_states == 0
        assert (information < 1e-20) == trapped
        assert trapped or information > 1e-6
        # One step from zero: V is proportional to the profile, and the mean token is read through it.
        path = np.arange(length) * step % n_states
        profile = first_step_profile(n_states, p, length)[1]
        scores = [sum(profile[(y - x) % n_states] for x in path[:-1]) for y in range(n_states)]
        if trapped:
            np.testing.assert_allclose(scores, scores[0], rtol=1e-12)
        else:
            assert np.argmax(scores) == path[-1]
            assert np.sort(scores)[-1] > np.sort(scores)[-2] + 0.1


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_four_states_hide_the_step_of_a_fair_walk(p):
    # Shi & Cao's theorem 3.1 asks for K > 4. At K = 4 and p = 1/2 only the parity of the lag shows, and an
    # even number of earlier tokens has as many of each: a first-step trap between 0 and 1.
    for length in range(2, 12):
        trapped = p == 0.5 and length % 2 == 1
        assert (circle_first_step_information(4, p, length) < 1e-25) == trapped


def test_information_is_a_share_and_counts_dependence_only():
    for seed in range(20):
        P, mu = random_chain(4, seed)
        assert 0 < first_step_information(first_step_gradient(P, mu, 9)) < 1
        # Independent tokens: every row of P is the same, and the label says nothing of the past.
        independent = first_step_gradient(np.tile(P[0], (4, 1)), mu, 9)
        assert first_step_information(independent) < 1e-28
    # Two tokens that alternate over an even number of steps: as many of each behind either label.
    assert (
        first_step_information(first_step_gradient(Chain([[0, 1], [1, 0]]).P, np.array([0.5, 0.5]), 9)) == 0
    )
    # One token behind the label, on a cycle of two: half of the squared norm is dependence.
    assert first_step_information(np.array([[0.0, 0.5], [0.5, 0.0]])) == pytest.approx(0.5, rel=1e-14)


def test_information_at_one_half_falls_with_the_circle_but_is_there():
    for n_states, length in ((6, 97), (20, 101)):
        modes = first_step_profile(n_states, 0.5, length)[0]
        share = 1 - abs(modes[0]) ** 2 / (abs(modes) ** 2).sum()
        assert circle_first_step_information(n_states, 0.5, length) == pytest.approx(share, rel=1e-12)
        assert share > 1e-4


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="n_states is 2, expected at least 3"):
        first_step_profile(2, 0.5, 10)
    with pytest.raises(ValueError, match=r"p is 1\.5, expected a probability"):
        first_step_profile(3, 1.5, 10)
    with pytest.raises(ValueError, match="length is 1, expected at least 2"):
        first_step_profile(3, 0.5, 1)
    with pytest.raises(ValueError, match="length is 1, expected at least 2"):
        first_step_gradient(np.full((2, 2), 0.5), np.array([0.5, 0.5]), 1)
