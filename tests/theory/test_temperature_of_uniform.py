"""A law that no temperature changes."""

import numpy as np
import pytest

from mechmarkov.theory.temperature import best_temperature


def test_a_uniform_law_keeps_its_distance():
    _, nats = best_temperature(np.array([[[0.8, 0.2]]]), np.full((1, 1, 2), 0.5))
    assert nats == pytest.approx(np.log(2) + 0.8 * np.log(0.8) + 0.2 * np.log(0.2))
