"""`cfg` is HookedTransformer's config, and what is left out of its surface says what to do instead."""

import pytest
import torch
from decoder_cases import CASES, SHARED, config_of, decoder_of
from lens_pairs import assert_close, needs_live, pair

from mechmarkov.models import HookedDecoder
from mechmarkov.models.compatibility import compat
from mechmarkov.models.lens.left_out import LEFT_OUT

pytestmark = pytest.mark.tl


def test_numbers_of_parameters():
    """Counted by hand: two layers of three heads of five on twelve, an MLP of seventeen, seven tokens."""
    attention, biases = 4 * 12 * 3 * 5, 3 * 3 * 5 + 12
    assert decoder_of(config_of("plain")).cfg.n_params == 2 * attention
    assert decoder_of(config_of("plain")).n_params_total == 7 * 12 + 9 * 12 + 2 * (attention + biases) + 91
    model = decoder_of(config_of("gelu and LN"))
    assert model.cfg.n_params == 2 * (attention + 2 * 12 * 17)
    norms, mlp = 2 * 12, 2 * 12 * 17 + 17 + 12
    total = 7 * 12 + 9 * 12 + 2 * (attention + biases + mlp + 2 * norms) + norms + 91
    assert model.n_params_total == total
    assert type(model.n_params_total) is int
    assert decoder_of(config_of("gelu and LN"), n_models=3).n_params_total == 3 * total


def test_a_copy_of_the_config_is_not_written_to():
    model = decoder_of(config_of("plain"))
    with pytest.raises(AttributeError, match=r"call model\.set_use_attn_result\(True\)"):
        model.cfg.use_attn_result = True
    with pytest.raises(AttributeError, match="make a model of another config"):
        model.cfg.n_ctx = 4
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    model.set_ungroup_grouped_query_attention(True)
    assert model.cfg.use_attn_result
    assert model.cfg.use_split_qkv_input
    assert model.cfg.ungroup_grouped_query_attention
    assert not model.cfg.use_attn_in


def test_fields_of_our_own_are_not_lost_on_the_way():
    for case in CASES:
        model = decoder_of(config_of(case))
        fields = model.cfg.to_dict()
        assert ("tied" in fields) == model.config.tied
        assert fields.get("window_size") == (None if model.config.window is None else model.config.window + 1)
        assert not {"window", "mixer", "d_state"} & set(fields)
        assert fields["d_head"] == model.config.d_head


def test_weights_of_the_input_and_of_gates():
    model = decoder_of(config_of("SwiGLU and LNPre"))
    assert torch.equal(model.W_E_pos, torch.cat([model.embed.W_E, model.pos_embed.W_pos]))
    assert model.W_gate.shape == (2, 12, 17)
    assert decoder_of(config_of("gelu and LN")).W_gate is None
    with pytest.raises(ValueError, match="rotary positions have no W_pos"):
        _ = decoder_of(config_of("rotary")).W_E_pos
    with pytest.raises(TypeError, match=r"W_E_pos: this is a stack of 2 models.*stack\[i\]"):
        _ = decoder_of(config_of("plain"), n_models=2).W_E_pos


def test_directions_of_one_token_and_of_many():
    model = decoder_of(config_of("plain"))
    for one in (3, torch.tensor(3), torch.tensor([3]), torch.tensor([[3]])):
        assert torch.equal(model.tokens_to_residual_directions(one), model.W_U[:, 3])
    several = model.tokens_to_residual_directions(torch.tensor([[3, 1], [0, 0]]))
    assert several.shape == (2, 2, 12)
    assert torch.equal(several[0, 1], model.W_U[:, 1])


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_says_what_to_do(name):
    model = decoder_of(config_of("plain"))
    assert not hasattr(model, name)
    with pytest.raises(AttributeError, match=f"a HookedDecoder has no {name}: "):
        getattr(model, name)
    assert name in repr(compat())


def test_there_is_no_hook_point_to_be_ignored():
    model = decoder_of(config_of("plain"))
    for name in ("blocks.0.attn.hook_result", "blocks.0.hook_q_input", "blocks.0.hook_attn_in"):
        with pytest.raises(AssertionError, match=f"no hook point '{name}'; call set_use_"):
            model.add_hook(name, lambda x, hook: x)
    with pytest.raises(AssertionError, match="attn_only is true: there is no MLP"):
        model.set_use_hook_mlp_in(True)
    model.set_use_hook_mlp_in(False)


# -- beside HookedTransformer --------------------------------------------------------------------------------


@needs_live
@pytest.mark.parametrize("case", SHARED)
def test_our_config_makes_their_model(case):
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    ours, theirs, tokens = pair(case)
    assert ours.cfg.n_params == theirs.cfg.n_params
    idle = theirs.W_pos.numel() if case == "ALiBi" else 0  # theirs has positions that it does not use
    assert ours.n_params_total == theirs.n_params_total - idle
    with pytest.warns(DeprecationWarning, match="HookedTransformer is deprecated"):
        made = HookedTransformer(HookedTransformerConfig.from_dict(ours.cfg.to_dict()))
    made.load_state_dict(ours.state_dict(), strict=False)
    assert_close(ours(tokens), made(tokens))
    for name in ("W_E_pos",) if ours.pos_embed is not None else ():
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert (ours.W_gate is None) == (theirs.W_gate is None)
    for tokens in (torch.tensor([2]), torch.tensor([[1, 2]]), 3):
        found, expected = (model.tokens_to_residual_directions(tokens) for model in (ours, theirs))
        assert torch.equal(found, expected)


@needs_live
def test_a_window_becomes_theirs_and_ties_are_refused():
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    ours = decoder_of(config_of("window"))
    with pytest.warns(DeprecationWarning, match="HookedTransformer is deprecated"):
        theirs = HookedTransformer(HookedTransformerConfig.from_dict(ours.cfg.to_dict()))
    theirs.load_state_dict(ours.state_dict(), strict=False)
    tokens = torch.arange(9)[None] % 7
    assert_close(ours(tokens), theirs(tokens))
    with pytest.raises(TypeError, match="tied"):
        HookedTransformerConfig.from_dict(decoder_of(config_of("tied")).cfg.to_dict())


@needs_live
def test_every_public_name_of_theirs_is_here_or_left_out():
    _, theirs, _ = pair("gelu and LN")
    ours = decoder_of(config_of("gelu and LN"))
    names = {name for name in dir(theirs) if not name.startswith("_")}
    here = {name for name in names if name in dir(ours) or hasattr(HookedDecoder, name)}
    assert names - here - set(LEFT_OUT) == set()
    assert not here & set(LEFT_OUT)
