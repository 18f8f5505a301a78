"""Paths by counts in Triton, against a loop of torch; interpreted where there is no GPU."""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from mechmarkov.sources.sampling.counted_walk import fill_in_kernel, walk_by_counts

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not here; runs in make test-triton"
)


def in_kernel(base, u, first):
    path = torch.cat([first, torch.full(u.shape, -1)], 1).to(DEVICE)
    fill_in_kernel(base.to(DEVICE), u.to(DEVICE), path)
    return path.cpu()


@pytest.mark.parametrize("n_states", [1, 2, 3, 4, 11])
@pytest.mark.parametrize(("batch", "steps"), [(1, 30), (5, 1), (7, 60), (3, 0)])
def test_paths_are_those_of_a_loop(n_states, batch, steps):
    rng = np.random.default_rng(n_states)
    base = torch.tensor(rng.dirichlet(np.full(n_states, 0.5), n_states))
    u = torch.tensor(rng.random((batch, steps)))
    first = torch.tensor(rng.permuted(np.tile(np.arange(n_states), (batch, 1)), axis=1))
    # Sums in another order differ by 1e-16, so that of 420 numbers none lies between them.
    assert torch.equal(in_kernel(base, u, first), walk_by_counts(base, u, first))


def test_the_law_is_a_row_times_the_counts():
    """By hand, at the bounds, which are exact: from 1, 0 the rows' weights are 1/4 of 1 and 3/4 of 1."""
    base = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    numbers = [[0.0, 0.0], [0.25, 0.3], [0.249, 0.4], [0.249, 0.39], [1 - 2**-53, 0.0]]
    u = torch.tensor(numbers, dtype=torch.float64)
    path = in_kernel(base, u, torch.tensor([[1, 0]]).expand(5, -1))
    # Behind 1, 0, 0 the weights are 2/4 and 3/4: 0 up to 0.4. Behind 1, 0, 1 they are 1/2 and 2/2: up to 1/3.
    assert path[:, 2:].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0], [1, 0]]


def test_rounding_leads_to_no_state_behind_the_last():
    base = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(11), 11))
    u = torch.full((4, 60), 1 - 2**-53, dtype=torch.float64)
    path = in_kernel(base, u, torch.arange(11).expand(4, -1))
    assert (path[:, 11:] == 10).all()
