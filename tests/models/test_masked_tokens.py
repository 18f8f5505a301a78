"""Masked tokens are as if they were not there, and tokens of a cache as if they were."""

import pytest
import torch
from decoder_cases import CASES, SHARED, config_of, decoder_of, stacked_and_alone, tokens_of
from lens_pairs import assert_close, needs_live, pair
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache

from mechmarkov.models import DecoderConfig, HookedDecoder

pytestmark = pytest.mark.tl

# A window and ALiBi count masked tokens, as theirs.
WINDOWED = [case for case in CASES if "window" in case or case == "ALiBi"]
KEPT = [1, 2, 4, 5, 6, 8]  # of nine tokens; the first is masked too


def masked(tokens):
    mask = torch.zeros_like(tokens)
    mask[..., KEPT] = 1
    return mask


@pytest.mark.parametrize(
    ("case", "n_models"), stacked_and_alone([case for case in CASES if case not in WINDOWED], 2)
)
def test_masked_tokens_are_as_if_they_were_not_there(case, n_models):
    model = decoder_of(config_of(case), n_models=n_models).double()
    tokens = tokens_of(model.config, *([] if n_models is None else [n_models, 3]))
    without = model(tokens[..., KEPT])
    for mask in (masked(tokens), masked(tokens).bool(), masked(tokens_of(model.config))):
        found = model(tokens, attention_mask=mask)
        assert torch.allclose(found[..., KEPT, :], without, atol=1e-11)
    assert torch.allclose(model(tokens, attention_mask=torch.ones_like(tokens)), model(tokens), atol=1e-11)
    read = torch.tensor([5, 8])
    last = model(tokens, attention_mask=masked(tokens), read=read)
    assert torch.allclose(last, without[..., [3, 5], :], atol=1e-11)


def test_sequences_of_several_lengths_in_one_batch():
    model = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(model.config)
    mask = torch.ones_like(tokens)
    for row, padding in enumerate((0, 2, 5)):
        mask[row, :padding] = 0
    found = model(tokens, attention_mask=mask)
    for row, padding in enumerate((0, 2, 5)):
        assert torch.allclose(found[row, padding:], model(tokens[row, padding:])[0], atol=1e-11)


def test_the_loss_leaves_masked_tokens_out():
    model = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(model.config)
    per_token = model(tokens, "loss", loss_per_token=True, attention_mask=masked(tokens))
    log_p = model(tokens, attention_mask=masked(tokens)).log_softmax(-1)
    both = [i for i in range(8) if i in KEPT and i + 1 in KEPT]
    expected = torch.zeros(3, 8, dtype=torch.double)
    for i in both:
        expected[:, i] = -log_p[torch.arange(3), i, tokens[:, i + 1]]
    assert torch.allclose(per_token, expected, atol=1e-12)
    mean = model(tokens, "loss", attention_mask=masked(tokens))
    assert torch.allclose(mean, expected.sum() / (3 * len(both)), atol=1e-12)


def test_hooks_see_the_mask():
    model = decoder_of(config_of("plain"))
    tokens = tokens_of(model.config)
    _, cache = model.run_with_cache(tokens, attention_mask=masked(tokens))
    gone = [i for i in range(9) if i not in KEPT]
    assert cache["pattern", 0][..., gone].abs().max() == 0
    assert cache["pattern", 1][:, :, 1:].sum(-1).min() > 1 - 1e-5
    assert not cache["pattern", 1][:, :, 0].any()  # the first query sees itself alone, which is masked
    assert cache["hook_pos_embed"][:, gone].abs().max() == 0
    assert torch.equal(cache["hook_pos_embed"][0, KEPT], model.W_pos[:6])


def test_masks_that_do_not_fit():
    config = config_of("plain")
    tokens = tokens_of(config)
    for n_models, wrong in [(None, tokens[:2]), (None, tokens[:, :8]), (2, tokens.expand(3, 3, 9))]:
        with pytest.raises(AssertionError, match=r"attention_mask has shape .*, expected the tokens'"):
            decoder_of(config, n_models=n_models)(tokens, attention_mask=wrong)
    model = decoder_of(config)
    with pytest.raises(AssertionError, match="attention_mask has 8 positions, expected 9"):
        model(torch.zeros(3, 9, 12), start_at_layer=1, attention_mask=tokens[:, :8])
    mamba = DecoderConfig(
        n_layers=1, d_model=8, n_ctx=9, d_head=4, d_vocab=7, d_state=3, attn_only=True, mixer="mamba"
    )
    with pytest.raises(ValueError, match="attention_mask is given, but a Mamba does not take one"):
        HookedDecoder(mamba)(tokens, attention_mask=torch.ones_like(tokens))


# -- caches of earlier passes --------------------------------------------------------------------------------


def cache_of(model, batch=3):
    return TransformerLensKeyValueCache.init_cache(model.cfg, torch.device("cpu"), batch)


@pytest.mark.parametrize("case", CASES)
def test_a_cache_holds_the_tokens_before(case):
    model = decoder_of(config_of(case)).double()
    tokens = tokens_of(model.config)
    whole, cache = model(tokens), cache_of(model)
    parts = [model(tokens[:, some], past_kv_cache=cache) for some in (slice(0, 4), slice(4, 5), slice(5, 9))]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-10)


def test_a_frozen_cache_stays():
    model = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(model.config)
    cache = cache_of(model)
    model(tokens[:, :4], past_kv_cache=cache)
    cache.freeze()
    for end in (7, 9):
        found = model(tokens[:, 4:end], past_kv_cache=cache)
        assert torch.allclose(found, model(tokens[:, :end])[:, 4:], atol=1e-10)
    cache.unfreeze()
    model(tokens[:, 4:7], past_kv_cache=cache)
    assert torch.allclose(model(tokens[:, 7:], past_kv_cache=cache), model(tokens)[:, 7:], atol=1e-10)


def test_a_cache_remembers_what_was_masked():
    model = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(model.config)
    cache = cache_of(model)
    model(tokens[:, :5], attention_mask=masked(tokens)[:, :5], past_kv_cache=cache)
    found = model(tokens[:, 5:], past_kv_cache=cache)
    mask = masked(tokens)
    mask[:, 5:] = 1
    assert torch.allclose(found, model(tokens, attention_mask=mask)[:, 5:], atol=1e-10)


def test_caches_that_do_not_fit():
    model = decoder_of(config_of("plain")).double()
    tokens = tokens_of(model.config)
    cache = cache_of(model)
    model(tokens, past_kv_cache=cache)
    with pytest.raises(ValueError, match="1 positions after 9 of a cache, expected 1 to n_ctx = 9"):
        model(tokens[:, :1], past_kv_cache=cache)
    with pytest.raises(AssertionError, match="past_kv_cache holds 2 sequences, expected 3"):
        model(torch.zeros(3, 4, 12).double(), start_at_layer=0, past_kv_cache=cache_of(model, 2))
    stack = decoder_of(config_of("plain"), n_models=2)
    with pytest.raises(TypeError, match=r"past_kv_cache: this is a stack of 2 models.*stack\[i\]"):
        stack(tokens, past_kv_cache=cache_of(model))


# -- beside HookedTransformer --------------------------------------------------------------------------------


@needs_live
@pytest.mark.parametrize("case", SHARED)
def test_masks_and_caches_are_theirs(case):
    ours, theirs, tokens = pair(case)
    tokens = tokens % ours.config.d_vocab_out
    mask = masked(tokens)
    mask[1] = 1
    (x, cache), (y, expected) = (m.run_with_cache(tokens, attention_mask=mask) for m in (ours, theirs))
    assert_close(x, y)
    for name in expected:
        assert_close(cache[name], expected[name].view_as(cache[name]))
    for arguments in ({}, {"loss_per_token": True}):
        x, y = (m(tokens, "loss", attention_mask=mask, **arguments) for m in (ours, theirs))
        assert_close(x, y)
    for model in (ours, theirs):
        kept = TransformerLensKeyValueCache.init_cache(model.cfg, torch.device("cpu"), 3)
        model(tokens[:, :5], attention_mask=mask[:, :5], past_kv_cache=kept)
        model.continued = model(tokens[:, 5:], attention_mask=mask[:, 5:], past_kv_cache=kept)
        model.kept = kept
    assert_close(ours.continued, theirs.continued)
    for layer in range(2):
        assert_close(ours.kept[layer].past_keys, theirs.kept[layer].past_keys)
