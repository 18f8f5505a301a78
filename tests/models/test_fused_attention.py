"""Compiled attention against softmax over explicit scores in float64, and where it is used."""

import math

import numpy as np
import pytest
import torch
from decoder_cases import config_of, decoder_of, nodes, tokens_of
from einops import rearrange
from numba import njit
from numba.core.caching import CacheImpl

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.fast.attention_rows import power_of_two
from mechmarkov.models.fast.choose import is_fused_attention_faster
from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.models.fast.registers import (
    WIDTH,
    load,
    store,
)
from mechmarkov.models.fast.use import use_fast_kernels
from mechmarkov.utils.compiled import compiled

NODE = "_FusedAttentionBackward"


def inputs(length, d=5, models=2, batch=3, heads=2, seed=0):
    """Queries, keys and values, positions last in memory, as a stack's projections leave them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(models, heads, d, batch, length, generator=generator) for _ in range(3)]
    return [rearrange(x, "m h d b p -> m b h p d").requires_grad_() for x in drawn]


def explicit(q, k, v, scale, window=None):
    allowed = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    if window is not None:
        allowed = allowed.triu(-window)
    return (q @ k.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1) @ v


def with_gradients(attend, leaves, *arguments):
    """What a head gathers, and the gradients of a weighted sum of it."""
    z = attend(*leaves, *arguments)
    slopes = torch.randn(z.shape, generator=torch.Generator().manual_seed(1)).to(z.dtype)
    return [z, *torch.autograd.grad(z, leaves, slopes)]


def assert_close(leaves, *arguments, error=4e-6):
    """To an error relative to the largest number, or to 1; rounding leaves a quarter of that."""
    exact = [x.detach().double().requires_grad_() for x in leaves]
    found = with_gradients(attend_fused, leaves, *arguments)
    for ours, theirs in zip(found, with_gradients(explicit, exact, *arguments), strict=True):
        scale = max(1, theirs.detach().abs().max().item())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=error * scale)


@pytest.mark.parametrize("window", [None, 0, 1, 7, 64, 130, 1000])
@pytest.mark.parametrize("length", [1, 4, 17, 127, 128, 130, 300])
def test_value_and_gradients(length, window):
    """One tile or several, the last whole or not; windows that end within four keys, and between tiles."""
    assert_close(inputs(length), 0.4, window)


@pytest.mark.parametrize("d", [1, 4, 6, 16])
def test_a_head_of_any_width(d):
    assert_close(inputs(40, d=d), d**-0.5)


def test_any_order_of_memory():
    assert_close([x.detach().contiguous().requires_grad_() for x in inputs(40)], 0.4)
    shared = [x.detach()[:, :, :1].expand_as(x).requires_grad_() for x in inputs(40)]
    assert_close(shared, 0.4)  # grouped queries: a key for several heads


@pytest.mark.parametrize("shift", [-300.0, -200.0, -60.0, -40.0, 40.0, 60.0, 200.0, 300.0])
def test_large_and_small_scores_lose_no_more_digits_than_in_torch(shift):
    """float32 holds `exp` of 88 at most. A third of the queries have all scores shifted up, a third down."""
    q, k, v = (x.detach() for x in inputs(150))
    q[..., 0], k[..., 0] = torch.arange(150.0) % 3 - 1, shift
    leaves = [x.requires_grad_() for x in (q, k, v)]
    exact = with_gradients(explicit, [x.detach().double().requires_grad_() for x in leaves], 1.0)
    ours, torchs = (with_gradients(attend, leaves, 1.0) for attend in (attend_fused, explicit))
    for one, other, true in zip(ours, torchs, exact, strict=True):
        assert (one - true).abs().max() < 10 * (other - true).abs().max()


def test_a_power_of_two():
    @njit
    def powers(x, out):
        for i in range(0, len(x), WIDTH):
            store(out, i, power_of_two(load(x, i)))

    x, found = np.linspace(-79.99, 126, 40_000).astype(np.float32), np.zeros(40_000, np.float32)
    powers(x, found)
    assert np.abs(found / np.exp2(x.astype(np.float64)) - 1).max() < 2e-7
    x[:4] = np.nan, -80, 1e6, np.inf
    powers(x, found)
    np.testing.assert_array_equal(found[:4], np.float32([np.nan, 0, 2.0**126, 2.0**126]))


def test_a_sequence_does_not_depend_on_others():
    """To the last bit: alone, in a batch, in a stack."""
    leaves = inputs(150)
    together = with_gradients(attend_fused, leaves, 0.4)
    slopes = torch.randn(together[0].shape, generator=torch.Generator().manual_seed(1))
    for model, sequence in ((0, 0), (1, 2)):
        own = [x.detach()[model, sequence][None, None].requires_grad_() for x in leaves]
        z = attend_fused(*own, 0.4)
        alone = [z, *torch.autograd.grad(z, own, slopes[model, sequence][None, None])]
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one[0, 0], other[model, sequence])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("length", [20, 140])
def test_what_is_no_number_stays_in_its_sequence(length, which, bad):
    """It shows there; the next sequences, and the next model's, are computed in the same memory."""
    clean = inputs(length)
    dirty = [x.detach().clone().requires_grad_() for x in clean]
    with torch.no_grad():
        dirty[which][0, 1, 0, length - 3, 2] = bad
    expected, found = (with_gradients(attend_fused, leaves, 0.4) for leaves in (clean, dirty))
    if which != 1 or math.isnan(bad):  # a key that no query prefers is no fault
        assert not found[0][0, 1, 0, length - 3].isfinite().all()
    for one, other in zip(found, expected, strict=True):
        untouched = one.clone()
        untouched[0, 1, 0] = other[0, 1, 0]
        assert torch.equal(untouched, other)


def test_a_second_derivative_is_refused():
    leaves = inputs(10)
    (slope,) = torch.autograd.grad(attend_fused(*leaves, 1.0).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize(
    "change", [{"positional_embedding_type": "rotary", "rotary_dim": 4}, {"use_qk_norm": True}]
)
def test_training_uses_it_unless_scores_are_hooked(change):
    config = config_of("relu").model_copy(update={"n_ctx": 40, **change})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    without = model(tokens)
    assert nodes(without)[NODE] == 0
    use_fast_kernels(model)
    plain = model(tokens)
    assert nodes(plain)[NODE] == config.n_layers
    torch.testing.assert_close(plain, without, rtol=1e-4, atol=1e-5)
    seen = []
    with model.hooks([("blocks.1.attn.hook_pattern", lambda x, hook: seen.append(x))]):
        looked_at = model(tokens)
    assert nodes(looked_at)[NODE] == config.n_layers - 1
    torch.testing.assert_close(looked_at, plain, rtol=1e-4, atol=1e-5)
    assert len(seen) == 1
    with model.hooks([("blocks.1.attn.hook_z", lambda x, hook: x.mul_(0))]):
        assert not torch.allclose(model(tokens), plain, atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), plain, rtol=1e-4, atol=1e-5)


def test_other_precisions_and_relative_positions_are_left_to_torch():
    config = config_of("relu").model_copy(update={"n_ctx": 40})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert nodes(model(tokens))[NODE] == 0
    assert nodes(model.double()(tokens))[NODE] == 0
    relative = decoder_of(config.model_copy(update={"positional_embedding_type": "relative"}), n_models=2)
    use_fast_kernels(relative)
    assert nodes(relative(tokens))[NODE] == 0


def test_it_is_for_small_heads_and_many_positions():
    def config(**fields):
        shape = {
            "n_layers": 1,
            "d_model": 16,
            "d_head": 8,
            "n_heads": 1,
            "n_ctx": 64,
            "d_vocab": 3,
            "attn_only": True,
        }
        return DecoderConfig(**shape | fields)

    assert is_fused_attention_faster(config(), "cpu")
    assert is_fused_attention_faster(config(d_head=16), "cpu")
    assert is_fused_attention_faster(config(window=4), "cpu")
    assert not is_fused_attention_faster(config(n_ctx=16), "cpu")
    assert not is_fused_attention_faster(config(d_head=32, n_ctx=256), "cpu")
    assert not is_fused_attention_faster(config(positional_embedding_type="relative"), "cpu")
    assert not is_fused_attention_faster(config(), "cuda")


def test_nothing_is_copied_into_another_order_of_memory():
    """Of two heads: what projections leave, the gradients of that, and the gradient of `z`."""
    config = config_of("relu").model_copy(update={"n_ctx": 40, "n_heads": 2, "d_head": 4})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    use_fast_kernels(model)
    seen = []

    def keep(x, hook):
        seen.append(x)
        x.register_hook(seen.append)

    with model.hooks([(f"blocks.1.attn.hook_{name}", keep) for name in "qkv"]):
        out = model(tokens)
    assert nodes(out)[NODE] == 1
    out.square().sum().backward()
    assert len(seen) == 6
    for x in seen:
        assert rearrange(x, "m b p h d -> m h d b p").is_contiguous()


def test_it_is_compiled_where_nothing_can_be_kept(monkeypatch):
    """As on a cluster's nodes, where neither the package's folder nor a home can be written to."""
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    assert compiled(lambda x: x + 1)(2) == 3
