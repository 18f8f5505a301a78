"""Compiled kernels at their edges: every small shape, what is no ordinary number, and what would not fit."""

import math

import pytest
import torch
import torch.nn.functional as F

from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.models.fast.fused_layer import attention_layer_fused
from mechmarkov.models.fast.fused_norm import norm_fused
from mechmarkov.models.fast.relu_mlp import relu_mlp_fused
from mechmarkov.models.fast.token_rows import reach
from mechmarkov.sources.sampling.compiled_walk import fill_by_counts_compiled, walk_compiled

SHAPES = [(d, n, 1, 1) for d in (1, 3, 5) for n in (1, 2, 3)] + [(3, 3, 1, 33), (1, 5, 2, 33)]
# Heads of another width are compiled anew, for half a minute.
SHAPES += [pytest.param(17, n, 1, heads, marks=pytest.mark.system) for n, heads in ((1, 1), (2, 1), (3, 33))]


def drawn(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def explicit(q, k, v, scale, window=None):
    allowed = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    if window is not None:
        allowed = allowed.triu(-min(window, q.shape[-2]))
    return (q @ k.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def layer(x, value_input, weights, biases, scale, window=None):
    made = [
        torch.einsum("mbpi,mhid->mbhpd", y, W) + b[:, None, :, None]
        for y, W, b in zip((x, x, value_input), weights[:3], biases[:3], strict=True)
    ]
    written = torch.einsum("mbhpd,mhdi->mbpi", explicit(*made, scale, window), weights[3])
    return written + biases[3][:, None, None]


def mlp(x, W_in, b_in, W_out, b_out):
    return (x @ W_in + b_in[:, None]).relu() @ W_out + b_out[:, None]


def norm(x, w, b, eps, centred):
    if centred:
        return F.layer_norm(x, x.shape[-1:], eps=eps) * w[:, None] + b[:, None]
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w[:, None] + b[:, None]


def flat(arguments):
    """The tensors among arguments, those of tuples too."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from argument
        elif isinstance(argument, torch.Tensor):
            yield argument


def leaves_of(arguments, dtype):
    """The same arguments as leaves of another type."""
    made = {id(x): x.detach().to(dtype).requires_grad_() for x in flat(arguments)}
    return [tuple(made[id(x)] for x in a) if isinstance(a, tuple) else made.get(id(a), a) for a in arguments]


def with_gradients(function, arguments, dtype):
    leaves = leaves_of(arguments, dtype)
    out = function(*leaves)
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [out, *torch.autograd.grad(out, list(dict.fromkeys(flat(leaves))), slopes)]


def assert_alike(kernel, plain, arguments):
    """Value and gradients, to float32's rounding of the largest."""
    found = with_gradients(kernel, arguments, torch.float32)
    for ours, theirs in zip(found, with_gradients(plain, arguments, torch.float64), strict=True):
        scale = max(1.0, theirs.detach().abs().max().item())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=6e-5 * scale)


def of_attention(d, n, batch, heads, models=2):
    return drawn(*[(models, batch, heads, n, d)] * 3)


def of_layer(d, n, batch, heads, models=2, d_model=6):
    into, own = (models, heads, d_model, d), (models, heads, d)
    x, value_input, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O = drawn(
        *[(models, batch, n, d_model)] * 2,
        *[into] * 3,
        (models, heads, d, d_model),
        *[own] * 3,
        (models, d_model),
    )
    return x, value_input, (W_Q, W_K, W_V, W_O), (b_Q, b_K, b_V, b_O)


@pytest.mark.parametrize(("d", "n", "batch", "heads"), SHAPES)
def test_attention_of_every_small_shape(d, n, batch, heads):
    for window in (None, 0, 1):
        assert_alike(attend_fused, explicit, (*of_attention(d, n, batch, heads), d**-0.5, window))


@pytest.mark.parametrize(("d", "n", "batch", "heads"), SHAPES)
def test_a_layer_of_every_small_shape(d, n, batch, heads):
    x, value_input, *rest = of_layer(d, n, batch, heads)
    for of_values in (x, value_input):
        assert_alike(attention_layer_fused, layer, (x, of_values, *rest, d**-0.5, None))


@pytest.mark.parametrize(("d_model", "d_mlp", "n"), [(1, 1, 1), (3, 5, 2), (17, 33, 3), (5, 3, 257)])
def test_an_mlp_of_every_small_shape(d_model, d_mlp, n):
    shapes = (2, n, d_model), (2, d_model, d_mlp), (2, d_mlp), (2, d_mlp, d_model), (2, d_model)
    assert_alike(relu_mlp_fused, mlp, drawn(*shapes))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("d", "n"), [(2, 1), (3, 2), (17, 3), (5, 257)])
def test_a_norm_of_every_small_shape(d, n, centred):
    assert_alike(norm_fused, norm, (*drawn((2, n, d), (2, d), (2, d)), 1e-5, centred))


@pytest.mark.parametrize("window", [31, 32, 33, 62, 63, 100])
def test_a_window_of_any_size_is_a_window(window):
    """Kernels count in 32 bits, in which two to the power of 32 is nothing."""
    q, k, v = of_attention(3, 5, 1, 2)
    for far in ((1 << window) - 1, 1 << window, (1 << window) + 3):
        assert torch.equal(attend_fused(q, k, v, 1.0, far), attend_fused(q, k, v, 1.0))
        assert reach(far, 5) == 5
    x, value_input, weights, biases = of_layer(3, 5, 1, 2)
    far = attention_layer_fused(x, value_input, weights, biases, 1.0, 1 << window)
    assert torch.equal(far, attention_layer_fused(x, value_input, weights, biases, 1.0))
    with pytest.raises(ValueError, match=r"^window is -1, expected at least 0$"):
        attend_fused(q, k, v, 1.0, -1)


def is_nan(function, *arguments):
    return [x.isnan() for x in with_gradients(function, arguments, torch.float32)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_no_number_shows_where_torch_shows_it(which, bad):
    """A key that is infinitely far away gets no attention from some queries, and all from others."""
    given = of_attention(3, 7, 2, 2)
    given[which][0, 1, 0, 4, 1] = bad
    ours, theirs = attend_fused(*given, 0.5), explicit(*given, 0.5)
    assert torch.equal(ours.isfinite(), theirs.isfinite())
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_shows_in_an_mlp_and_a_norm_where_torch_shows_it(bad):
    x, W_in, b_in, W_out, b_out = drawn((2, 7, 3), (2, 3, 5), (2, 5), (2, 5, 3), (2, 3))
    x[0, 4, 1] = bad
    for kernel, plain, rest in (
        (relu_mlp_fused, mlp, (W_in, b_in, W_out, b_out)),
        (norm_fused, norm, (b_out, b_out, 1e-5, True)),
        (norm_fused, norm, (b_out, b_out, 1e-5, False)),
    ):
        ours, theirs = kernel(x, *rest), plain(x, *rest)
        assert torch.equal(ours.isnan(), theirs.isnan()), kernel
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_denormal_numbers_are_numbers():
    """Of 1e-40: what is left of float32's digits is some forty steps of 1.4e-45."""
    q, k, v = of_attention(3, 7, 2, 2)
    small = v * 1e-40
    assert small.abs().max() < torch.finfo(torch.float32).tiny
    exact = [x.double() for x in (q, k, small)]
    found, expected = attend_fused(q, k, small, 0.5), explicit(*exact, 0.5)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-43)
    assert found.abs().max() > 1e-41
    tiny = attend_fused(q * 1e-40, k, v, 0.5)
    torch.testing.assert_close(tiny, explicit(0 * q, k, v, 0.5), rtol=1e-5, atol=1e-6)
    x, W_in, b_in, W_out, b_out = drawn((2, 7, 3), (2, 3, 5), (2, 5), (2, 5, 3), (2, 3))
    given = x * 1e-40, W_in, 0 * b_in, W_out, 0 * b_out
    torch.testing.assert_close(
        relu_mlp_fused(*given).double(), mlp(*(y.double() for y in given)), rtol=0, atol=1e-42
    )
    assert torch.equal(norm_fused(x * 1e-40, b_out, b_out, 1e-5, True), b_out[:, None].expand(2, 7, 3))


def test_what_would_be_read_beyond_is_refused():
    q, k, v = of_attention(3, 5, 1, 2)
    shorter = (
        r"^k is torch.float32 of shape \[2, 1, 2, 4, 3\] on cpu, expected .* of shape \[2, 1, 2, 5, 3\] on"
    )
    with pytest.raises(ValueError, match=shorter):
        attend_fused(q, k[..., :4, :], v, 1.0)
    with pytest.raises(ValueError, match=r"^v is torch.float64 of shape"):
        attend_fused(q, k, v.double(), 1.0)
    x, value_input, weights, biases = of_layer(3, 5, 1, 2)
    for name, place in (("W_Q", 0), ("W_V", 2), ("W_O", 3)):
        fewer = tuple(w[..., :-1] if i == place else w for i, w in enumerate(weights))
        with pytest.raises(ValueError, match=f"^{'W_K' if name == 'W_Q' else name} is "):
            attention_layer_fused(x, value_input, fewer, biases, 1.0)
    with pytest.raises(ValueError, match=r"^b_O is "):
        attention_layer_fused(x, value_input, weights, (*biases[:3], biases[3][:, :-1]), 1.0)
    with pytest.raises(ValueError, match=r"^value_input is "):
        attention_layer_fused(x, value_input[:, :, :-1], weights, biases, 1.0)
    x, W_in, b_in, W_out, b_out = drawn((2, 7, 3), (2, 3, 5), (2, 5), (2, 5, 3), (2, 3))
    for number, name in enumerate(("W_in", "b_in", "W_out", "b_out")):
        given = [W_in, b_in, W_out, b_out]
        given[number] = given[number][:1]  # of one model for two
        with pytest.raises(ValueError, match=f"^{name} is "):
            relu_mlp_fused(x, *given)
    with pytest.raises(ValueError, match=r"^w is "):
        norm_fused(x, b_in, b_out, 1e-5, True)


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
