"""Compiled walks refuse what would leave their arrays: the loop checks nothing."""

import pytest
import torch

from mechmarkov.sources.sampling.compiled_walk import fill_by_counts_compiled, walk_compiled

BOUNDS = torch.tensor([[[0.5, 1.0], [0.25, 1.0]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("bounds", "numbers", "start"),
    [
        (BOUNDS, [[0.5, 0.5]], [2]),
        (BOUNDS, [[0.5, 0.5]], [-1]),
        (BOUNDS, [[0.5, 1.0]], [0]),
        (BOUNDS - 0.1, [[0.5, 0.95]], [0]),  # as where rounding leaves a law that ends below 1
        (BOUNDS, [[0.5, 0.5]], [0, 1]),
        (BOUNDS.repeat(2, 1, 1), [[0.5, 0.5]], [0]),  # more chains than paths
        (BOUNDS.repeat(2, 1, 1), [[0.5]] * 3, [0] * 3),
    ],
)
def test_a_walk_that_would_leave_its_chain_is_refused(bounds, numbers, start):
    with pytest.raises(ValueError, match=r"leaves its chain, expected starts that are histories, numbers in"):
        walk_compiled(bounds, torch.tensor(numbers, dtype=torch.float64), torch.tensor(start))


def test_walks_of_no_step_and_of_no_path_are_walks():
    numbers = torch.zeros(2, 0, dtype=torch.float64)
    assert walk_compiled(BOUNDS, numbers, torch.tensor([1, 0])).tolist() == [[1], [0]]
    none = torch.zeros(0, 3, dtype=torch.float64)
    assert walk_compiled(BOUNDS, none, torch.zeros(0, dtype=torch.int64)).shape == (0, 4)


def test_a_path_that_is_filled_beyond_its_end_or_from_a_state_that_is_none_is_refused():
    base = torch.full((2, 2), 0.5, dtype=torch.float64)
    numbers = torch.full((1, 3), 0.5, dtype=torch.float64)
    for path in ([[0, 1, 0, 0]], [[0, 2, 0, 0, 0]], [[-1, 1, 0, 0, 0]], [[0, 1, 0, 0, 0]] * 2):
        with pytest.raises(ValueError, match=r"^a path of shape"):
            fill_by_counts_compiled(base, numbers, torch.tensor(path))
    path = torch.tensor([[0, 1, 9, 9, 9]])
    fill_by_counts_compiled(base, numbers, path)
    assert path[0, :2].tolist() == [0, 1]
    assert path.max() < 2
