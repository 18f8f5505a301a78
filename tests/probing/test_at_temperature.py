"""Predictions at another temperature, as small as a softmax makes them."""

import pytest
import torch

from mechmarkov.probing.effects import at_temperature


@pytest.mark.parametrize("inverse", [0.1, 0.5, 3.0])
def test_tempered_predictions_are_those_of_scaled_logits(inverse):
    logits = torch.tensor([[0.0, -60.0, -3.0], [-1.0, -2.0, -40.0]], dtype=torch.float64)  # e^-60 = 9e-27
    torch.testing.assert_close(at_temperature(logits.softmax(-1), inverse), (inverse * logits).softmax(-1))


def test_a_zero_counts_as_the_least_that_is_seen():
    tempered = at_temperature(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), 0.5)
    assert float(tempered[2] / tempered[0]) == pytest.approx((1e-12 / 0.5) ** 0.5)
