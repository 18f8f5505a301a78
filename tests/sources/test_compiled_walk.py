"""The compiled loop draws the paths that are drawn without it, to the last bit."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from mechmarkov.sources import Binary, Chain, Circle, ContextConditionedChain, DirichletChains, OrderK
from mechmarkov.sources.sampling.compiled_walk import TOGETHER, compiled_walks, walk_compiled
from mechmarkov.sources.sampling.counted_walk import walk_by_counts
from mechmarkov.sources.sampling.paths import COMPILED, cumulative, walk
from mechmarkov.sources.sampling.stacks import draws_of


def drawn(source, batch, length):
    return source.sample(batch, length, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("n_states", [1, 2, 3, 8, 50])
@pytest.mark.parametrize(("n_chains", "each"), [(1, 1), (1, TOGETHER + 3), (5, 1), (3, 7)])
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_paths_are_those_of_maps(n_states, n_chains, each, steps):
    rng, batch = np.random.default_rng(0), n_chains * each
    cdf = cumulative(torch.tensor(rng.dirichlet(np.full(n_states, 0.3), (n_chains, n_states))))
    u = torch.tensor(rng.random((batch, steps)))
    start = torch.tensor(rng.integers(n_states, size=batch))
    assert torch.equal(walk_compiled(cdf, u, start), walk(cdf, u, start))


def test_numbers_at_the_very_bounds():
    """Quarters are exact, and a state of probability zero is never drawn."""
    cdf = cumulative(torch.tensor([[[0, 0.25, 0.75], [0.5, 0, 0.5], [0.25, 0.75, 0]]], dtype=torch.float64))
    u = torch.tensor([0.0, 0.25, 0.5, 0.75, 1 - 2**-53], dtype=torch.float64)[:, None]
    for state, expected in enumerate(([1, 2, 2, 2, 2], [0, 0, 2, 2, 2], [0, 1, 1, 1, 1])):
        found = walk_compiled(cdf, u, torch.full((5,), state))
        assert found[:, 1].tolist() == expected


@pytest.mark.parametrize("way", [nullcontext, compiled_walks])
def test_paths_by_counts_at_the_very_bounds(way):
    """Weights are 1/4 and 3/4 behind 1, 0; then 2/4 and 3/4 behind another 0, and 1/2 and 1 behind a 1."""
    base = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    numbers = [[0.0, 0.0], [0.25, 0.3], [0.249, 0.4], [0.249, 0.39], [0.9, 1 / 3], [1 - 2**-53, 0.0]]
    u = torch.tensor(numbers, dtype=torch.float64)
    with way():
        path = walk_by_counts(base, u, torch.tensor([[1, 0]]).expand(6, -1))
    assert path[:, 2:].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0], [1, 1], [1, 0]]


@pytest.mark.parametrize(
    "source",
    [
        Binary(p=0.5, q=0.8),
        Circle(n_states=6, p=0.3),
        Chain([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]]),
        DirichletChains(n_states=3),
        DirichletChains(n_states=3, order=2, start="uniform"),
        OrderK([[[0.1, 0.9], [0.6, 0.4]], [[0.3, 0.7], [0.5, 0.5]]]),
        ContextConditionedChain([[0.2, 0.5, 0.3], [0.4, 0.15, 0.45], [0.5, 0.3, 0.2]]),
        ContextConditionedChain(np.random.default_rng(0).dirichlet(np.ones(40), 40)),  # more than positions
    ],
    ids=lambda source: type(source).__name__,
)
def test_a_training_draws_what_a_source_draws(source):
    device = torch.device("cpu")
    expected = drawn(source, 20, 30)
    with compiled_walks():
        assert torch.equal(drawn(source, 20, 30), expected)
    assert COMPILED.get() is None
    assert torch.equal(draws_of([source], [7], 30, device).draw(0, 20)[0], expected)
