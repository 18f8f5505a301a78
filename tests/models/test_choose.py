"""Which kernel is chosen where, and embedding by a product."""

import pytest
import torch

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.fast.choose import is_thin
from mechmarkov.models.fast.fused_attention import attend_fused
from mechmarkov.models.fast.use import use_fast_kernels
from mechmarkov.models.init import initialise


def config(**fields):
    shape = {"n_layers": 1, "d_model": 8, "d_head": 8, "n_ctx": 256, "d_vocab": 2, "attn_only": True}
    return DecoderConfig(**shape | {"normalization_type": None} | fields)


def logits_and_gradients(decoder, tokens):
    logits = decoder(tokens)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4), dtype=logits.dtype)
    gradients = torch.autograd.grad((logits * weights).sum(), list(decoder.parameters()))
    return [logits, *gradients]


@pytest.mark.parametrize("shape", [{}, {"tied": True}, {"d_vocab": 3}])
def test_a_small_vocabulary_is_embedded_by_a_product(shape):
    decoder = HookedDecoder(config(**shape), n_models=3).double()
    initialise(decoder, range(3), std=0.5)
    last = decoder.config.d_vocab - 1
    tokens = torch.randint(last + 1, (3, 10, 7), generator=torch.Generator().manual_seed(3))
    looked_up = decoder.embed(tokens)
    expected = logits_and_gradients(decoder, tokens)
    decoder.embed.one_hot = True
    assert torch.equal(decoder.embed(tokens), looked_up)
    assert decoder.embed(tokens).grad_fn.name() != looked_up.grad_fn.name()
    for one, other in zip(logits_and_gradients(decoder, tokens), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    for wrong in (-1, last + 1):
        tokens[..., 3] = wrong
        with pytest.raises(IndexError, match=rf"tokens go from .*{wrong}.*, expected 0 to {last}"):
            decoder.embed(tokens)


def test_a_model_on_another_device_keeps_torchs_kernels():
    decoder = HookedDecoder(config(), n_models=2)
    use_fast_kernels(decoder)
    assert decoder.blocks[0].attn.fused is attend_fused
    assert decoder.embed.one_hot
    x = torch.zeros(2, 20, 8)
    assert is_thin(x, decoder.unembed.W_U)
    decoder.to("meta")
    use_fast_kernels(decoder)
    assert decoder.blocks[0].attn.fused is None
    assert not is_thin(x.to("meta"), decoder.unembed.W_U)
