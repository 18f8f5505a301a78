"""Compiled layers of attention against explicit sums in float64, and where they are used."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, nodes, tokens_of
from einops import einsum

from mechmarkov.models.fast.fused_layer import attention_layer_fused
from mechmarkov.models.fast.use import use_fast_kernels

NODE, OTHER = "_AttentionLayerBackward", "_FusedAttentionBackward"


def inputs(length, d_model=5, heads=2, d_head=5, models=2, batch=3, separate=False, seed=0):
    """What queries and keys are made of, what values are made of, four weights and four biases."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(models, d_model, batch, length)] * (1 + separate)
    shapes += [(models, heads, d_model, d_head)] * 3 + [(models, heads, d_head, d_model)]
    shapes += [(models, heads, d_head)] * 3 + [(models, d_model)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    drawn[: 1 + separate] = [x.movedim(1, -1) for x in drawn[: 1 + separate]]
    drawn[-8:-4] = [w * w.shape[-2] ** -0.5 for w in drawn[-8:-4]]
    return [x.requires_grad_() for x in drawn]


def fused(leaves, scale=0.4, window=None):
    *given, weights, biases = leaves[:-8], tuple(leaves[-8:-4]), tuple(leaves[-4:])
    x = given[0]
    return attention_layer_fused(x[0], x[-1], weights, biases, scale, window)


def explicit(leaves, scale=0.4, window=None):
    *given, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O = leaves
    q, k, v = (
        einsum(x, w, "m b p i, m h i o -> m b h p o") + b[:, None, :, None]
        for x, w, b in ((given[0], W_Q, b_Q), (given[0], W_K, b_K), (given[-1], W_V, b_V))
    )
    allowed = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    if window is not None:
        allowed = allowed.triu(-window)
    pattern = (q @ k.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1)
    return einsum(pattern @ v, W_O, "m b h p i, m h i o -> m b p o") + b_O[:, None, None]


def with_gradients(layer, leaves, **arguments):
    out = layer(leaves, **arguments)
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, slopes)]


def assert_close(leaves, **arguments):
    """To a few roundings of the largest number of all: gradients of key biases are sums that cancel."""
    exact = [x.detach().double().requires_grad_() for x in leaves]
    expected = with_gradients(explicit, exact, **arguments)
    scale = max(x.detach().abs().max() for x in expected)
    for ours, theirs in zip(with_gradients(fused, leaves, **arguments), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("window", [None, 0, 7, 64])
@pytest.mark.parametrize("length", [1, 16, 17, 33, 130])
def test_value_and_gradients(length, window, separate):
    """One register of queries or several, the last whole or not; values of the same tensor or another."""
    assert_close(inputs(length, separate=separate), window=window)


@pytest.mark.parametrize(("d_model", "heads", "d_head"), [(1, 1, 1), (6, 3, 2), (9, 2, 6), (16, 1, 16)])
def test_any_width(d_model, heads, d_head):
    assert_close(inputs(40, d_model, heads, d_head, separate=d_model == 6))


def test_any_order_of_memory():
    leaves = inputs(40)
    plain = with_gradients(fused, leaves)
    other = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in leaves]
    for one, expected in zip(with_gradients(fused, other), plain, strict=True):
        assert torch.equal(one, expected)
    for x in plain[:2]:
        assert x.movedim(-1, 1).is_contiguous()


def test_scores_too_large_for_float32_are_shifted():
    leaves = inputs(100)
    with torch.no_grad():
        leaves[1].mul_(60)
        leaves[2].mul_(60)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    true, plain = with_gradients(explicit, exact), with_gradients(explicit, leaves)
    ours, torchs = (
        max((x - y).abs().max() for x, y in zip(found, true, strict=True))
        for found in (with_gradients(fused, leaves), plain)
    )
    assert ours < 10 * torchs


def test_a_sequence_does_not_depend_on_others():
    """To the last bit: alone, in a batch, in a stack."""
    leaves = inputs(70)
    together = with_gradients(fused, leaves)[:2]
    slopes = torch.randn(together[0].shape, generator=torch.Generator().manual_seed(1))
    own = [x.detach()[1:].requires_grad_() for x in leaves]
    x = own[0].detach()[:, 2:].requires_grad_()
    out = fused([x, *own[1:]])
    (d_x,) = torch.autograd.grad(out, x, slopes[1:, 2:])
    assert torch.equal(out[0, 0], together[0][1, 2])
    assert torch.equal(d_x[0, 0], together[1][1, 2])


@pytest.mark.parametrize("length", [20, 140])
def test_nan_stays_in_its_sequence(length):
    """The next sequences, and the next model's, are computed in the same memory."""
    clean = inputs(length)
    dirty = [x.detach().clone().requires_grad_() for x in clean]
    with torch.no_grad():
        dirty[0][0, 1, length - 3, 2] = torch.nan
    (expected, slope, *others), (found, d_x, *gradients) = (with_gradients(fused, x) for x in (clean, dirty))
    assert found[0, 1, length - 3].isnan().all()
    for one, other in ((found, expected), (d_x, slope)):
        untouched = one.clone()
        untouched[0, 1] = other[0, 1]
        assert torch.equal(untouched, other)
    for one, other in zip(gradients, others, strict=True):
        assert torch.equal(one[1], other[1])


def test_a_second_derivative_is_refused():
    leaves = inputs(10)
    (slope,) = torch.autograd.grad(fused(leaves).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"window": 3},
        {"normalization_type": "LN"},
        {"positional_embedding_type": "shortformer"},
        {"n_heads": 4, "n_key_value_heads": 2},
    ],
)
def test_training_uses_it_unless_something_inside_is_hooked(change):
    config = config_of("relu").model_copy(update={"n_ctx": 64, **change})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    without = model(tokens)
    use_fast_kernels(model)
    plain = model(tokens)
    assert nodes(plain)[NODE] == config.n_layers
    torch.testing.assert_close(plain, without, rtol=1e-4, atol=1e-5)
    for name, kind in (("z", OTHER), ("q", OTHER), ("pattern", None)):
        seen = []
        with model.hooks([(f"blocks.1.attn.hook_{name}", lambda x, hook, kept=seen: kept.append(x))]):
            looked_at = model(tokens)
        found = nodes(looked_at)
        assert (found[NODE], found[OTHER]) == (config.n_layers - 1, int(kind is OTHER))
        torch.testing.assert_close(looked_at, plain, rtol=1e-4, atol=1e-5)
        assert len(seen) == 1
    with model.hooks([("blocks.1.hook_attn_out", lambda x, hook: x.mul_(0))]):  # in place
        silent = model(tokens)
    assert nodes(silent)[NODE] == config.n_layers
    assert not torch.allclose(silent, plain, atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), plain, rtol=1e-4, atol=1e-5)


def test_inputs_split_by_head_and_results_by_head_go_the_general_way():
    config = config_of("relu").model_copy(update={"n_ctx": 64, "n_heads": 2})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    plain = model(tokens)
    for ask in (model.set_use_split_qkv_input, model.set_use_attn_result, model.set_use_attn_in):
        ask(True)
        found = model(tokens)
        assert nodes(found)[NODE] == 0
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
        ask(False)
    assert nodes(model(tokens))[NODE] == config.n_layers


def test_other_precisions_and_positions_have_other_ways():
    config = config_of("relu").model_copy(update={"n_ctx": 64})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    assert nodes(model.double()(tokens))[NODE] == 0
    for change in ({"positional_embedding_type": "rotary", "rotary_dim": 4}, {"use_qk_norm": True}):
        other = decoder_of(config.model_copy(update=change), n_models=2)
        use_fast_kernels(other)
        assert nodes(other(tokens))[NODE] == 0
    model.float().to("meta")
    use_fast_kernels(model)
    assert all(block.attn.fused_layer is None for block in model.blocks)
