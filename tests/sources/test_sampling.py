"""Samplers against a plain loop over time, and against the exact law.

Frequencies are taken over independent sequences, so that counts are exactly binomial; each must lie within
five standard deviations of its mean. Seeds are fixed: a test that passes once passes always.
"""

import numpy as np
import pytest
import torch

from mechmarkov.sources import Binary, Chain, Circle, DirichletChains
from mechmarkov.sources.sampling import paths
from mechmarkov.sources.sampling.paths import MAX_ENTRIES, _rank, cumulative, draw, random_maps, sample_paths
from mechmarkov.sources.sampling.two_states import walk_two_states

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


def generator(seed):
    return torch.Generator().manual_seed(seed)


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


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 33, 100])
@pytest.mark.parametrize(("n_chains", "batch"), [(1, 1), (1, 7), (7, 7)])
@pytest.mark.parametrize("n_states", [2, 5])
def test_random_maps_give_the_paths_of_a_plain_loop(length, n_chains, batch, n_states):
    rng = np.random.default_rng(length)
    P = rng.dirichlet(np.full(n_states, 0.5), (n_chains, n_states))
    start = rng.dirichlet(np.ones(n_states), n_chains)
    drawn = sample_paths(torch.tensor(P), torch.tensor(start), batch, length, generator(length))
    u = torch.rand(batch, length, generator=generator(length), dtype=torch.float64).numpy()
    assert drawn.dtype == torch.int64
    np.testing.assert_array_equal(drawn.numpy(), loop(P, start, u))


@pytest.mark.parametrize("n_steps", [3, 300])  # few numbers, or so many that the maps are tabulated
def test_maps_at_their_very_bounds(n_steps):
    # Quarters are exact, and so is which of them a number has reached.
    cdf = cumulative(torch.tensor([[[0, 0.25, 0.75], [0.5, 0, 0.5], [0.25, 0.75, 0]]], dtype=torch.float64))
    u = torch.tensor([[0.0, 0.25, 0.5, 0.75, 1 - 2**-53]], dtype=torch.float64).repeat(1, n_steps)
    table, which = random_maps(cdf, u[:, :n_steps])
    maps = table[which][0, :5].tolist()
    expected = [[1, 0, 0], [2, 0, 1], [2, 2, 1], [2, 2, 1], [2, 2, 1]]
    assert maps == expected[: len(maps)]


@pytest.mark.parametrize(
    "values",
    {
        "anywhere": np.random.default_rng(0).random(40),
        "on the cells' borders": np.arange(40) / 64,
        "many in one cell": 0.5 + np.arange(40) * 2**-53,
        "few in one cell": np.repeat([0.1, 0.1 + 2**-40, 0.2], 2),
        "two": [0.3, 0.7],
        "the last one alone in its cell": [1 - 2**-40],
        "two that are equal": [0.3, 0.3],
        "nothing below 1": [],
    }.values(),
    ids=str,
)
def test_ranks_are_those_of_a_bisection(values):
    bounds = torch.tensor([[*sorted(values), 1.0, 1.0]], dtype=torch.float64)
    u = torch.rand(1, 2000, generator=generator(0), dtype=torch.float64)
    around = torch.cat([bounds, bounds - 2**-53, bounds + 2**-53], 1).clamp(0, 1 - 2**-53)
    u = torch.cat([u, around], 1)
    found = torch.searchsorted(bounds, u, right=True)
    assert torch.equal(_rank(bounds, u), found)
    # Of a chain the bounds of those before it are counted too.
    even = torch.linspace(0, 1, bounds.shape[1] + 1, dtype=torch.float64)[None, 1:]
    chains = torch.cat([even, bounds, even])
    among = torch.searchsorted(chains, u.expand(3, -1).contiguous(), right=True)
    assert torch.equal(among[1], found[0])
    assert torch.equal(_rank(chains, u.expand(3, -1)), among + bounds.shape[1] * torch.arange(3)[:, None])


@pytest.mark.parametrize(("n_chains", "batch"), [(1, 1), (1, 63), (1, 130), (3, 9), (64, 64)])
@pytest.mark.parametrize(
    "P",
    {
        "quarters": [[0.25, 0.75], [0.75, 0.25]],
        "every step keeps the state": [[1.0, 0.0], [0.0, 1.0]],
        "every step turns it": [[0.0, 1.0], [1.0, 0.0]],
        "every step forgets it": [[0.2, 0.8], [0.2, 0.8]],
    }.values(),
    ids=str,
)
@pytest.mark.parametrize("n_steps", [0, 1, 2, 37])
def test_paths_of_two_states_in_words_are_those_of_a_plain_loop(P, n_chains, batch, n_steps):
    each = [P if i % 2 == 0 else [row[::-1] for row in P] for i in range(n_chains)]
    # Quarters, half of which are at a bound.
    u = torch.randint(4, (batch, n_steps), generator=generator(0)).double() / 4
    start = torch.arange(batch) % 2
    found = walk_two_states(cumulative(torch.tensor(each, dtype=torch.float64)), u, start)
    assert torch.equal(found[:, 0], start)
    for i, (path, numbers) in enumerate(zip(found.tolist(), u.tolist(), strict=True)):
        kernel = each[i * n_chains // batch]
        for before, after, number in zip(path, path[1:], numbers, strict=False):
            assert after == (number >= kernel[before][0])


@pytest.mark.parametrize(
    ("n_chains", "n_states", "order"), [(1, 3, 1), (6, 3, 1), (12, 3, 1), (1, 2, 4), (6, 2, 3)]
)
def test_all_ways_to_walk_agree(n_chains, n_states, order, monkeypatch):
    """A table of maps, the current row alone, and maps composed as on a GPU; in chunks of four sequences."""
    cdf = cumulative(
        torch.tensor(np.random.default_rng(0).dirichlet(np.ones(n_states), (n_chains, n_states**order)))
    )
    u = torch.rand(12, 600, generator=generator(0), dtype=torch.float64)
    start = torch.arange(12) % n_states**order
    monkeypatch.setattr(paths, "MAX_COMPOSED_STATES", 0)
    found = paths.walk(cdf, u, start)
    every = torch.arange(n_states**order) * n_states % n_states**order
    maps, which = random_maps(cdf, u)
    assert torch.equal(found, paths._searched(cdf, u, start))
    assert torch.equal(found[:, 0], start)
    assert torch.equal(found[:, 1:], paths._composed((every + maps)[which], start))
    assert len(found.unique()) == n_states**order
    calls = []
    follow = paths.follow
    monkeypatch.setattr(paths, "follow", lambda *given: calls.append(given) or follow(*given))
    monkeypatch.setattr(paths, "MAX_ENTRIES", 4 * max(600, n_chains * n_states ** (2 * order + 1) // 12))
    assert torch.equal(found, paths.walk(cdf, u, start))
    assert len(calls) == 3
    for most in ("MAX_ENTRIES_PER_NUMBER", "MAX_ENTRIES_PER_STEP"):
        monkeypatch.setattr(paths, most, 0)
    assert torch.equal(found, paths.walk(cdf, u, start))
    assert len(calls) == 3  # no maps


@pytest.mark.parametrize("n_chains", [1, 9])
def test_chunks_join_into_the_same_paths(n_chains):
    n_states, length, batch = 64, 1 << 13, 9
    P = np.random.default_rng(0).dirichlet(np.ones(n_states), (n_chains, n_states))
    start = np.full((n_chains, n_states), 1 / n_states)
    drawn = sample_paths(torch.tensor(P), torch.tensor(start), batch, length, generator(1))
    u = torch.rand(batch, length, generator=generator(1), dtype=torch.float64).numpy()
    np.testing.assert_array_equal(drawn[:, :300].numpy(), loop(P, start, u[:, :300]))
    np.testing.assert_array_equal(drawn[-1:].numpy(), loop(P[-1:], start[-1:], u[-1:]))


def test_what_always_follows_and_where_a_path_starts_anew_are_each_sequences_own():
    n_states, length, batch = 64, 1 << 13, 9  # fits eight sequences at a time
    assert MAX_ENTRIES // (n_states * length) == 8
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
def test_samples_come_from_the_generator_and_nothing_else(source):
    outside = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    one = generator(3)
    tokens = source.sample(4, 50, generator=one)
    again = source.sample(4, 50, generator=generator(3))
    assert torch.equal(tokens, again)
    assert not torch.equal(one.get_state(), generator(3).get_state())
    assert torch.equal(torch.random.get_rng_state(), outside[0])
    assert np.array_equal(np.random.get_state()[1], outside[1])
    if source.redraws or source.entropy_rate > 0:  # the generator has moved on, and another differs
        assert not torch.equal(tokens, source.sample(4, 50, generator=one))
        assert not torch.equal(tokens, source.sample(4, 50, generator=generator(4)))


@pytest.mark.parametrize("source", EVERY, ids=repr)
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (5, 1), (1, 2), (2, 7)])
def test_shape_and_type(source, batch, length):
    tokens = source.sample(batch, length, generator=generator(0))
    assert tokens.shape == (batch, length)
    assert tokens.dtype == torch.int64
    assert tokens.device.type == "cpu"
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < source.n_states


@pytest.mark.parametrize("source", EVERY, ids=repr)
def test_what_cannot_be_drawn_is_refused_in_words(source):
    with pytest.raises(ValueError, match=r"^batch is 0, expected at least 1$"):
        source.sample(0, 3, generator=generator(0))
    with pytest.raises(ValueError, match=r"^length is -2, expected at least 1$"):
        source.sample(3, -2, generator=generator(0))
    with pytest.raises(ValueError, match=r"^generator is on cpu, expected on meta"):
        source.sample(3, 3, generator=generator(0), device="meta")
