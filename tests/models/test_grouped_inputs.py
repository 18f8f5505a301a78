"""Keys and values that groups of heads share: hooks and split inputs have HookedTransformer's shapes."""

import pytest
import torch
from decoder_cases import config_of, decoder_of, tokens_of
from lens_pairs import assert_close, needs_live, pair

from mechmarkov.interventions.ablate import ablate_path
from mechmarkov.models import HookedDecoder

pytestmark = pytest.mark.tl

GROUPED = [
    "grouped queries",
    "one key and value for all heads",
    "Llama",
    "Qwen3",
    "relative, grouped queries",
]
POINTS = ["blocks.1.hook_q_input", "blocks.1.hook_k_input", "blocks.1.hook_v_input"]
POINTS += ["blocks.1.attn.hook_q", "blocks.1.attn.hook_k", "blocks.1.attn.hook_v"]


@pytest.mark.parametrize("n_models", [None, 2])
@pytest.mark.parametrize("case", GROUPED)
def test_split_inputs_are_of_groups_and_ungrouped_of_heads(case, n_models):
    model = decoder_of(config_of(case), n_models=n_models).double()
    config, tokens = model.config, tokens_of(model.config)
    heads, groups = config.n_heads, config.n_key_value_heads
    plain = model(tokens)
    expected = {(False, False): (None, groups), (True, False): (groups, groups), (True, True): (heads, heads)}
    expected[False, True] = (None, heads)
    for (split, ungrouped), (of_inputs, of_keys) in expected.items():
        model.set_use_split_qkv_input(split)
        model.set_ungroup_grouped_query_attention(ungrouped)
        logits, cache = model.run_with_cache(tokens, return_cache_object=False)
        assert torch.allclose(logits, plain, atol=1e-11)
        assert torch.allclose(model(tokens), plain, atol=1e-11)  # fused
        with torch.no_grad():
            assert torch.allclose(model(tokens), plain, atol=1e-11)  # keys and values in one product
        for side in "kv":
            assert cache[f"blocks.1.attn.hook_{side}"].shape[-2] == of_keys
            assert (f"blocks.1.hook_{side}_input" in cache) == split
            if split:
                assert cache[f"blocks.1.hook_{side}_input"].shape[-2] == of_inputs
                assert cache["blocks.1.hook_q_input"].shape[-2] == heads


def test_a_common_input_is_of_heads():
    model = decoder_of(config_of("Llama")).double()
    tokens = tokens_of(model.config)
    plain = model(tokens)
    model.set_use_attn_in(True)
    _, cache = model.run_with_cache(tokens)
    assert cache["blocks.1.hook_attn_in"].shape[-2] == 4
    assert torch.allclose(model(tokens), plain, atol=1e-11)


def test_a_group_is_edited_as_one():
    """What is added to the input of a group's keys is added for each of its heads."""
    model = decoder_of(config_of("Llama")).double()
    tokens = tokens_of(model.config)

    def shifted(one):
        def hook(x, hook):
            x[..., one, :] += 1
            return x

        return model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_k_input", hook)])

    model.set_use_split_qkv_input(True)
    of_group = shifted([1])
    model.set_ungroup_grouped_query_attention(True)
    assert torch.allclose(shifted([2, 3]), of_group, atol=1e-11)
    assert (of_group - model(tokens)).abs().max() > 1e-3


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("side", "KV")
def test_a_path_into_a_head_leaves_its_group_alone(side, split):
    """As in a model without groups, whose heads have the same keys and values."""
    model = decoder_of(config_of("Llama")).double()
    tokens = tokens_of(model.config)
    lens = HookedDecoder(config_of("Llama", n_key_value_heads=None)).double()
    lens.load_state_dict({name: model.weight(name) for name, _ in lens.named_parameters()})
    model.set_use_split_qkv_input(split)
    for head in range(4):
        receiver = f"L1H{head}.{side}"
        with ablate_path(model, "L0H1", receiver), ablate_path(lens, "L0H1", receiver):
            assert torch.allclose(model(tokens), lens(tokens), atol=1e-10)
    assert not model.cfg.ungroup_grouped_query_attention


# -- beside HookedTransformer --------------------------------------------------------------------------------


@needs_live
@pytest.mark.parametrize("ungrouped", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("case", [case for case in GROUPED if "relative" not in case])
def test_shapes_and_values_are_theirs(case, split, ungrouped):
    ours, theirs, tokens = pair(case)
    for model in (ours, theirs):
        model.set_use_split_qkv_input(split)
        model.set_ungroup_grouped_query_attention(ungrouped)
        assert model.cfg.ungroup_grouped_query_attention == ungrouped
    (logits, cache), (expected, their_cache) = (m.run_with_cache(tokens) for m in (ours, theirs))
    assert_close(logits, expected)
    assert set(cache) == set(their_cache)
    for name in POINTS if split else POINTS[3:]:
        assert_close(cache[name], their_cache[name])
