"""Shapley values against all orders of joining; bootstrap intervals against the normal approximation."""

import itertools

import numpy as np
import pytest

from mechmarkov.theory.bootstrap import interval, resampled_means
from mechmarkov.theory.shapley import coalitions, exact, sampled


def by_permutations(values: np.ndarray, players: int) -> np.ndarray:
    total = np.zeros((players, *values.shape[1:]))
    orders = list(itertools.permutations(range(players)))
    for order in orders:
        members = 0
        for player in order:
            total[player] += values[members | 1 << player] - values[members]
            members |= 1 << player
    return total / len(orders)


@pytest.mark.parametrize("players", [1, 2, 3, 5])
def test_exact_values_are_those_of_all_orders(players):
    values = np.random.default_rng(players).normal(size=(1 << players, 4))
    found = exact(values)
    assert np.allclose(found, by_permutations(values, players))
    assert np.allclose(found.sum(0), values[-1] - values[0])


def test_known_games():
    # Glove game: one left glove (player 0), two right ones; a pair is worth 1.
    members = coalitions(3)
    worth = (members[:, 0] & (members[:, 1] | members[:, 2])).astype(float)
    assert np.allclose(exact(worth), [2 / 3, 1 / 6, 1 / 6])
    assert np.allclose(exact(np.array([0.0, 3.0])), [3.0])


def test_sampled_orders_come_near_and_say_how_near():
    rng = np.random.default_rng(0)
    values = rng.normal(size=1 << 6)
    bits = 1 << np.arange(6)

    def worth(members: np.ndarray) -> np.ndarray:
        return values[members @ bits]

    truth = by_permutations(values, 6)
    runs = [sampled(worth, 6, permutations=200, seed=seed) for seed in range(40)]
    found = np.array([value for value, _ in runs])
    errors = np.array([error for _, error in runs])
    assert np.allclose(found.sum(1), values[-1] - values[0])
    z = (found - truth) / errors
    assert abs(z.mean()) < 0.2
    assert 0.8 < z.std() < 1.2
    assert np.allclose(errors.mean(0), found.std(0), rtol=0.4)


def test_the_error_of_two_pairs_is_half_of_what_lies_between_them():
    """Of two values a and b the mean is (a + b)/2 and its standard error |a - b|/2, without bias."""
    rng = np.random.default_rng(5)
    values, bits = rng.normal(size=1 << 4), 1 << np.arange(4)

    def worth(members: np.ndarray) -> np.ndarray:
        return values[members @ bits]

    def along(order: tuple[int, ...]) -> np.ndarray:
        added, members = np.zeros(4), 0
        for player in order:
            added[player] = values[members | 1 << player] - values[members]
            members |= 1 << player
        return added

    orders = itertools.permutations(range(4))
    possible = np.array([(along(order) + along(order[::-1])) / 2 for order in orders])
    for seed in range(10):
        found, error = sampled(worth, 4, permutations=4, seed=seed)
        for player in range(4):
            for end in (found - error, found + error):  # a and b themselves
                assert np.abs(possible[:, player] - end[player]).min() < 1e-6


def test_a_game_without_surprises_has_no_sampling_error():
    found, error = sampled(lambda members: members.sum(1).astype(float), 12, permutations=20)
    assert np.allclose(found, 1)
    assert np.allclose(error, 0)
    with pytest.raises(ValueError, match="permutations is 2, expected at least 4"):
        sampled(lambda members: members.sum(1).astype(float), 3, permutations=2)


def test_an_order_and_its_reverse_share_every_pairwise_interaction_exactly():
    # Of two players who are worth more together, one joins after the other in an order, and before it in the
    # reverse: what both add is halved between them, as by all orders. Without the reverse it is not.
    rng = np.random.default_rng(3)
    alone, together = rng.normal(size=7), np.triu(rng.normal(size=(7, 7)), 1)

    def worth(members: np.ndarray) -> np.ndarray:
        joined = members.astype(float)
        return joined @ alone + ((joined @ together) * joined).sum(1)

    found, error = sampled(worth, 7, permutations=4)
    assert np.allclose(found, alone + (together + together.T).sum(1) / 2)
    assert np.allclose(error, 0, atol=1e-7)


def test_bootstrap_intervals_are_nearly_normal_ones():
    values = np.random.default_rng(1).exponential(size=(3, 400))
    low, high = interval(values, draws=4000)
    error = values.std(-1) / np.sqrt(400)
    assert np.allclose(low, values.mean(-1) - 1.96 * error, atol=0.25 * error.max())
    assert np.allclose(high, values.mean(-1) + 1.96 * error, atol=0.25 * error.max())
    low80, high80 = interval(values, level=0.8)
    assert np.allclose(high80 - low80, 2 * 1.2816 * error, rtol=0.1)


def test_draws_are_shared_and_seeded():
    values = np.random.default_rng(2).normal(size=(2, 30))
    same = resampled_means(np.stack([values[0], values[0] + 1]))
    assert np.allclose(same[1] - same[0], 1)
    assert np.array_equal(resampled_means(values), resampled_means(values))
    assert not np.array_equal(resampled_means(values), resampled_means(values, seed=1))
    assert interval(np.array([2.0])) == (2.0, 2.0)
