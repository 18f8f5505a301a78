"""Chains of higher order against their definition, enumerated, and their sampler against a plain loop."""

import numpy as np
import pytest
import torch
from enumeration import assert_deterministic, assert_drawn, generator, table
from oracles import assert_conditional, assert_laws

from mechmarkov.sources import Chain, OrderK, Switch
from mechmarkov.sources.sampling.histories import sample_histories

SECOND = [[[0.9, 0.1], [0.25, 0.75]], [[0.0, 1.0], [0.4, 0.6]]]
THREE = np.random.default_rng(0).dirichlet(np.ones(3), (3, 3)).tolist()
THIRD = np.random.default_rng(1).dirichlet(np.ones(2), (2, 2, 2)).tolist()
# State 2 is left for good, and with it every history that holds it.
LEFT = [[[0.3, 0.7, 0.0]] * 2 + [[0.5, 0.5, 0.0]], [[0.6, 0.4, 0.0]] * 2 + [[1.0, 0.0, 0.0]]]
LEFT += [[[0.2, 0.3, 0.5]] * 3]
KERNELS = [SECOND, THREE, THIRD, LEFT, [[0.2, 0.8], [0.5, 0.5]]]


def all_paths(kernel, length):
    """Histories start where lazy walks over them end up; each state follows from the last k."""
    kernel = np.array(kernel)
    n, k = kernel.shape[-1], kernel.ndim - 1
    start = np.full((n,) * k, n ** -float(k))
    for _ in range(4_000):
        step = (start[..., None] * kernel).sum(0)
        start = (start + step) / 2

    def probability(x):
        return start[x[:k]] * np.prod([kernel[x[t - k : t + 1]] for t in range(k, len(x))])

    longer = table(probability, n, max(length, k))
    return longer.sum(axis=tuple(range(length, longer.ndim)))


@pytest.mark.parametrize("kernel", KERNELS, ids=["second", "three", "third", "left", "first"])
def test_laws_and_samples_by_enumeration(kernel):
    source = OrderK(kernel)
    length = 6 if source.n_states == 2 else 5
    joint = all_paths(kernel, length)
    assert_laws(source, joint)
    assert_deterministic(source)
    for n in (1, 2, 4):
        assert_drawn(source, all_paths(kernel, n))
    rules = source.predictors()
    assert list(rules)[6:] == [f"order_{j}" for j in range(2, source.order + 1)]
    for j in range(2, source.order + 1):
        assert_conditional(rules[f"order_{j}"], joint, lambda t, j=j: list(range(max(0, t + 1 - j), t + 1)))


def test_order_one_is_the_chain_to_the_same_tokens():
    P = [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]]
    source, chain = OrderK(P), Chain(P)
    tokens = [s.sample(7, 50, generator=generator()) for s in (source, chain)]
    assert torch.equal(*tokens)
    assert source.order == 1
    assert source.best().name == "bigram"
    np.testing.assert_array_equal(source.pi, chain.pi)
    np.testing.assert_allclose(source.P, chain.P, rtol=0, atol=1e-15)


def test_a_kernel_that_looks_at_one_token_is_the_switch_chain():
    row = [[0.5, 0.5], [0.8, 0.2]]
    source, switch = OrderK([[row[i]] * 2 for i in (0, 1)]), Switch(p=0.5, q=0.8, lag=2)
    for m in range(6):
        np.testing.assert_allclose(source.step_law(m), switch.step_law(m), rtol=0, atol=1e-14)
    assert source.entropy_rate == pytest.approx(switch.entropy_rate, rel=1e-14)
    tokens = switch.sample(5, 30, generator=generator()).numpy()
    expected = switch.best().probabilities(tokens)
    np.testing.assert_allclose(source.best().probabilities(tokens), expected, rtol=0, atol=1e-14)


def test_what_never_happens_still_has_laws():
    source = OrderK(LEFT)
    assert source.pi[2] == 0
    np.testing.assert_array_equal(source.step_law(1)[2], source.pi)
    np.testing.assert_array_equal(source.step_law(0), np.eye(3))
    laws = source.best().probabilities(np.array([[2, 2, 0, 2]]))[0]
    np.testing.assert_array_equal(laws[0], source.pi)
    np.testing.assert_array_equal(laws[1:], [[0.2, 0.3, 0.5], [0.2, 0.3, 0.5], [0.5, 0.5, 0.0]])
    tokens = source.sample(50, 200, generator=generator())
    assert int(tokens.max()) == 1


def loop(kernel, start, order, u):
    """One step at a time: where cumulative probabilities first exceed u; the first number draws k states."""
    n = kernel.shape[-1]
    paths = []
    for numbers in u.tolist():
        first = int((np.cumsum(start) / start.sum() <= numbers[0]).sum())
        path = [first // n**place % n for place in reversed(range(order))]
        for number in numbers[1:]:
            bounds = np.cumsum(kernel[tuple(path[-order:])])
            path.append(int((bounds / bounds[-1] <= number).sum()))
        paths.append(path)
    return np.array(paths)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 17, 130])
@pytest.mark.parametrize(("n_states", "order"), [(2, 1), (2, 3), (3, 2), (5, 2)])
def test_histories_give_the_paths_of_a_plain_loop(length, n_states, order):
    rng = np.random.default_rng(length)
    kernel = rng.dirichlet(np.full(n_states, 0.5), (n_states,) * order)
    start = rng.dirichlet(np.ones(n_states**order))
    flat = torch.tensor(kernel.reshape(-1, n_states))
    paths = sample_histories(flat, torch.tensor(start), order, 6, length, generator(length))
    u = torch.rand(6, max(1, length - order + 1), generator=generator(length), dtype=torch.float64)
    np.testing.assert_array_equal(paths.numpy(), loop(kernel, start, order, u)[:, :length])


def test_many_histories_are_walked_to_the_same_law():
    kernel = np.random.default_rng(0).dirichlet(np.ones(18), (18, 18))
    source = OrderK(kernel)
    tokens = source.sample(300, 1_000, generator=generator()).numpy()
    triples = np.bincount((tokens[:, :-2] * 18 + tokens[:, 1:-1]).ravel() * 18 + tokens[:, 2:].ravel())
    visits = triples.reshape(18, 18, 18).sum(-1, keepdims=True)
    z = (triples.reshape(18, 18, 18) - visits * kernel) / np.sqrt(visits * kernel * (1 - kernel))
    assert np.abs(z).max() < 5.5  # the largest of 5832 near-normal numbers


def test_forms_and_title():
    tensor = torch.tensor(SECOND, dtype=torch.float64)
    assert OrderK(np.array(SECOND)) == OrderK(tensor) == OrderK(kernel=SECOND)
    assert OrderK([np.array(table) for table in SECOND]) == OrderK(SECOND)
    assert OrderK(THREE).title() == "Order-2 chain on 3 states"
    assert OrderK(THIRD).order == 3
    nearly = torch.tensor(THREE, dtype=torch.float32)
    np.testing.assert_allclose(OrderK(nearly).rows.sum(-1), 1, rtol=0, atol=3e-16)
