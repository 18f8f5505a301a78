"""A first layer that attends by the table of its inputs, against SDPA; and which kernel is chosen where."""

import pytest
import torch

from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.fast import input_table
from mechmarkov.models.fast.choose import is_input_table_faster, is_one_hot_faster, is_thin
from mechmarkov.models.fast.input_table import attend_by_table
from mechmarkov.models.init import initialise

SHAPES = {
    "plain": {},
    "heads": {"n_heads": 2, "d_head": 4},
    "two layers": {"n_layers": 2},
    "norm": {"normalization_type": "LN"},
    "tied": {"tied": True},
    "rotary": {"positional_embedding_type": "rotary"},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "no positions": {"positional_embedding_type": "none"},
    "window": {"window": 9},
    "wide window": {"window": 70},
    "attention only": {"attn_only": True},
    "three states": {"d_vocab": 3},
}


def decoder_of(n_models=3, std=0.5, **fields):
    shape = {
        "n_layers": 1,
        "d_model": 8,
        "d_head": 8,
        "n_ctx": 150,  # several chunks of queries, the last one short
        "d_vocab": 2,
        "normalization_type": None,
    }
    decoder = HookedDecoder(DecoderConfig(**shape | fields), n_models=n_models).double()
    initialise(decoder, range(n_models or 1), std=std)
    return decoder


def tokens_for(decoder, length=150):
    generator = torch.Generator().manual_seed(3)
    lead = () if decoder.n_models is None else (decoder.n_models,)
    return torch.randint(decoder.config.d_vocab, (*lead, 10, length), generator=generator)


def logits_and_gradients(decoder, tokens):
    logits = decoder(tokens)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4), dtype=logits.dtype)
    gradients = torch.autograd.grad((logits * weights).sum(), list(decoder.parameters()))
    return [logits, *gradients]


@pytest.mark.parametrize("shape", ["plain", "tied", "three states"])
def test_a_small_vocabulary_is_embedded_by_a_product(shape):
    decoder = decoder_of(**SHAPES[shape])
    tokens = tokens_for(decoder, length=7)
    looked_up = decoder.embed(tokens)
    expected = logits_and_gradients(decoder, tokens)
    decoder.embed.one_hot = True
    assert torch.equal(decoder.embed(tokens), looked_up)
    assert decoder.embed(tokens).grad_fn.name() != looked_up.grad_fn.name()
    for one, other in zip(logits_and_gradients(decoder, tokens), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    last = decoder.config.d_vocab - 1
    for wrong in (-1, last + 1):
        tokens[..., 3] = wrong
        with pytest.raises(IndexError, match=rf"tokens go from .*{wrong}.*, expected 0 to {last}"):
            decoder.embed(tokens)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n_models", [None, 3])
@pytest.mark.parametrize("length", [150, 5])
def test_logits_and_gradients_are_the_ordinary_ones(shape, n_models, length, monkeypatch):
    monkeypatch.setattr(input_table, "CACHED_WEIGHTS", 40_000)  # several groups of members, too
    decoder = decoder_of(n_models, **SHAPES[shape])
    tokens = tokens_for(decoder, length=length)
    expected = logits_and_gradients(decoder, tokens)
    decoder.attends_by_table = True
    found = logits_and_gradients(decoder, tokens)
    assert not torch.equal(found[0], expected[0])  # it was another way to the same numbers
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_scores_far_apart_are_no_worse():
    """A token that draws all attention where it is absent: sums over all tokens would lose every digit."""
    decoder = decoder_of(std=6.0, positional_embedding_type="none")
    tokens = tokens_for(decoder)
    tokens[:, 0] = 0
    tokens[:, 1] = 1
    expected = logits_and_gradients(decoder, tokens)
    assert expected[0].isfinite().all()
    decoder.attends_by_table = True
    for one, other in zip(logits_and_gradients(decoder, tokens), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7 * other.detach().abs().max().item())


def test_sums_that_lose_their_digits_are_noticed():
    q = torch.tensor([[1.0], [1.0]])[None, :, None, :].expand(1, 2, 1, 4).reshape(2, 1, 4, 1) * 30
    k = torch.tensor([[0.0], [10.0]])[:, None, None, :].expand(2, 1, 4, 1)  # 300 apart: exp(-300) is 0
    v = torch.randn(2, 1, 4, 1, generator=torch.Generator().manual_seed(0))
    z = attend_by_table(q, k, v, torch.zeros(3, 4, dtype=torch.long), 1.0)
    mean = v[0, 0].cumsum(0) / torch.arange(1, 5)[:, None]
    torch.testing.assert_close(z[0, 0], mean)


HOOKS = [
    "hook_embed",
    "hook_pos_embed",
    "blocks.0.hook_resid_pre",
    "blocks.0.ln1.hook_scale",
    "blocks.0.attn.hook_q",
    "blocks.0.attn.hook_k",
    "blocks.0.attn.hook_v",
    "blocks.0.attn.hook_attn_scores",
    "blocks.0.attn.hook_pattern",
    "blocks.0.attn.hook_z",
    "blocks.0.hook_attn_out",
]


@pytest.mark.parametrize("point", HOOKS)
def test_a_hook_sees_and_changes_what_it_always_does(point):
    decoder = decoder_of(None, normalization_type="LN")
    tokens = tokens_for(decoder)
    seen = []

    def halve(activation, hook):
        seen.append(activation.detach().clone())
        return activation * 0.5 if "scale" not in hook.name else activation * 2

    expected = decoder.run_with_hooks(tokens, fwd_hooks=[(point, halve)])
    decoder.attends_by_table = True
    found = decoder.run_with_hooks(tokens, fwd_hooks=[(point, halve)])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found, decoder(tokens))


def test_inputs_split_by_head_are_hooked_too():
    decoder = decoder_of(None)
    decoder.attends_by_table = True
    decoder.set_use_split_qkv_input(True)
    tokens = tokens_for(decoder)
    seen = []
    decoder.run_with_hooks(
        tokens, fwd_hooks=[("blocks.0.hook_q_input", lambda x, hook: seen.append(x.shape))]
    )
    assert seen == [(10, 150, 1, 8)]


def config(**fields):
    shape = {"n_layers": 1, "d_model": 8, "d_head": 8, "n_ctx": 256, "d_vocab": 2, "attn_only": True}
    return DecoderConfig(**shape | {"normalization_type": None} | fields)


def test_a_table_is_for_two_states_and_many_sequences():
    assert is_input_table_faster(config(), 16, "cpu")
    assert not is_input_table_faster(config(), 4, "cpu")
    assert not is_input_table_faster(config(d_vocab=3, d_head=4), 64, "cpu")
    assert not is_input_table_faster(config(n_ctx=8), 16, "cpu")
    assert is_input_table_faster(config(d_model=16, d_head=16), 16, "cpu")
    assert not is_input_table_faster(config(d_model=16, d_head=16, n_ctx=64), 16, "cpu")
    assert not is_input_table_faster(config(d_model=16, d_head=16, normalization_type="LN"), 16, "cpu")
    assert not is_input_table_faster(config(positional_embedding_type="relative"), 16, "cpu")
    state_space = {"mixer": "mamba", "d_state": 2, "positional_embedding_type": "none"}
    assert not is_input_table_faster(config(**state_space), 16, "cpu")


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_the_kernels_are_chosen_on_a_cpu_alone(device):
    assert is_one_hot_faster(config(), "cpu")
    assert not is_one_hot_faster(config(), device)
    assert not is_input_table_faster(config(), 16, device)


def test_a_model_on_another_device_keeps_torchs_kernels():
    decoder = HookedDecoder(config(), n_models=2)
    decoder.use_fast_kernels(16)
    assert decoder.attends_by_table
    assert decoder.embed.one_hot
    x = torch.zeros(2, 20, 8)
    assert is_thin(x, decoder.unembed.W_U)
    decoder.to("meta")
    decoder.use_fast_kernels(16)
    assert not decoder.attends_by_table
    assert not decoder.embed.one_hot
    assert not is_thin(x.to("meta"), decoder.unembed.W_U)
