"""A law that no temperature changes."""

import numpy as np
import pytest

from mechmarkov.theory.temperature import best_temperature


def test_a_uniform_law_keeps_its_distance():
    _, nats = best_temperature(np.array([[[0.8, 0.2]]]), np.full((1, 1, 2), 0.5))
    assert nats == pytest.approx(np.log(2) + 0.8 * np.log(0.8) + 0.2 * np.log(0.2))


def test_rounding_makes_nothing_the_opposite_of_uniform():
    """The slope is 0 there, so that its sign says nothing of the predictions."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        q = rng.dirichlet(np.ones(3), size=(4, 5))
        temperature, _ = best_temperature(np.full((4, 5, 3), 1 / 3), q, opposite=True)
        assert temperature > 0
