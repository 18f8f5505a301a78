"""Samplers against a plain loop over time, and against the exact law.

Frequencies are taken over independent sequences, so that counts are exactly binomial; each must lie within
five standard deviations of its mean. Seeds are fixed: a test that passes once passes always.
"""

import numpy as np
import pytest
import torch
from enumeration import assert_deterministic, generator

from mechmarkov.sources import Binary, Chain, Circle, DirichletChains
from mechmarkov.sources.sampling import paths
from mechmarkov.sources.sampling.compiled_walk import (
    TOGETHER,
    emit_compiled,
    fill_by_counts_compiled,
    walk_compiled,
)
from mechmarkov.sources.sampling.paths import (
    cumulative,
    draw,
    emit,
    fill_by_counts,
    sample_paths,
    scan,
    walk_by_counts,
)

THREE = Chain([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]])
FIXED = [
    Binary(p=0.5, q=0.8),
    Binary(p=0.2, q=0.3),
    Binary(p=1, q=1),
    Circle(n_states=6, p=0.3),
    Circle(n_states=5, p=1),
    Circle(n_states=5, p=0),
    THREE,
    Chain([[0.0, 0.5, 0.5], [0.0, 0.25, 0.75], [0.0, 1.0, 0.0]]),  # state 0 is transient
]
EVERY = [*FIXED, DirichletChains(n_states=3), DirichletChains(n_states=2, concentration=0.3, start="uniform")]


def within_five_sigma(counts, n, probability):
    """Counts of n independent trials; where the probability is 0 or 1 there is no room at all."""
    sigma = np.sqrt(n * probability * (1 - probability))
    np.testing.assert_array_less(np.abs(counts - n * probability), 5 * sigma + 1e-9 * n)


def loop(P, start, u):
    """One step at a time: where the cumulative probabilities of the current state's row first exceed u."""
    paths = np.empty(u.shape, dtype=np.int64)
    for i, numbers in enumerate(u):
        rows = P[i if len(P) > 1 else 0]
        row = start[i if len(start) > 1 else 0]
        for t, number in enumerate(numbers):
            bounds = np.cumsum(row)
            paths[i, t] = int((bounds / bounds[-1] <= number).sum())
            row = rows[paths[i, t]]
    return paths


WAYS = {"the compiled loop": walk_compiled, "the scan of a device": scan}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.mark.parametrize("length", [1, 2, 3, 33])
@pytest.mark.parametrize(("n_chains", "batch"), [(1, 1), (1, 7), (7, 7)])
@pytest.mark.parametrize("n_states", [2, 5])
def test_paths_are_those_of_a_plain_loop(length, n_chains, batch, n_states):
    rng = np.random.default_rng(length)
    P = rng.dirichlet(np.full(n_states, 0.5), (n_chains, n_states))
    start = rng.dirichlet(np.ones(n_states), n_chains)
    drawn = sample_paths(torch.tensor(P), torch.tensor(start), batch, length, generator(length))
    u = torch.rand(batch, length, generator=generator(length), dtype=torch.float64).numpy()
    assert drawn.dtype == torch.int64
    np.testing.assert_array_equal(drawn.numpy(), loop(P, start, u))


@ways
def test_numbers_at_the_very_bounds(way):
    """Quarters are exact, and a state of probability zero is never drawn."""
    cdf = cumulative(torch.tensor([[[0, 0.25, 0.75], [0.5, 0, 0.5], [0.25, 0.75, 0]]], dtype=torch.float64))
    u = torch.tensor([0.0, 0.25, 0.5, 0.75, 1 - 2**-53], dtype=torch.float64)[:, None]
    for state, expected in enumerate(([1, 2, 2, 2, 2], [0, 0, 2, 2, 2], [0, 1, 1, 1, 1])):
        assert way(cdf, u, torch.full((5,), state))[:, 1].tolist() == expected


@ways
@pytest.mark.parametrize(("n_chains", "each"), [(1, 1), (1, TOGETHER + 3), (5, 1), (3, 7)])
@pytest.mark.parametrize(("n_states", "order"), [(1, 1), (2, 1), (50, 1), (3, 2), (2, 4)])
@pytest.mark.parametrize("forced", [False, True])
def test_each_way_takes_one_step_after_the_other(way, n_chains, each, n_states, order, forced, monkeypatch):
    """On a device in parts of four sequences, or of whole chains."""
    n_histories, n_steps, batch, rng = n_states**order, 23, n_chains * each, np.random.default_rng(0)
    monkeypatch.setattr(paths, "MAX_ENTRIES_GPU", 4 * n_steps * n_histories)
    cdf = cumulative(torch.tensor(rng.dirichlet(np.full(n_states, 0.3), (n_chains, n_histories))))
    u = torch.tensor(rng.random((batch, n_steps)))
    start, always, placed = (
        torch.tensor(rng.integers(low, n_histories, size=size))
        for low, size in ((0, batch), (-9, (batch, n_histories)), (-9, (batch, n_steps)))
    )
    path = way(cdf, u, start, *((always.clamp_min(-1), placed.clamp_min(-1)) if forced else ()))
    assert torch.equal(path[:, 0], start)
    for b, t in np.ndindex(batch, n_steps):
        now = int(path[b, t])
        later = now * n_states % n_histories + int((cdf[b // each, now] <= u[b, t]).sum())
        if forced and always[b, now] >= 0:
            later = int(always[b, now])
        if forced and placed[b, t] >= 0:
            later = int(placed[b, t])
        assert path[b, t + 1] == later


@ways
def test_a_walk_of_no_step_stays(way):
    cdf = torch.ones(1, 1, 1, dtype=torch.float64)
    assert way(cdf, torch.zeros(2, 0, dtype=torch.float64), torch.tensor([0, 0])).tolist() == [[0], [0]]


@pytest.mark.parametrize("fill", [fill_by_counts, fill_by_counts_compiled])
def test_paths_by_counts_at_the_very_bounds(fill):
    """Weights are 1/4 and 3/4 behind 1, 0; then 2/4 and 3/4 behind another 0, and 1/2 and 1 behind a 1."""
    base = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    numbers = [[0.0, 0.0], [0.25, 0.3], [0.249, 0.4], [0.249, 0.39], [0.9, 1 / 3], [1 - 2**-53, 0.0]]
    path = torch.tensor([[1, 0, 9, 9]]).repeat(6, 1)
    fill(base, torch.tensor(numbers, dtype=torch.float64), path)
    assert path[:, 2:].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0], [1, 1], [1, 0]]


@pytest.mark.parametrize("n_states", [3, 40])  # 40: more than there are steps
def test_counts_in_launches_are_those_of_the_loop(n_states):
    rng = np.random.default_rng(0)
    base = torch.tensor(rng.dirichlet(np.ones(n_states), n_states))
    u = torch.tensor(rng.random((20, 30)))
    first = torch.tensor(rng.permuted([np.arange(n_states)] * 20, axis=1))
    path = torch.cat([first, torch.zeros(20, 30, dtype=torch.int64)], 1)
    fill_by_counts(base, u, path)
    assert torch.equal(path, walk_by_counts(base, u, first))


def test_emissions_come_from_the_laws_of_the_path():
    laws = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(4), 3))
    path = torch.arange(30).view(5, 6) % 3
    u = torch.rand(5, 6, generator=generator(1), dtype=torch.float64)
    expected = (cumulative(laws)[path] <= u[..., None]).sum(-1)
    assert torch.equal(emit(laws, path, generator(1)), expected)


@pytest.mark.parametrize(
    ("path", "numbers", "last"),
    [([[3]], [[0.5]], 1), ([[0]], [[1.0]], 1), ([[0]], [[0.95]], 0.9), ([[0]], [[]], 1)],
)
def test_emissions_that_leave_their_laws_are_refused(path, numbers, last):
    cdf = torch.tensor([[0.5, last]] * 3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"leaves its 3 laws, expected a number in \[0, 1\) for each place"):
        emit_compiled(cdf, torch.tensor(numbers, dtype=torch.float64), torch.tensor(path))


@pytest.mark.parametrize(
    "wrong", [{"always": [[2, 0]]}, {"always": [[0, 0]] * 2}, {"placed": [[2]]}, {"placed": [[]]}]
)
def test_a_walk_forced_out_of_its_chain_is_refused(wrong):
    cdf = torch.tensor([[[0.5, 1.0], [0.25, 1.0]]], dtype=torch.float64)
    given = {name: torch.tensor(value, dtype=torch.int64) for name, value in wrong.items()}
    with pytest.raises(ValueError, match=r"leaves its chain"):
        walk_compiled(cdf, torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([0]), **given)


def test_what_always_follows_and_new_starts_are_a_sequences_own():
    n_states, length, batch = 64, 1 << 11, 9
    P = np.random.default_rng(0).dirichlet(np.ones(n_states), 1).repeat(n_states, 0)[None]
    sequence = torch.arange(batch)
    always = torch.full((batch, n_states), -1)
    always[sequence, sequence] = 63 - sequence
    anew = torch.zeros(batch, length, dtype=torch.bool)
    anew[sequence, 1000 + sequence] = True
    start = torch.eye(n_states, dtype=torch.float64)[:batch]  # sequence i starts in state i, now and then
    drawn = sample_paths(torch.tensor(P), start, batch, length, generator(1), always=always, anew=anew)
    assert torch.equal(drawn[:, 0], sequence)
    assert torch.equal(drawn[sequence, 1000 + sequence], sequence)
    own = (drawn[:, :-1] == sequence[:, None]) & ~anew[:, 1:]
    assert own.sum(1).min() > 1
    assert torch.equal(drawn[:, 1:][own], (63 - sequence)[:, None].expand(-1, length - 1)[own])


@pytest.mark.parametrize("source", FIXED, ids=repr)
def test_frequencies_are_those_of_the_exact_law(source):
    n, k = 60_000, source.n_states
    tokens = source.sample(n, 6, generator=generator(0)).numpy()
    assert tokens.min() >= 0
    assert tokens.max() < k
    for t in (0, 3, 5):  # the start is stationary, and so is everything after it
        within_five_sigma(np.bincount(tokens[:, t], minlength=k), n, source.pi)
    for lag, t in ((1, 0), (1, 4), (2, 1), (2, 3), (5, 0)):
        pairs = np.bincount(tokens[:, t] * k + tokens[:, t + lag], minlength=k * k).reshape(k, k)
        within_five_sigma(pairs, n, source.pi[:, None] * np.linalg.matrix_power(source.P, lag))
    triples = np.bincount((tokens[:, 2] * k + tokens[:, 3]) * k + tokens[:, 4], minlength=k**3)
    law = source.pi[:, None, None] * source.P[:, :, None] * source.P[None]
    within_five_sigma(triples.reshape(k, k, k), n, law)


def test_impossible_transitions_are_never_drawn():
    # Impossible first, last and between, in rows whose sums round to less and to more than 1.
    rows = [[0, 0.7, 0.2, 0.1, 0], [0.1, 0.2, 0, 0.7, 0], [0.3, 0, 0.3, 0, 0.4], [0, 0, 0, 0, 1.0]]
    chain = Chain([*rows, [1 / 3, 0, 1 / 3, 1 / 3, 0]])
    tokens = chain.sample(2_000, 1_000, generator=generator(0))
    pairs = torch.bincount((tokens[:, :-1] * 5 + tokens[:, 1:]).flatten(), minlength=25).reshape(5, 5)
    np.testing.assert_array_equal(pairs.numpy() > 0, chain.P > 0)


@pytest.mark.parametrize(
    "law", [[0.1] * 10 + [0.0], [0.0, 1 / 3, 0.0, 1 / 3, 1 / 3, 0.0], [0.7, 0.2, 0.1, 0]]
)
def test_the_outermost_numbers_draw_possible_states(law):
    law = torch.tensor([law], dtype=torch.float64)
    bounds = cumulative(law)
    assert bounds[0, -1] == 1
    inner = bounds[bounds < 1]
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)  # the least and the greatest of torch.rand
    u = torch.cat([ends, inner, torch.nextafter(inner, torch.zeros_like(inner))])
    states = draw(bounds, u[None])
    assert (law[0, states[0]] > 0).all()


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_the_walk_is_the_chain_with_the_same_matrix(p):
    # The cumulative sum and the general sampler, over all paths of four states.
    walk, n = Circle(n_states=3, p=p), 40_000
    chain = Chain(walk.P)
    law = np.einsum("a,ab,bc,cd->abcd", walk.pi, walk.P, walk.P, walk.P).ravel()
    for source in (walk, chain):
        tokens = source.sample(n, 4, generator=generator(5)).numpy()
        within_five_sigma(np.bincount(tokens @ [27, 9, 3, 1], minlength=81), n, law)


def test_a_long_walk_only_ever_steps_to_neighbours():
    tokens = Circle(n_states=7, p=0.9).sample(3, 50_000, generator=generator(0))
    steps = tokens.diff() % 7
    assert set(steps.unique().tolist()) == {1, 6}
    within_five_sigma((steps == 1).sum().numpy(), steps.numel(), np.array(0.9))


@pytest.mark.parametrize("source", EVERY, ids=repr)
@pytest.mark.parametrize("length", [1, 2, 50])
def test_samples_come_from_the_generator_and_nothing_else(source, length):
    assert_deterministic(source, length)
