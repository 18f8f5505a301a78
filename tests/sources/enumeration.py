"""All short sequences with their probabilities, and what follows from them: the oracle for sources.

A law of sequences is a function from a tuple of states to its probability; each test writes its own, by the
definition of the family. Frequencies are over independent sequences, so that counts are binomial: each lies
within five standard deviations, and seeds are fixed.
"""

import copy
import json
import pickle
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from mechmarkov import sources
from mechmarkov.sources import source_from_data
from mechmarkov.sources.base.registry import validated_source
from mechmarkov.sources.context_tree import Leaf
from mechmarkov.sources.tokens.tokenisers import Greedy

# Products and sums of some dozens of float64 numbers.
EXACT = {"rtol": 0, "atol": 1e-12}
NAMES = vars(sources) | {"Leaf": Leaf, "Greedy": Greedy}  # in the reprs of sources


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def solve(P):
    """The stationary law by a general solver, which may leave rounding below zero on transient states."""
    n = len(P)
    equations = np.vstack([np.transpose(P) - np.eye(n), np.ones(n)])
    found = np.linalg.lstsq(equations, np.eye(n + 1)[n], rcond=None)
    return np.maximum(found[0], 0)


def weights_of(weights, n):
    return np.full(n, 1 / n) if weights is None else np.array(weights)


def path_probability(start, P, x):
    return start[x[0]] * np.prod([P[a][b] for a, b in pairwise(x)])


def hidden_paths(chain, x):
    """Each path of hidden states with its probability together with the tokens."""
    T, E = np.array(chain.transitions), np.array(chain.emissions)
    pi = solve(T)
    for hidden in product(range(len(T)), repeat=len(x)):
        emitted = np.prod([E[h][y] for h, y in zip(hidden, x, strict=True)])
        yield hidden, path_probability(pi, T, hidden) * emitted


def table(law, n_states, length):
    """The law as an array with an axis for each position."""
    found = np.zeros((n_states,) * length)
    for x in product(range(n_states), repeat=length):
        found[x] = law(x)
    np.testing.assert_allclose(found.sum(), 1, **EXACT)
    return found


def pair(joint, first, second):
    """The law of the states at two positions."""
    others = tuple(axis for axis in range(joint.ndim) if axis not in (first, second))
    return joint.sum(axis=others)


def assert_stationary(source, joint):
    """`pi` at every position, and `step_law` between any two."""
    length = joint.ndim
    for t in range(length):
        others = tuple(axis for axis in range(length) if axis != t)
        np.testing.assert_allclose(joint.sum(axis=others), source.pi, **EXACT)
    for first in range(length):
        for second in range(first + 1, length):
            law = source.step_law(second - first)
            np.testing.assert_allclose(law.sum(-1), 1, **EXACT)
            np.testing.assert_allclose(pair(joint, first, second), source.pi[:, None] * law, **EXACT)
    np.testing.assert_array_equal(source.step_law(0), np.eye(source.n_states))
    np.testing.assert_array_equal(source.P, source.step_law(1))
    assert not source.pi.flags.writeable
    assert not source.P.flags.writeable
    with pytest.raises(ValueError, match=r"^m is -1, expected at least 0 steps$"):
        source.step_law(-1)


def assert_optimal(source, joint):
    """The best predictor is the conditional law of the next state, after every possible history."""
    best = source.best()
    assert best.exact
    assert best.name in source.predictors()
    n_states, length = source.n_states, joint.ndim
    histories = np.array(list(product(range(n_states), repeat=length - 1)))
    given = best.probabilities(histories)
    np.testing.assert_allclose(given.sum(-1), 1, **EXACT)
    for t in range(length - 1):
        known = joint.sum(axis=tuple(range(t + 2, length)))
        total = known.sum(-1)
        for history, law in zip(histories, given[:, t], strict=True):
            here = tuple(history[: t + 1])
            if total[here] > 1e-12:
                np.testing.assert_allclose(law, known[here] / total[here], **EXACT)


def assert_drawn(source, joint, n=40_000):
    tokens = source.sample(n, joint.ndim, generator=generator(0)).numpy()
    number = tokens @ source.n_states ** np.arange(joint.ndim)[::-1]
    count = np.bincount(number, minlength=joint.size)
    sigma = np.sqrt(n * joint.ravel() * (1 - joint.ravel()))
    np.testing.assert_array_less(np.abs(count - n * joint.ravel()), 5 * sigma + 1e-6)


def assert_plain_data(source, data):
    assert source.model_dump(mode="json") == data
    again = source_from_data(json.loads(json.dumps(data)))
    copies = source.model_copy(), copy.deepcopy(source), pickle.loads(pickle.dumps(source))
    assert all(each == source for each in (again, *copies))
    assert hash(again) == hash(source)
    assert eval(repr(source), NAMES) == source
    assert "\n" not in source.title()
    assert len(source.labels) == source.n_states


def assert_exact(source, law, length):
    """Laws, draws and the best predictor, all against the probabilities of all short sequences."""
    joint = table(law, source.n_states, length)
    assert_stationary(source, joint)
    assert_drawn(source, joint)
    assert_optimal(source, joint)


def assert_posterior(found, tokens, joint):
    """Bayes' rule at every position.

    Args:
        found: The posterior `[sequence, position, hidden]`.
        tokens: Of these.
        joint: Of a sequence so far the probabilities of it together with each hidden value.
    """
    for (sequence, t), _ in np.ndenumerate(tokens):
        likely = np.array(joint(tuple(tokens[sequence, : t + 1])))
        np.testing.assert_allclose(found[sequence, t], likely / likely.sum(), **EXACT)


def assert_deterministic(source, length=50):
    """Tokens come from the generator and nothing else."""
    outside = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    one = generator(3)
    tokens = source.sample(40, length, generator=one)
    assert (tokens.shape, tokens.dtype, tokens.device.type) == ((40, length), torch.int64, "cpu")
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < source.n_states
    assert torch.equal(tokens, source.sample(40, length, generator=generator(3)))
    for other in (one, generator(4)):  # the generator has moved on, and another differs
        assert not torch.equal(tokens, source.sample(40, length, generator=other))
    assert torch.equal(torch.random.get_rng_state(), outside[0])
    assert np.array_equal(np.random.get_state()[1], outside[1])
    for batch, steps, words in ((0, length, "batch is 0"), (3, -2, "length is -2")):
        with pytest.raises(ValueError, match=rf"^{words}, expected "):
            source.sample(batch, steps, generator=generator())
    with pytest.raises(ValueError, match=r"^generator is on cpu, expected on meta"):
        source.sample(1, length, generator=generator(), device="meta")


def assert_refused(data, field, words):
    """One error on one line that names the field."""
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        source_from_data(data)
    with pytest.raises(ValidationError) as caught:
        validated_source(data)
    (error,) = caught.value.errors()
    assert words in error["msg"]
    assert "\n" not in error["msg"]
    if field is not None:
        assert error["loc"][:2] == (data["kind"], field)
