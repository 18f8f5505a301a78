"""Norms behind the sums, as torch's own encoder has them, and models without a last norm."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, tokens_of
from torch import nn

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.lens.errors import LensError

FIELDS = {"n_layers": 1, "d_model": 8, "n_ctx": 5, "d_head": 4, "d_vocab": 3}


def encoder_of(model: HookedDecoder) -> nn.TransformerEncoder:
    """torch's own encoder with the decoder's weights."""
    config = model.config
    layer = nn.TransformerEncoderLayer(
        config.d_model, config.n_heads, config.d_mlp, 0.0, config.act_fn, batch_first=True,
        norm_first=config.norm_first,
    )  # fmt: skip
    encoder = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=False)
    for theirs, ours in zip(encoder.layers, model.blocks, strict=True):
        own = dict(ours.named_parameters())
        sides = [own[f"attn.W_{side}"].transpose(-1, -2).flatten(0, 1) for side in "QKV"]
        theirs.load_state_dict(
            {
                "self_attn.in_proj_weight": torch.cat(sides),
                "self_attn.in_proj_bias": torch.cat([own[f"attn.b_{side}"].flatten() for side in "QKV"]),
                "self_attn.out_proj.weight": own["attn.W_O"].flatten(0, 1).T,
                "self_attn.out_proj.bias": own["attn.b_O"],
                "linear1.weight": own["mlp.W_in"].T, "linear1.bias": own["mlp.b_in"],
                "linear2.weight": own["mlp.W_out"].T, "linear2.bias": own["mlp.b_out"],
                "norm1.weight": own["ln1.w"], "norm1.bias": own["ln1.b"],
                "norm2.weight": own["ln2.w"], "norm2.bias": own["ln2.b"],
            }
        )  # fmt: skip
    return encoder


@pytest.mark.parametrize("norm_first", [True, False])
def test_it_is_torchs_own_encoder(norm_first):
    model = decoder_of(config_of("post-norm", n_heads=4, d_head=3, norm_first=norm_first, final_norm=False))
    tokens = tokens_of(model.config)
    length = tokens.shape[1]
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    x = encoder_of(model)(model.W_E[tokens] + model.W_pos[:length], mask, is_causal=True)
    torch.testing.assert_close(model(tokens), x @ model.W_U + model.b_U, rtol=1e-4, atol=1e-5)


def test_the_middle_of_a_layer_is_behind_its_norm():
    model, seen = decoder_of(config_of("post-norm")), {}
    points = ("hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post")
    hooks = [(f"blocks.1.{name}", lambda x, hook: seen.update({hook.name[9:]: x})) for name in points]
    model.run_with_hooks(tokens_of(model.config), fwd_hooks=hooks)
    block = model.blocks[1]
    mid = block.ln1(seen["hook_resid_pre"] + seen["hook_attn_out"])
    torch.testing.assert_close(seen["hook_resid_mid"], mid)
    torch.testing.assert_close(seen["hook_mlp_out"], block.mlp(mid))
    torch.testing.assert_close(seen["hook_resid_post"], block.ln2(mid + seen["hook_mlp_out"]))


def test_a_pass_can_begin_between_layers():
    model = decoder_of(config_of("post-norm"))
    tokens = tokens_of(model.config)
    stream = model(tokens, stop_at_layer=1)
    torch.testing.assert_close(model(stream, start_at_layer=1), model(tokens))


def test_a_last_norm_follows_where_norms_stand():
    assert DecoderConfig(**FIELDS).final_norm
    assert not DecoderConfig(**FIELDS, norm_first=False).final_norm
    assert DecoderConfig(**FIELDS, norm_first=False, final_norm=True).final_norm
    old = DecoderConfig(**FIELDS).model_dump(exclude={"norm_first", "final_norm"})  # of an older file
    assert DecoderConfig(**old) == DecoderConfig(**FIELDS)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"normalization_type": None, "final_norm": False}, "final_norm is False, expected it left out"),
        ({"normalization_type": None, "norm_first": False}, "norm_first is False, expected it left out"),
        ({"parallel_attn_mlp": True, "norm_first": False}, "norm_first is False, expected true where para"),
    ],
)
def test_a_place_that_would_be_ignored_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        DecoderConfig(**FIELDS, **fields)


def test_tools_are_refused_sums_that_are_none():
    model = decoder_of(config_of("post-norm"))
    _, cache = model.run_with_cache(tokens_of(model.config))
    for call in (cache.decompose_resid, cache.get_full_resid_decomposition):
        with pytest.raises(LensError, match="norm_first is False"):
            call()
    with pytest.raises(LensError, match="norm_first is False"):
        cache.accumulated_resid(apply_ln=True)
    assert cache.accumulated_resid().shape[0] == model.config.n_layers + 1
    with pytest.raises(LensError, match="as_lens: norm_first is False"):
        model.as_lens()


def test_tools_are_told_of_no_last_norm():
    model = decoder_of(config_of("no last norm"))
    _, cache = model.run_with_cache(tokens_of(model.config))
    parts = cache.decompose_resid()
    torch.testing.assert_close(parts.sum(0), cache["blocks.1.hook_resid_post"])
    cache.apply_ln_to_stack(parts, layer=1)
    with pytest.raises(LensError, match="final_norm is False: no norm stands before the unembedding"):
        cache.apply_ln_to_stack(parts)


def test_the_config_of_a_lens_refuses_other_places():
    fields = decoder_of(config_of("no last norm")).cfg.to_dict()
    assert fields["final_norm"] is False
    assert "norm_first" not in fields
    assert config_of("post-norm").norm_first is False
