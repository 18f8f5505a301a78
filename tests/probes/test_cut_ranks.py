"""Up to which rank a weight is cut: the largest of some models', and full where there is nothing to cut."""

import pytest
import torch
from mechmarkov.probes.storage.truncation import _rank


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ([[4.0, 2.0, 1.0]], 3),
        ([[4.0, 2.0, 4e-7]], 2),  # a tenth of a millionth of the largest: rounding of float32
        ([[4.0, 2.0, 4e-5]], 3),
        ([[4.0, 0.0, 0.0], [1.0, 0.5, 0.0]], 2),  # of two models the larger
        ([[0.0, 0.0, 0.0]], 3),  # an untrained weight of zeros
    ],
)
def test_a_rank_leaves_rounding_out(values, rank):
    assert _rank(torch.tensor(values)) == rank
