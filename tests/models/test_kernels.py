"""Compiled kernels against torch's plain operations in float64: every kernel, every shape, one oracle."""

import math
from itertools import product

import pytest
import torch
from decoder_cases import config_of, decoder_of, nodes, tokens_of
from einops import einsum
from torch import Tensor

from mechmarkov.models import DecoderConfig, HookedDecoder, initialise
from mechmarkov.models.fast.choose import attention_for
from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.models.fast.fused_layer import attention_layer_fused
from mechmarkov.models.fast.fused_norm import layer_norm, norm_fused
from mechmarkov.models.fast.panels import TOKENS
from mechmarkov.models.fast.relu_mlp import relu_mlp_fused
from mechmarkov.models.kernels import LEAST_PAIRS, fast_attention, kernels_of, use_fast_kernels


def attention(q, k, v, scale, window=None):
    allowed = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    if window is not None:
        allowed = allowed.triu(-window)
    return (q @ k.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def layer(x, values, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O, scale, window=None):
    made = (
        einsum(y, w, "m b p i, m h i o -> m b h p o") + b[:, None, :, None]
        for y, w, b in ((x, W_Q, b_Q), (x, W_K, b_K), (values, W_V, b_V))
    )
    return einsum(attention(*made, scale, window), W_O, "m b h p i, m h i o -> m b p o") + b_O[:, None, None]


def layer_kernel(x, values, *rest):
    return attention_layer_fused(x, values, rest[:4], rest[4:8], *rest[8:])


def one_input(compute):
    """A layer whose values are made of what queries are made of."""
    return lambda x, *rest: compute(x, x, *rest)


def mlp(x, W_in, b_in, W_out, b_out):
    return (x @ W_in + b_in[:, None]).relu() @ W_out + b_out[:, None]


def norm(x, w, b, eps, centred):
    if centred:
        x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * w[:, None] + b[:, None]


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Numbers, with the second last axis last in memory as a stack leaves it."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(s, generator=generator).mT.contiguous().mT
        if len(s) > 2
        else torch.randn(s, generator=generator)
        for s in shapes
    ]


def attention_case(d, length, batch=2, heads=2, window=None, models=2):
    return attend_fused, attention, [*drawn(*[(models, batch, heads, length, d)] * 3), d**-0.5, window]


def layer_case(d, length, batch=2, heads=2, window=None, d_model=6, separate=False, models=2):
    into = [(models, heads, d_model, d)] * 3 + [(models, heads, d, d_model)]
    shapes = [(models, batch, length, d_model)] * (1 + separate) + into
    given = drawn(*shapes, *[(models, heads, d)] * 3, (models, d_model))
    functions = (layer_kernel, layer) if separate else (one_input(layer_kernel), one_input(layer))
    return *functions, [*given, d**-0.5, window]


def mlp_case(d_model, hidden, tokens):
    shapes = (2, tokens, d_model), (2, d_model, hidden), (2, hidden), (2, hidden, d_model), (2, d_model)
    return relu_mlp_fused, mlp, drawn(*shapes)


def norm_case(d, tokens, centred, kernel=norm_fused):
    return kernel, norm, [*drawn((2, tokens, d), (2, d), (2, d)), 1e-2, centred]


def with_gradients(function, arguments, dtype=torch.float32):
    """The value, and the gradients of a weighted sum of it."""
    given = [x.detach().to(dtype).requires_grad_() if isinstance(x, Tensor) else x for x in arguments]
    out = function(*given)
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [out, *torch.autograd.grad(out, [x for x in given if isinstance(x, Tensor)], slopes)]


def assert_equal_to_the_oracle(kernel, oracle, arguments, error=6e-6):
    """To an error relative to the largest number of all: gradients of key biases are sums that cancel."""
    expected = with_gradients(oracle, arguments, torch.float64)
    scale = max(1, *(x.detach().abs().max().item() for x in expected))
    for ours, theirs in zip(with_gradients(kernel, arguments), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=error * scale)


WINDOWS = (None, 0, 1, 7, 64, 130, 1000)
SMALL = [(1, 1, 1, 1), (3, 2, 1, 1), (5, 3, 1, 33), (1, 5, 2, 33), (3, 3, 1, 33)]
WIDTHS = [(1, 1, 1), (6, 3, 2), (9, 2, 6), (16, 1, 16)]  # d_model, heads, d_head
MLPS = [(1, 1, 1), (3, 5, 2), (17, 33, 3), (4, 4, TOKENS), (8, 32, TOKENS + 1), (16, 64, 300), (9, 2, 100)]
NORMS = [(2, 1), (3, 2), (17, 3), (5, TOKENS + 1), (16, 300)]
CASES = [(attention_case, shape) for shape in SMALL]
CASES += [(attention_case, (5, n, 2, 2, w)) for n, w in product((1, 17, 64, 65, 130), WINDOWS)]
CASES += [(layer_case, shape) for shape in SMALL[:3]]
CASES += [
    (layer_case, (5, n, 3, 2, w, 5, two)) for n, w, two in product((16, 33, 130), (None, 7), (False, True))
]
CASES += [(mlp_case, shape) for shape in MLPS]
CASES += [(norm_case, (*shape, centred)) for shape, centred in product(NORMS, (True, False))]
CASES += [(norm_case, (5, 70, True, layer_norm))]
# Heads of another width are compiled anew, for some seconds.
OTHER_WIDTHS = [
    (case, (17, n, 1, heads)) for case in (attention_case, layer_case) for n, heads in ((1, 1), (3, 33))
]
OTHER_WIDTHS += [(attention_case, (d, 40)) for d in (4, 6, 12, 16)]
OTHER_WIDTHS += [(layer_case, (d, 40, 2, heads, None, d_model)) for d_model, heads, d in WIDTHS]
CASES += [pytest.param(*given, marks=pytest.mark.system) for given in OTHER_WIDTHS]
ONE_OF_EACH = [
    (attention_case, (5, 70)),
    (layer_case, (5, 70, 2, 2, None, 5)),
    (mlp_case, (5, 7, 100)),
    (norm_case, (5, 70, True)),
    (norm_case, (5, 70, False)),
]


@pytest.mark.parametrize(("case", "shape"), CASES)
def test_value_and_gradients_are_the_oracles(case, shape):
    assert_equal_to_the_oracle(*case(*shape))


@pytest.mark.parametrize(("case", "shape"), ONE_OF_EACH)
def test_order_of_memory_changes_no_bit(case, shape):
    kernel, _, arguments = case(*shape)
    plain = with_gradients(kernel, arguments)
    other = [x.contiguous() if isinstance(x, Tensor) else x for x in arguments]
    assert all(torch.equal(x, y) for x, y in zip(with_gradients(kernel, other), plain, strict=True))
    by_row = plain[0].movedim(-3, 0) if kernel is attend_fused else plain[0]  # [head, model, batch, ...]
    assert by_row.mT[0].stride(-1) == 1


@pytest.mark.parametrize(("case", "shape"), ONE_OF_EACH)
def test_a_model_does_not_depend_on_others(case, shape):
    """To the last bit: in a stack as by itself."""
    kernel, _, arguments = case(*shape)
    with torch.no_grad():
        together = kernel(*arguments)
        alone = kernel(*(x[1:] if isinstance(x, Tensor) else x for x in arguments))
    assert torch.equal(alone[0], together[1])


@pytest.mark.parametrize(("case", "shape"), ONE_OF_EACH)
def test_a_second_derivative_is_refused(case, shape):
    kernel, _, (x, *rest) = case(*shape)
    x = x.requires_grad_()
    (slope,) = torch.autograd.grad(kernel(x, *rest).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("case", "shape"), [(attention_case, (3, 7)), (mlp_case, (3, 5, 7)), *ONE_OF_EACH[3:]]
)
def test_what_is_no_number_shows_as_in_torch(case, shape, bad):
    kernel, oracle, arguments = case(*shape)
    for which in range(3 if kernel is attend_fused else 1):
        given = [x.clone() if isinstance(x, Tensor) else x for x in arguments]
        given[which].select(-2, 4)[..., 1] = bad
        ours, theirs = kernel(*given), oracle(*given)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("length", [20, 140])
@pytest.mark.parametrize(
    ("case", "which"), [(attention_case, 0), (attention_case, 1), (attention_case, 2), (layer_case, 0)]
)
def test_nan_stays_in_its_sequence(case, which, length):
    """The next sequences, and the next model's, are computed in the same memory."""
    kernel, _, clean = case(5, length)
    dirty = [x.clone() if isinstance(x, Tensor) else x for x in clean]
    dirty[which][0, 1].select(-2, length - 3)[..., 2] = math.nan
    expected, found = (with_gradients(kernel, given)[:2] for given in (clean, dirty))
    assert found[0][0, 1].isnan().any()
    for one, other in zip(found, expected, strict=True):
        one[0, 1].data.copy_(other[0, 1])
        assert torch.equal(one, other)


def test_denormal_numbers_are_numbers():
    """At 1e-40: what is left of float32's digits is some forty steps of 1.4e-45."""
    q, k, v = drawn(*[(2, 2, 2, 7, 3)] * 3)
    small = attend_fused(q, k, v * 1e-40, 0.5)
    assert small.abs().max() > 1e-41
    exact = attention(*(x.double() for x in (q, k, v * 1e-40)), 0.5)
    torch.testing.assert_close(small.double(), exact, rtol=0, atol=1e-43)
    tiny = attend_fused(q * 1e-40, k, v, 0.5)
    torch.testing.assert_close(tiny, attention(0 * q, k, v, 0.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [-300.0, -60.0, -40.0, 40.0, 60.0, 300.0])
def test_large_scores_lose_no_more_digits_than_torch(shift):
    """float32 holds `exp` of 88 at most. A third of the queries have all scores shifted up, a third down."""
    q, k, v = drawn(*[(2, 3, 2, 150, 5)] * 3)
    q[..., 0], k[..., 0] = torch.arange(150.0) % 3 - 1, shift
    ours, torchs = (with_gradients(f, [q, k, v, 1.0]) for f in (attend_fused, attention))
    exact = with_gradients(attention, [q, k, v, 1.0], torch.float64)
    for one, other, true in zip(ours, torchs, exact, strict=True):
        assert (one - true).abs().max() < 10 * (other - true).abs().max()


@pytest.mark.parametrize("window", [31, 32, 33, 63, 100])
def test_a_window_beyond_the_sequence_is_none(window):
    """Kernels count in 32 bits, in which two to the power of 32 is nothing."""
    q, k, v = drawn(*[(2, 1, 2, 5, 3)] * 3)
    assert torch.equal(attend_fused(q, k, v, 1.0, 1 << window), attend_fused(q, k, v, 1.0))


def test_what_would_be_read_beyond_is_refused():
    q, k, v = drawn(*[(2, 1, 2, 5, 3)] * 3)
    with pytest.raises(ValueError, match=r"^window is -1, expected at least 0$"):
        attend_fused(q, k, v, 1.0, -1)
    with pytest.raises(ValueError, match=r"^v is torch.float64 of shape"):
        attend_fused(q, k, v.double(), 1.0)
    said = r"^k is torch.float32 of shape \[2, 1, 2, 4, 3\] on cpu, expected .*\[2, 1, 2, 5, 3\] on"
    with pytest.raises(ValueError, match=said):
        attend_fused(q, k[..., :4, :], v, 1.0)
    for case, names in (
        (layer_case(3, 5, separate=True), ("value_input", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")),
        (mlp_case(3, 5, 7), ("W_in", "b_in", "W_out", "b_out")),
        (norm_case(3, 7, True), ("w", "b")),
    ):
        kernel, _, (x, *rest) = case
        for name, at in zip(names, [i for i in range(len(rest)) if len(names) < 8 or i != 1], strict=False):
            fewer = [y[:1] if i == at else y for i, y in enumerate(rest)]  # of one model for two
            with pytest.raises(ValueError, match=f"^{name} is "):
                kernel(x, *fewer)


USED = {
    "layer": "_AttentionLayerBackward",
    "attention": "_FusedAttentionBackward",
    "mlp": "_ReluMlpBackward",
    "norm": "_NormBackward",
}


def count(kernel, output):
    return nodes(output)[USED[kernel]]


@pytest.mark.parametrize(
    ("change", "attended_by", "norms"),
    [
        ({}, "layer", 0),
        ({"window": 3}, "layer", 0),
        ({"normalization_type": "LN"}, "layer", 5),
        ({"normalization_type": "RMSPre"}, "layer", 5),
        ({"normalization_type": "LN", "norm_first": False, "final_norm": False}, "layer", 4),
        ({"positional_embedding_type": "shortformer"}, "layer", 0),
        ({"n_heads": 4, "n_key_value_heads": 2}, "layer", 0),
        ({"positional_embedding_type": "rotary", "rotary_dim": 4}, "attention", 0),
        ({"use_qk_norm": True}, "attention", 4),
        ({"positional_embedding_type": "relative"}, None, 0),
        ({"positional_embedding_type": "relative_bias"}, None, 0),
        ({"positional_embedding_type": "alibi"}, None, 0),
    ],
)
def test_training_uses_kernels_unless_something_inside_is_hooked(change, attended_by, norms):
    config = config_of("relu").model_copy(update={"n_ctx": 64, **change})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    without = model(tokens)  # logits of a few units, so 3e-5 is some roundings of float32
    use_fast_kernels(model)
    plain = model(tokens)
    torch.testing.assert_close(plain, without, rtol=1e-4, atol=3e-5)
    for name in ("layer", "attention"):
        assert count(name, plain) == 2 * (attended_by == name)
    assert (count("mlp", plain), count("norm", plain)) == (2, norms)
    looked_into = {"attn.hook_pattern": "layer", "attn.hook_z": "layer", "mlp.hook_pre": "mlp"}
    for point, kernel in (looked_into | ({"ln2.hook_scale": "norm"} if norms == 5 else {})).items():
        seen = []
        with model.hooks([(f"blocks.1.{point}", lambda x, hook, kept=seen: kept.append(x))]):
            looked_at = model(tokens)
        if kernel != "layer" or attended_by == "layer":
            assert count(kernel, looked_at) == count(kernel, plain) - 1
        torch.testing.assert_close(looked_at, plain, rtol=1e-4, atol=3e-5)
        assert len(seen) == 1
    with model.hooks([("blocks.1.hook_attn_out", lambda x, hook: x.mul_(0))]):  # in place
        assert not torch.allclose(model(tokens), plain, atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), plain, rtol=1e-4, atol=3e-5)


def test_inputs_split_by_head_go_the_general_way():
    config = config_of("relu").model_copy(update={"n_ctx": 64, "n_heads": 2})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    plain = model(tokens)
    for ask in (model.set_use_split_qkv_input, model.set_use_attn_result, model.set_use_attn_in):
        ask(True)
        split = model(tokens)
        assert count("layer", split) == 0
        torch.testing.assert_close(split, plain, rtol=1e-4, atol=1e-5)
        ask(False)
    assert count("layer", model(tokens)) == 2


def test_other_precisions_and_devices_keep_torchs_kernels():
    config = config_of("relu").model_copy(update={"n_ctx": 64, "normalization_type": "LN"})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert count("attention", model(tokens)) == 0
    assert not any(count(name, model.double()(tokens)) for name in USED)
    model.float().to("meta")
    use_fast_kernels(model)
    assert model.ln_final.fused is layer_norm
    assert all(b.attn.fused_layer is b.attn.fused is b.mlp.fused is None for b in model.blocks)


@pytest.mark.parametrize(("d_mlp", "kernel"), [(512, relu_mlp_fused), (513, None)])
def test_large_matrices_of_an_mlp_are_left_to_blas(d_mlp, kernel):
    shape = {"n_layers": 1, "d_model": 64, "n_heads": 8, "d_head": 8, "n_ctx": 32, "d_vocab": 3}
    model = HookedDecoder(DecoderConfig(**shape, d_mlp=d_mlp, act_fn="relu"), n_models=2)
    use_fast_kernels(model)
    assert model.blocks[0].mlp.fused is kernel
    assert ("relu_mlp_fused" in kernels_of(model)) is (kernel is not None)


def test_attention_is_for_small_heads_and_many_positions():
    shape = {"n_layers": 1, "d_model": 16, "d_head": 8, "n_heads": 1, "n_ctx": 64, "d_vocab": 3}

    def chosen(device="cpu", **fields):
        return attention_for(DecoderConfig(**shape | fields, attn_only=True), device) is attend_fused

    assert all(chosen(**fields) for fields in ({}, {"d_head": 16}, {"window": 4}))
    kinds = ("relative", "relative_bias", "alibi")
    by_lag = [{"positional_embedding_type": kind} for kind in kinds]
    refused = ({"n_ctx": 16}, {"d_head": 32, "n_ctx": 256}, *by_lag)
    assert not any(chosen(**fields) for fields in (*refused, {"device": "cuda"}))


@pytest.mark.parametrize("change", [{}, {"tied": True}, {"d_vocab": 3}])
def test_a_small_vocabulary_is_embedded_by_a_product(change):
    shape = {"n_layers": 1, "d_model": 8, "d_head": 8, "n_ctx": 256, "d_vocab": 2, "attn_only": True}
    model = HookedDecoder(DecoderConfig(**shape | change, normalization_type=None), n_models=3).double()
    initialise(model, range(3), std=0.5)
    last = model.config.d_vocab - 1
    tokens = torch.randint(last + 1, (3, 10, 7), generator=torch.Generator().manual_seed(3))

    def gradients():
        return torch.autograd.grad(model(tokens).square().sum(), list(model.parameters()))

    looked_up, expected = model.embed(tokens), gradients()
    model.embed.one_hot = True
    assert torch.equal(model.embed(tokens), looked_up)
    assert model.embed(tokens).grad_fn.name() != looked_up.grad_fn.name()
    for one, other in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    for wrong in (-1, last + 1):
        tokens[..., 3] = wrong
        with pytest.raises(IndexError, match=rf"tokens go from .*{wrong}.*, expected 0 to {last}"):
            model.embed(tokens)


@torch.no_grad()
@pytest.mark.parametrize("case", ["plain", "gelu and LN", "shortformer"])
def test_long_passes_attend_faster_and_alike(case):
    config = config_of(case).model_copy(update={"n_ctx": 256})
    model = decoder_of(config, n_models=2)
    most = math.ceil(LEAST_PAIRS / (2 * config.n_heads * 256**2))
    many = torch.randint(config.d_vocab, (most, 256), generator=torch.Generator().manual_seed(0))
    without = model(many)
    with fast_attention(model, many):
        assert "attend_fused" in kernels_of(model)
        torch.testing.assert_close(model(many), without, rtol=1e-4, atol=1e-5)
        with fast_attention(model, many[:1]):  # inside another
            assert "attend_fused" in kernels_of(model)
    for few, one in ((many[:-1], model), (many, model[0])):
        with fast_attention(one, few):
            assert kernels_of(one) == "torch"
    assert kernels_of(model) == "torch"
