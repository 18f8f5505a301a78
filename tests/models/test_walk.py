"""The walk model against a numpy implementation of the paper's formula, in forward and gradient."""

import numpy as np
import pytest
import torch

from mechmarkov.models.constructions.walk import (
    WalkModel,
    WalkShape,
    position_table,
    small_u,
    walk_decoder_config,
    walk_frozen_state,
    walk_trainable,
    walk_trained_state,
)
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective

EPS = 0.1
SHAPES = [
    WalkShape(n_states=5, n_ctx=7, n_positions=11, positions="one_hot"),
    WalkShape(n_states=5, n_ctx=7, n_positions=11, positions="sine"),
    WalkShape(n_states=5, n_ctx=7, n_positions=11, positions="one_hot", unit_columns=True),
    WalkShape(n_states=5, n_ctx=7, n_positions=11, positions="sine", unit_columns=True),
]


def numpy_positions(shape):
    """Columns p_1 … p_N."""
    if shape.positions == "one_hot":
        return np.sqrt((shape.n_positions + 1) / 2) * np.eye(shape.n_ctx)
    return np.array(
        [
            [np.sin(i * j * np.pi / (shape.n_positions + 1)) for i in range(1, shape.n_ctx + 1)]
            for j in range(1, shape.n_positions + 1)
        ]
    )


def numpy_walk(states, labels, V, W, shape):
    """f, the mean loss -log(f_y + eps) and its gradients in V and W, one sequence at a time."""
    K, N = shape.n_states, shape.n_ctx
    P = numpy_positions(shape)
    scores, loss, dV, dW = [], 0.0, np.zeros_like(V), np.zeros_like(W)
    for walk, y in zip(states, labels, strict=True):
        X = np.zeros((K, N))
        for i, s in enumerate(walk):
            X[s, i] = 1.0
        Xt = np.concatenate([X, P])
        if shape.unit_columns:
            Xt = Xt / np.linalg.norm(Xt, axis=0)
        logits = Xt.T @ W @ Xt[:, -1]
        S = np.exp(logits - logits.max())
        S /= S.sum()
        f = V @ X @ S
        scores.append(f)
        loss += -np.log(f[y] + EPS) / len(labels)
        df = np.zeros(K)
        df[y] = -1 / (f[y] + EPS) / len(labels)
        dV += np.outer(df, X @ S)
        dS = X.T @ V.T @ df
        dlogits = S * (dS - S @ dS)
        dW += np.outer(Xt @ dlogits, Xt[:, -1])
    return np.array(scores), loss, dV, dW


def problem(shape):
    rng = np.random.default_rng(0)
    states = rng.integers(0, shape.n_states, (9, shape.n_ctx - 1))
    labels = rng.integers(0, shape.n_states, 9)
    V = rng.uniform(0.1, 1.0, (shape.n_states, shape.n_states))
    W = 0.05 * rng.normal(size=(shape.width, shape.width))
    query = np.full((9, 1), shape.n_states)
    tokens = torch.from_numpy(np.concatenate([states, query], 1))
    return states, labels, V, W, tokens


def u_of(W, shape):
    p_N = numpy_positions(shape)[:, -1]
    return W @ np.concatenate([np.zeros(shape.n_states), p_N]) / np.linalg.norm(p_N)


def load_small(model, V, u):
    """Take `V` and `u` as the weights (full form: the `W` of least norm with `W x~_N = |p_N| u`)."""
    with torch.no_grad():
        model.V.copy_(V)
        if model.form == "small":
            model.u.copy_(u)
        else:
            direction = model.positions[-1] / model.shape.norm
            model.W.zero_()
            model.W[..., model.shape.n_states :] = u[..., :, None] * direction
    return model


def mean_loss(scores, labels):
    objective = Objective(kind="raw_log", eps=EPS, read="last", query=True)
    return objective.loss(scores, torch.from_numpy(labels)).mean()


@pytest.fixture(params=SHAPES, ids=lambda s: s.positions + ", unit columns" * s.unit_columns)
def shape(request):
    return request.param


def test_positions_are_orthogonal_and_of_the_stated_length(shape):
    table, expected = position_table(shape).numpy(), numpy_positions(shape).T
    squares = np.full(shape.n_ctx, (shape.n_positions + 1) / 2)
    if shape.unit_columns:  # a token of length one shares its column with the position
        shared = np.append(1 + squares[:-1], squares[-1])
        expected, squares = expected / np.sqrt(shared)[:, None], squares / shared
    np.testing.assert_allclose(table, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(table @ table.T, np.diag(squares), atol=1e-12)


def test_numpy_gradient_is_the_finite_difference(shape):
    states, labels, V, W, _ = problem(shape)
    _, _, dV, dW = numpy_walk(states, labels, V, W, shape)
    rng = np.random.default_rng(1)
    h = 1e-6
    for _ in range(5):
        V1, W1 = rng.normal(size=V.shape), rng.normal(size=W.shape)
        up = numpy_walk(states, labels, V + h * V1, W + h * W1, shape)[1]
        down = numpy_walk(states, labels, V - h * V1, W - h * W1, shape)[1]
        assert (up - down) / (2 * h) == pytest.approx((dV * V1).sum() + (dW * W1).sum(), rel=1e-6)


def test_full_form_is_the_formula(shape):
    states, labels, V, W, tokens = problem(shape)
    scores, loss, dV, dW = numpy_walk(states, labels, V, W, shape)
    model = WalkModel(shape, "full", dtype=torch.float64)
    with torch.no_grad():
        model.V.copy_(torch.from_numpy(V))
        model.W.copy_(torch.from_numpy(W))
    out = model(tokens)
    value = mean_loss(out, labels)
    value.backward()
    np.testing.assert_allclose(out.detach().numpy(), scores, rtol=1e-10)
    assert value.item() == pytest.approx(loss, rel=1e-10)
    np.testing.assert_allclose(model.V.grad.numpy(), dV, rtol=1e-10, atol=1e-10 * abs(dV).max())
    np.testing.assert_allclose(model.W.grad.numpy(), dW, rtol=1e-10, atol=1e-10 * abs(dW).max())


def test_small_form_is_the_formula_and_a_step_on_u_is_a_step_on_w(shape):
    states, labels, V, W, tokens = problem(shape)
    scores, _, dV, dW = numpy_walk(states, labels, V, W, shape)
    u = u_of(W, shape)
    model = WalkModel(shape, "small", dtype=torch.float64)
    load_small(model, torch.from_numpy(V), torch.from_numpy(u))
    out = model(tokens)
    mean_loss(out, labels).backward()
    np.testing.assert_allclose(out.detach().numpy(), scores, rtol=1e-10)
    np.testing.assert_allclose(model.V.grad.numpy(), dV, rtol=1e-10, atol=1e-10 * abs(dV).max())
    lr = 0.3
    after = u - lr * model.u.grad.numpy()
    np.testing.assert_allclose(after, u_of(W - lr * dW, shape), rtol=1e-10, atol=1e-12)


def exported(model):
    """A walk model as the state dict of `HookedDecoder(walk_decoder_config(shape), n_models)`."""
    V = model.V.detach()
    frozen = walk_frozen_state(model.shape, V.dtype)
    frozen = {name: x.expand(*V.shape[:-2], *x.shape) for name, x in frozen.items()}
    return walk_trained_state(V, small_u(model)) | frozen


def test_the_decoder_is_the_formula(shape):
    states, labels, V, W, tokens = problem(shape)
    scores, _, dV, dW = numpy_walk(states, labels, V, W, shape)
    u = u_of(W, shape)
    model = WalkModel(shape, "small", dtype=torch.float64)
    load_small(model, torch.from_numpy(V), torch.from_numpy(u))
    decoder = HookedDecoder(walk_decoder_config(shape)).double()
    decoder.load_state_dict(exported(model), strict=True)
    W_K, W_O = decoder.blocks[0].attn.W_K, decoder.blocks[0].attn.W_O
    assert torch.equal(W_K[0, :, 0], model.u)
    assert torch.equal(W_O[0, :, : shape.n_states], model.V.mT)
    out = decoder(tokens)[:, -1]
    mean_loss(out, labels).backward()
    np.testing.assert_allclose(out.detach().numpy(), scores, rtol=1e-10)
    p_N = numpy_positions(shape)[:, -1]
    du = dW[:, shape.n_states :] @ p_N / np.linalg.norm(p_N)
    np.testing.assert_allclose(W_K.grad[0, :, 0].numpy(), du, rtol=1e-10, atol=1e-10 * abs(du).max())
    np.testing.assert_allclose(
        W_O.grad[0, :, : shape.n_states].numpy(), dV.T, rtol=1e-10, atol=1e-10 * abs(dV).max()
    )


def test_the_full_form_exports_what_acts(shape):
    states, labels, V, W, tokens = problem(shape)
    scores = numpy_walk(states, labels, V, W, shape)[0]
    model = WalkModel(shape, "full", n_models=2, dtype=torch.float64)
    with torch.no_grad():
        model.V.copy_(torch.from_numpy(np.stack([V, 2 * V])))
        model.W.copy_(torch.from_numpy(W))
    decoder = HookedDecoder(walk_decoder_config(shape), n_models=2).double()
    decoder.load_state_dict(exported(model), strict=True)
    with torch.no_grad():
        out = decoder(tokens)[:, :, -1].numpy()
    np.testing.assert_allclose(out[0], scores, rtol=1e-10)
    np.testing.assert_allclose(out[1], 2 * scores, rtol=1e-10)


def test_at_zero_every_token_and_the_query_have_attention_one_nth(shape):
    _, _, _, _, tokens = problem(shape)
    _, attention = (model := WalkModel(shape)).run(model.one_hot(tokens))
    assert torch.equal(attention, torch.full_like(attention, 1 / shape.n_ctx))


def test_a_stack_is_its_members(shape):
    _, _, V, W, tokens = problem(shape)
    rng = np.random.default_rng(3)
    V3 = torch.from_numpy(V * rng.uniform(0.5, 1, (3, 1, 1)))
    u3 = torch.from_numpy(u_of(W, shape) * rng.uniform(0.5, 1, (3, 1)))
    own = torch.stack([tokens, tokens.flip(0), tokens])
    for form in ("small", "full"):
        stack = load_small(WalkModel(shape, form, n_models=3, dtype=torch.float64), V3, u3)
        together = stack(own)
        together.sum().backward()
        for i in range(3):
            member = load_small(WalkModel(shape, form, dtype=torch.float64), V3[i], u3[i])
            alone = member(own[i])
            alone.sum().backward()
            torch.testing.assert_close(together[i], alone, rtol=1e-12, atol=1e-12)
            for name, parameter in member.named_parameters():
                torch.testing.assert_close(
                    stack.get_parameter(name).grad[i], parameter.grad, rtol=1e-10, atol=1e-12
                )


def test_frozen_and_trained_tensors_are_the_decoders(shape):
    config = walk_decoder_config(shape)
    names = {name: tuple(tensor.shape) for name, tensor in HookedDecoder(config).state_dict().items()}
    state = exported(WalkModel(shape))
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == names
    assert set(walk_frozen_state(shape)) | set(walk_trainable(shape)) == set(names)
    for name, spec in walk_trainable(shape).items():
        assert all(0 <= start < stop <= size for (start, stop), size in zip(spec, names[name], strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_states": 1}, "n_states is 1, expected at least 2"),
        ({"n_ctx": 1}, "n_ctx is 1, expected at least 2"),
        ({"positions": "sine", "n_positions": 5}, "n_positions is 5, expected at least n_ctx = 7"),
    ],
)
def test_bad_shapes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        WalkShape(**({"n_states": 5, "n_ctx": 7, "n_positions": 11} | change))
