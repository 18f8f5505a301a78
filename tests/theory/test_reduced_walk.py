"""The reduced walk against gradient descent of the full model, written out in plain numpy.

The full model has all of `V` [K, K] and `W` [K + M, K + M], with the paper's sine positions. Its gradient is
analytic, and itself checked against differences of the loss.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from mechmarkov.theory.walk import reduced_walk
from mechmarkov.theory.walk.first_step import first_step_profile

EPS = 0.1


class FullModel:
    """`f(X) = V X softmax(X~^T W x~_N)` on weighted paths, with the gradient of `E[-log(f_y + eps)]`."""

    def __init__(self, paths, weights, n_states, n_positions):
        self.paths, self.weights = paths, weights
        n, length = paths.shape
        i, j = np.arange(1, length + 1)[:, None], np.arange(1, n_positions + 1)
        self.positions = np.sin(i * j * np.pi / (n_positions + 1))
        self.X = np.zeros((n, n_states, length))
        for row, path in enumerate(paths):
            for t, token in enumerate(path[:-1]):  # the last column stays zero
                self.X[row, token, t] = 1
        self.Xt = np.concatenate(
            [self.X, np.broadcast_to(self.positions.T, (n, n_positions, length))], axis=1
        )
        self.V = np.zeros((n_states, n_states))
        self.W = np.zeros((n_states + n_positions,) * 2)

    def attend(self):
        logits = np.einsum("pai,ab,pb->pi", self.Xt, self.W, self.Xt[:, :, -1])
        S = np.exp(logits - logits.max(axis=1, keepdims=True))
        return S / S.sum(axis=1, keepdims=True)

    def scores(self):
        return np.einsum("yx,pxi,pi->py", self.V, self.X, self.attend())

    def loss(self):
        label = self.scores()[np.arange(len(self.paths)), self.paths[:, -1]]
        return -(self.weights * np.log(label + EPS)).sum()

    def accuracy(self):
        best = self.scores().argmax(axis=1)
        return (self.weights * (best == self.paths[:, -1])).sum()

    def gradient(self):
        S = self.attend()
        mean_token = np.einsum("pxi,pi->px", self.X, S)
        dscores = np.zeros((len(self.paths), len(self.V)))
        rows = np.arange(len(self.paths))
        label = np.einsum("px,px->p", self.V[self.paths[:, -1]], mean_token)
        dscores[rows, self.paths[:, -1]] = -self.weights / (label + EPS)
        dV = dscores.T @ mean_token
        dS = np.einsum("py,yx,pxi->pi", dscores, self.V, self.X)
        dlogits = S * (dS - (S * dS).sum(axis=1, keepdims=True))
        return dV, np.einsum("pi,pai,pb->ab", dlogits, self.Xt, self.Xt[:, :, -1])

    def step(self, eta):
        dV, dW = self.gradient()
        self.V, self.W = self.V - eta * dV, self.W - eta * dW


def population(n_states, p, length):
    """All paths of the walk from all starts, with their probabilities."""
    paths, weights = [], []
    for start in range(n_states):
        for steps in product((1, -1), repeat=length - 1):
            weight = np.prod([p if step == 1 else 1 - p for step in steps]) / n_states
            if weight > 0:
                paths.append((start + np.concatenate([[0], np.cumsum(steps)])) % n_states)
                weights.append(weight)
    return np.array(paths), np.array(weights)


def close(found, expected, scale=None):
    """To 1e-9 of the largest entry."""
    size = np.abs(expected).max() if scale is None else scale
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * max(size, 1e-12))


def test_the_full_models_gradient_is_that_of_its_loss():
    rng = np.random.default_rng(0)
    model = FullModel(*population(3, 0.3, 4), n_states=3, n_positions=5)
    np.testing.assert_allclose(model.positions @ model.positions.T, 3 * np.eye(4), atol=1e-12)
    model.V, model.W = rng.uniform(0, 1, model.V.shape), rng.normal(0, 0.2, model.W.shape)
    for weight, gradient in zip((model.V, model.W), model.gradient(), strict=True):
        for index in np.ndindex(*weight.shape):
            kept, h = weight[index], 1e-6
            weight[index] = kept + h
            above = model.loss()
            weight[index] = kept - h
            below = model.loss()
            weight[index] = kept
            assert gradient[index] == pytest.approx((above - below) / (2 * h), abs=1e-8)


@pytest.mark.parametrize(
    ("n_states", "p", "length", "n_positions", "eta", "steps"),
    [
        (4, 1.0, 7, 30, 1.0, 8),  # learned: 4 does not divide 6
        (6, 1.0, 9, 40, 0.3, 12),
        (5, 0.0, 8, 30, 1.0, 8),
        (5, 0.5, 6, 11, 1.0, 15),
        (5, 0.3, 6, 11, 1.0, 15),
        (3, 0.3, 7, 20, 0.5, 10),
        (4, 0.4, 6, 8, 2.0, 10),
    ],
)
def test_reduced_and_full_gradient_descent_agree(n_states, p, length, n_positions, eta, steps):
    paths, weights = population(n_states, p, length)
    full = FullModel(paths, weights, n_states, n_positions)
    displacements = reduced_walk.displacements(paths, n_states)
    run = reduced_walk.descend(
        displacements,
        weights,
        n_states=n_states,
        position_norm_sq=(n_positions + 1) / 2,
        eta=eta,
        eps=EPS,
        steps=steps,
    )
    assert [state.step for state in run] == list(range(steps + 1))
    for state in run:
        close(reduced_walk.value_matrix(state.profile), full.V)
        w = full.W @ full.Xt[0, :, -1]  # the query column is the same on every path
        by_position = full.positions @ w[n_states:]
        size = max(np.abs(by_position).max(), 1.0)
        close(state.position_logits, by_position, size)
        close(np.full(n_states, state.token_logit), w[:n_states], size)
        passed = reduced_walk.forward(state, displacements)
        close(np.tile(passed.attention, (len(paths), 1)), full.attend(), 1.0)
        rolled = np.take_along_axis(full.scores(), (paths[:, -1:] + np.arange(n_states)) % n_states, axis=1)
        close(passed.scores, rolled)
        assert reduced_walk.loss(state, displacements, weights, EPS) == pytest.approx(full.loss(), rel=1e-9)
        full.step(eta)
    # Something was learned: attention has moved, and the walk is predicted as well as it can be.
    assert np.ptp(run[-1].position_logits) > 0.1
    assert reduced_walk.accuracy(run[-1], displacements, weights) == pytest.approx(max(p, 1 - p), rel=1e-12)


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_accuracy_is_the_full_models_where_no_scores_tie(p):
    paths, weights = population(5, p, 6)
    rng = np.random.default_rng(0)
    full = FullModel(paths, weights, 5, 8)
    state = reduced_walk.ReducedState(rng.uniform(0, 1, 5), 0.3, rng.normal(0, 1, 6))
    full.V = reduced_walk.value_matrix(state.profile)
    w = np.concatenate(
        [np.full(5, 0.3), np.linalg.lstsq(full.positions, state.position_logits, rcond=None)[0]]
    )
    query = full.Xt[0, :, -1]
    full.W = np.outer(w, query) / (query @ query)
    found = reduced_walk.accuracy(state, reduced_walk.displacements(paths, 5), weights)
    assert found == pytest.approx(full.accuracy(), rel=1e-12)


@pytest.mark.parametrize(("n_states", "length"), [(6, 97), (20, 101)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_trap_is_flat_to_the_last_bit(n_states, length, sign):
    # The paper's norm: M = 1000 sine positions. p = 1, and p = 0.
    displacements = sign * reduced_walk.deterministic_displacements(n_states, length) % n_states
    run = reduced_walk.descend(
        displacements, np.ones(1), n_states=n_states, position_norm_sq=500.5, eta=1.0, eps=EPS, steps=50
    )
    assert len(run) == 51
    for state in run:
        assert np.array_equal(state.profile, np.full(n_states, state.profile[0]))
        attention = reduced_walk.forward(state, displacements).attention
        assert np.array_equal(attention[:-1], np.full(length - 1, attention[0]))
        assert reduced_walk.accuracy(state, displacements, np.ones(1)) == 1 / n_states
    assert run[-1].profile[0] > EPS  # it does move, along the flat direction


def test_the_first_step_is_the_closed_form():
    n_states, length, eta = 6, 9, 0.7
    for p in (0.3, 0.5, 1.0):
        paths, weights = population(n_states, p, length)
        run = reduced_walk.descend(
            reduced_walk.displacements(paths, n_states),
            weights,
            n_states=n_states,
            position_norm_sq=20.0,
            eta=eta,
            eps=EPS,
            steps=1,
        )
        expected = eta / (EPS * length * n_states) * first_step_profile(n_states, p, length)[1]
        np.testing.assert_allclose(run[1].profile, expected, rtol=1e-12)
        assert run[1].token_logit == 0
        assert not run[1].position_logits.any()


def test_at_the_trap_the_score_grows_as_gradient_flow_says():
    # z + eps = sqrt(eps^2 + 2 eta t / K^2) in the limit of small steps and of no attention on the empty
    # query position. It has at most 1 / 97, which slows z by at most twice that; steps add less: 3 percent.
    n_states, length, eta, steps = 6, 97, 0.01, 2_000
    displacements = reduced_walk.deterministic_displacements(n_states, length)
    run = reduced_walk.descend(
        displacements, np.ones(1), n_states=n_states, position_norm_sq=500.5, eta=eta, eps=EPS, steps=steps
    )
    for t in (100, 500, 1_000, 2_000):
        score = reduced_walk.forward(run[t], displacements).scores[0, 0]
        assert score + EPS == pytest.approx(np.sqrt(EPS**2 + 2 * eta * t / n_states**2), rel=0.03)


def test_descent_can_be_taken_up_again():
    paths, weights = population(5, 0.3, 6)
    settings = {"n_states": 5, "position_norm_sq": 6.0, "eta": 1.0, "eps": EPS}
    displacements = reduced_walk.displacements(paths, 5)
    whole = reduced_walk.descend(displacements, weights, steps=9, **settings)
    first = reduced_walk.descend(displacements, weights, steps=4, **settings)
    second = reduced_walk.descend(displacements, weights, steps=5, start=first[-1], **settings)
    assert second[0] is first[-1]
    assert second[-1].step == 9
    assert np.array_equal(second[-1].profile, whole[-1].profile)
    assert np.array_equal(second[-1].position_logits, whole[-1].position_logits)


def test_displacements_and_matrices_by_a_loop():
    tokens = np.random.default_rng(0).integers(7, size=(4, 6))
    found = reduced_walk.displacements(tokens, 7)
    profile = np.arange(7.0)
    V = reduced_walk.value_matrix(profile)
    for row, path in enumerate(tokens):
        for t in range(5):
            assert (path[t] + found[row, t]) % 7 == path[-1]
            assert V[path[-1], path[t]] == profile[found[row, t]]


def test_bad_arguments_are_named():
    displacements = reduced_walk.deterministic_displacements(4, 6)
    good = {
        "displacements": displacements, "weights": np.ones(1), "n_states": 4, "position_norm_sq": 3.0,
        "eta": 1.0, "eps": EPS, "steps": 1,
    }  # fmt: skip
    zero = reduced_walk.zero_state(4, 6)
    for change, message in [
        ({"weights": np.array([0.5])}, "weights are 1 numbers adding up to 0.5, expected 1 probabilities"),
        ({"weights": np.array([np.nan])}, "weights are 1 numbers adding up to nan"),
        ({"n_states": 3}, "displacements run from 0 to 3, expected 0 to 2"),
        (
            {"displacements": displacements[:0], "weights": np.ones(0)},
            "displacements are 0 paths of 5 tokens, expected at least one",
        ),
        ({"start": reduced_walk.zero_state(4, 5)}, "start has 4 states and 5 positions, expected 4 and 6"),
        ({"eps": 0.0}, "eps is 0.0, expected above 0"),
        ({"eta": np.nan}, "eta is nan, expected above 0"),
        ({"position_norm_sq": -1.0}, "position_norm_sq is -1.0, expected above 0"),
        ({"steps": -1}, "steps is -1, expected at least 0"),
        ({"start": replace(zero, profile=-np.ones(4))}, "at step 0 a label's score is -0.833, at or below"),
        ({"start": replace(zero, profile=np.full(4, np.nan))}, "at step 0 a label's score is nan"),
    ]:
        with pytest.raises(ValueError, match=message.replace(".", r"\.")):
            reduced_walk.descend(**(good | change))
    with pytest.raises(ValueError, match="length is 1, expected at least 2"):
        reduced_walk.deterministic_displacements(4, 1)
