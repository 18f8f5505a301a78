"""Attention in blocks against softmax over explicit scores in float64, and where it is used."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, nodes, tokens_of
from einops import rearrange

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.fast import blocks
from mechmarkov.models.fast.blocks import attend_in_blocks
from mechmarkov.models.fast.choose import are_blocks_faster


def inputs(d=5, transposed=False):
    """Queries, keys and values of two sequences and three heads; `transposed`: positions last in memory."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, 3, 11, d, generator=generator, dtype=torch.float64) for _ in range(3)]
    order = (1, 3, 0, 2) if transposed else (0, 2, 1, 3)  # as a projection leaves them
    back = (2, 0, 3, 1) if transposed else (0, 2, 1, 3)
    return [x.permute(order).contiguous().permute(back).requires_grad_() for x in drawn]


def explicit(q, k, v, scale):
    scores = (q @ k.mT * scale).masked_fill(torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def never(*_, **__):
    raise AssertionError("left to torch")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("queries", "at_once"), [(64, 1), (4, 1), (4, 4), (11, 100), (1, 2)])
@pytest.mark.parametrize("d", [5, 12])
def test_value_and_gradients(queries, at_once, d, transposed, monkeypatch):
    """One block or several, the last ones smaller; all sequences or some; thin heads and others."""
    monkeypatch.setattr(blocks, "QUERIES", queries)
    monkeypatch.setattr(blocks, "CACHED_WEIGHTS", at_once * queries * 11)
    monkeypatch.setattr(blocks.F, "scaled_dot_product_attention", never)
    leaves = inputs(d=d, transposed=transposed)
    expected, found = explicit(*leaves, 0.4), attend_in_blocks(*leaves, 0.4)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad(z, leaves, weight) for z in (found, expected)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shift", [-200.0, -40.0, 0.0, 40.0, 200.0])
def test_no_digits_are_lost_however_large_or_small_scores_are(shift):
    """float32 holds `exp` of 88 at most; a query with itself added to every key shifts its row of scores."""
    q, k, v = (x.detach() for x in inputs())
    k = k + shift * q.mean(-2, keepdim=True) / q.mean(-2, keepdim=True).square().sum(-1, keepdim=True)
    leaves = [x.float().requires_grad_() for x in (q.mean(-2, keepdim=True).expand_as(q), k, v)]
    z = attend_in_blocks(*leaves, 1.0)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    expected = explicit(*exact, 1.0)
    assert z.isfinite().all()
    torch.testing.assert_close(z.double(), expected, rtol=1e-4, atol=1e-5)
    slopes, theirs = (torch.autograd.grad(out.sin().sum(), x) for out, x in ((z, leaves), (expected, exact)))
    for ours, other in zip(slopes, theirs, strict=True):
        torch.testing.assert_close(ours.double(), other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shift", [-200.0, -40.0, 0.0, 40.0, 200.0])
def test_sums_that_are_no_ordinary_numbers_are_left_to_torch(shift, monkeypatch):
    torchs, left = blocks.F.scaled_dot_product_attention, []

    def noted(*arguments, **options):
        left.append(options)
        return torchs(*arguments, **options)

    monkeypatch.setattr(blocks.F, "scaled_dot_product_attention", noted)
    ones = torch.ones(1, 1, 4, 2)
    attend_in_blocks(ones, shift / 2 * ones, ones, 1.0)
    assert len(left) == (abs(shift) > 44)  # nats: 64 bits


def test_training_uses_it_unless_scores_are_hooked():
    config = config_of("relu").model_copy(update={"n_ctx": 40})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    model.use_fast_kernels(len(tokens))
    model.attends_by_table = False
    plain = model(tokens)
    assert nodes(plain)["_BlockAttentionBackward"] == config.n_layers
    seen = []
    with model.hooks([("blocks.1.attn.hook_pattern", lambda x, hook: seen.append(x))]):
        looked_at = model(tokens)
    assert nodes(looked_at)["_BlockAttentionBackward"] == config.n_layers - 1
    torch.testing.assert_close(looked_at, plain, rtol=1e-4, atol=1e-5)
    assert len(seen) == 1
    with model.hooks([("blocks.1.attn.hook_z", lambda x, hook: x.mul_(0))]):
        assert not torch.allclose(model(tokens), plain, atol=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), plain, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert nodes(model(tokens))["_BlockAttentionBackward"] == 0


@pytest.mark.parametrize("change", [{"window": 3}, {"positional_embedding_type": "relative"}])
def test_other_attention_is_left_to_torch(change):
    config = config_of("relu").model_copy(update={"n_ctx": 40, **change})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    model.use_fast_kernels(len(tokens))
    model.attends_by_table = False
    assert nodes(model(tokens))["_BlockAttentionBackward"] == 0


def test_it_is_for_small_heads():
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

    assert are_blocks_faster(config(), "cpu")
    assert not are_blocks_faster(config(n_ctx=16), "cpu")
    assert not are_blocks_faster(config(d_head=16), "cpu")
    assert not are_blocks_faster(config(window=4), "cpu")
    assert not are_blocks_faster(config(positional_embedding_type="relative"), "cpu")
    assert not are_blocks_faster(config(), "cuda")


def test_nothing_is_copied_into_another_order_of_memory():
    """Of two heads: what projections leave, the gradients of that, and the gradient of `z`."""
    config = config_of("relu").model_copy(update={"n_ctx": 40, "n_heads": 2, "d_head": 4})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    for weights in model.parameters():
        weights.data.mul_(0.3)  # scores are then small, and nothing is left to torch
    model.use_fast_kernels(len(tokens))
    model.attends_by_table = False
    seen = []

    def keep(x, hook):
        seen.append(x)
        x.register_hook(seen.append)

    with model.hooks([(f"blocks.1.attn.hook_{name}", keep) for name in "qkv"]):
        out = model(tokens)
    assert nodes(out)["_BlockAttentionBackward"] == config.n_layers
    out.square().sum().backward()
    assert len(seen) == 6
    for x in seen:
        assert rearrange(x, "m b p h d -> m h d b p").is_contiguous()
