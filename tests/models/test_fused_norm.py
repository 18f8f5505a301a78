"""Compiled norms against autograd in float64, and where they are used."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, nodes, tokens_of

from mechmarkov.models.fast.fused_norm import LENGTH, layer_norm, norm_fused
from mechmarkov.models.fast.registers import WIDTH
from mechmarkov.models.fast.use import use_fast_kernels

NODE = "_NormBackward"


def inputs(tokens, d=5, models=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, w, b = (torch.randn(s, generator=generator) for s in ((models, d, tokens), (models, d), (models, d)))
    return [leaf.requires_grad_() for leaf in (3 * x.mT + 1, w, b)]


def explicit(x, w, b, eps, centred):
    if centred:
        x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * w[:, None] + b[:, None]


def with_gradients(norm, leaves, *arguments):
    out = norm(*leaves, *arguments)
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out, *torch.autograd.grad(out, leaves, slopes)]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("d", [3, 5, 16, 33])
@pytest.mark.parametrize("tokens", [1, WIDTH, 2 * WIDTH + 1, LENGTH - 1, LENGTH + 5])
def test_value_and_gradients(tokens, d, centred):
    leaves = inputs(tokens, d)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    for eps in (1e-5, 0.3):
        expected = with_gradients(explicit, exact, eps, centred)
        for found, true in zip(with_gradients(norm_fused, leaves, eps, centred), expected, strict=True):
            # Three numbers may lie close together, and all is divided by how far they are apart.
            torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=2e-5)
        if centred:
            for found, true in zip(with_gradients(layer_norm, leaves, eps, True), expected, strict=True):
                torch.testing.assert_close(found.double(), true, rtol=1e-4, atol=2e-5)


def test_any_order_of_memory():
    leaves = inputs(50)
    plain = with_gradients(norm_fused, leaves, 1e-5, True)
    other = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in leaves]
    for one, expected in zip(with_gradients(norm_fused, other, 1e-5, True), plain, strict=True):
        assert torch.equal(one, expected)
    for x in plain[:2]:
        assert x.mT.is_contiguous()


def test_what_is_no_number_stays_in_its_token():
    clean, dirty = inputs(50), inputs(50)
    with torch.no_grad():
        dirty[0][0, 7, 1] = torch.nan
    found, expected = (with_gradients(norm_fused, x, 1e-5, True)[:2] for x in (dirty, clean))
    for one, other in zip(found, expected, strict=True):
        assert one[0, 7].isnan().all()
        untouched = one.clone()
        untouched[0, 7] = other[0, 7]
        assert torch.equal(untouched, other)


@pytest.mark.parametrize("kind", ["LN", "LNPre", "RMS", "RMSPre"])
def test_training_uses_it_unless_its_scale_is_hooked(kind):
    config = config_of("relu").model_copy(update={"normalization_type": kind})
    model, tokens = decoder_of(config, n_models=2), tokens_of(config)
    without = model(tokens)
    use_fast_kernels(model)
    plain = model(tokens)
    assert nodes(plain)[NODE] == 2 * config.n_layers + 1
    torch.testing.assert_close(plain, without, rtol=1e-4, atol=1e-5)
    seen = []
    with model.hooks([("blocks.1.ln2.hook_scale", lambda x, hook: seen.append(x))]):
        looked_at = model(tokens)
    assert nodes(looked_at)[NODE] == 2 * config.n_layers
    torch.testing.assert_close(looked_at, plain, rtol=1e-4, atol=1e-5)
    assert seen[0].shape == (2, *tokens.shape[-2:], 1)
    for point in ("hook_scale", "hook_normalized"):
        with model.hooks([(f"ln_final.{point}", lambda x, hook: 2 * x)]):
            assert not torch.allclose(model(tokens), plain, atol=1e-3), point
    assert nodes(model.double()(tokens))[NODE] == 0


def test_another_device_has_torchs_own():
    model = decoder_of(config_of("gelu and LN"), n_models=2).to("meta")
    use_fast_kernels(model)
    assert model.ln_final.fused is layer_norm
    rms = decoder_of(config_of("RMS"), n_models=2).to("meta")
    use_fast_kernels(rms)
    assert rms.ln_final.fused is None
