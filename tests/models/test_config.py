"""DecoderConfig: HookedTransformer's defaults, and one clear line for every mistake."""

import json
import math

import pytest
import torch
from decoder_cases import CASES, config_of
from pydantic import BaseModel, ValidationError

from mechmarkov.models import DecoderConfig
from mechmarkov.utils.config import FieldError
from mechmarkov.utils.errors import one_line

GIVEN = {"n_layers": 2, "d_model": 24, "n_ctx": 8, "d_head": 6, "d_vocab": 3}

# HookedTransformerConfig's values for GIVEN and act_fn "relu", as TransformerLens 3.9.0 fills them in. In a
# table because TransformerLens 4 has the class no more; test_hooked_transformer.py compares live ones.
HOOKED_TRANSFORMER = {
    "n_heads": 4,
    "d_vocab_out": 3,
    "d_mlp": 96,
    "act_fn": "relu",
    "n_key_value_heads": None,
    "use_qk_norm": False,
    "gated_mlp": False,
    "attn_only": False,
    "parallel_attn_mlp": False,
    "normalization_type": "LN",
    "eps": 1e-5,
    "positional_embedding_type": "standard",
    "rotary_dim": None,
    "rotary_base": 10000,
    "rotary_adjacent_pairs": False,
    "use_attn_scale": True,
    "attn_scale": math.sqrt(6),
    "initializer_range": 0.8 / math.sqrt(24),
}


def test_defaults_are_hooked_transformers():
    filled = DecoderConfig(**GIVEN).model_dump()
    state_space = ("d_state", "d_conv", "n_groups", "dt_rank", "conv_act_fn", "use_gate", "use_gate_norm")
    own = {"norm_first": True, "final_norm": True}
    own |= {"tied": False, "window": None, "mixer": "attention", **dict.fromkeys(state_space)}
    assert filled == {**GIVEN, **HOOKED_TRANSFORMER, **own}


def test_hooked_transformers_marks_for_not_given():
    marks = {"n_heads": -1, "d_vocab_out": -1, "attn_scale": -1.0, "initializer_range": -1.0, "d_mlp": None}
    assert DecoderConfig(**GIVEN, **marks) == DecoderConfig(**GIVEN)


def test_defaults_that_depend():
    attn_only = DecoderConfig(**GIVEN, attn_only=True)
    assert attn_only.d_mlp is None
    assert attn_only.act_fn is None
    assert DecoderConfig(**GIVEN, positional_embedding_type="rotary").rotary_dim == 6
    assert DecoderConfig(**GIVEN, attn_scale=2).score_scale == 2.0
    assert DecoderConfig(**GIVEN, attn_scale=2, use_attn_scale=False).score_scale == 1.0


@pytest.mark.parametrize("case", CASES)
def test_a_dumped_config_is_plain_and_comes_back(case):
    config = config_of(case)
    dumped = config.model_dump()
    assert json.loads(json.dumps(dumped)) == dumped
    assert all(type(value) in (bool, int, float, str, type(None)) for value in dumped.values())
    assert DecoderConfig(**dumped) == config
    assert DecoderConfig.model_validate_json(config.model_dump_json()) == config
    assert hash(DecoderConfig(**dumped)) == hash(config)


# What is wrong, and words that the one error about it must hold.
MISTAKES = {
    "missing": ({"d_head": None}, "d_head", "an integer"),
    "a width of zero": ({"d_model": 0}, "d_model", "at least 1"),
    "a number in quotes": ({"d_model": "24"}, "d_model", "an integer"),
    "a truth for a number": ({"n_layers": True}, "n_layers", "an integer"),
    "a number for a truth": ({"attn_only": 1}, "attn_only", "true or false"),
    "a fraction": ({"n_ctx": 8.0}, "n_ctx", "an integer"),
    "no layers": ({"n_layers": 0}, "n_layers", "at least 1"),
    "no heads": ({"n_heads": 0}, "n_heads", "at least 1"),
    "heads that do not divide": ({"d_head": 5}, "n_heads", "d_head 5 does not divide d_model 24"),
    "a head wider than the model": ({"d_head": 25}, "n_heads", "d_head 25 does not divide d_model 24"),
    "no outputs": ({"d_vocab_out": 0}, "d_vocab_out", "at least 1"),
    "unknown": ({"d_modle": 24}, "d_modle", "unknown key d_modle, did you mean d_model?"),
    "an activation we lack": ({"act_fn": "solu"}, "act_fn", "'relu', 'gelu', 'gelu_new' or 'silu'"),
    "an MLP without activation": (
        {"act_fn": None},
        "act_fn",
        "expected 'relu', 'gelu', 'gelu_new' or 'silu'",
    ),
    "a gate without an MLP": ({"attn_only": True, "gated_mlp": True}, "gated_mlp", "there is no MLP"),
    "nothing in parallel": (
        {"attn_only": True, "parallel_attn_mlp": True},
        "parallel_attn_mlp",
        "there is no MLP",
    ),
    "groups of unequal size": ({"n_key_value_heads": 3}, "n_key_value_heads", "a divisor of n_heads 4"),
    "a mixer that is not a name": ({"mixer": "Attention "}, "mixer", "pattern"),
    "no MLP, but its width": ({"attn_only": True, "d_mlp": 7}, "d_mlp", "leave both out"),
    "no MLP, but its activation": ({"attn_only": True, "act_fn": "relu"}, "act_fn", "leave both out"),
    "a norm we lack": ({"normalization_type": "BN"}, "normalization_type", "'RMSPre'"),
    "positions we lack": ({"positional_embedding_type": "T5"}, "positional_embedding_type", "'rotary'"),
    "rotary without rotary": ({"rotary_dim": 4}, "rotary_dim", "'standard'"),
    "an odd rotation": (
        {"positional_embedding_type": "rotary", "rotary_dim": 3},
        "rotary_dim",
        "an even number up to d_head 6",
    ),
    "a rotation wider than the head": (
        {"positional_embedding_type": "rotary", "rotary_dim": 8},
        "rotary_dim",
        "an even number up to d_head 6",
    ),
    "tied to more than there is": ({"tied": True, "d_vocab_out": 4}, "tied", "larger than d_vocab 3"),
    "a window into the future": ({"window": -1}, "window", "at least 0"),
    "a scale of zero": ({"attn_scale": 0.0}, "attn_scale", "above 0"),
    "no scale": ({"attn_scale": math.nan}, "attn_scale", "at most"),
    "an endless scale": ({"attn_scale": math.inf}, "attn_scale", "at most"),
    "no eps": ({"eps": math.nan}, "eps", "at most 1"),
    "absurdly many layers": ({"n_layers": 10**9}, "n_layers", "at most 256"),
    "absurdly wide": ({"d_model": 2**40}, "d_model", "at most 65536"),
    "an absurdly large number": ({"d_vocab": 10**40}, "d_vocab", "at most 65536"),
    "absurdly long": ({"n_ctx": 2**31}, "n_ctx", "at most 1048576"),
    "an absurdly wide MLP": ({"d_mlp": 10**9}, "d_mlp", "at most 65536"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_error_on_one_line_that_names_the_field(mistake):
    changes, field, words = MISTAKES[mistake]
    with pytest.raises(FieldError) as caught:
        DecoderConfig(**(GIVEN | changes))
    line = str(caught.value)
    assert "\n" not in line
    assert field in line
    assert words in line


def test_what_json_has_no_name_for_is_missing_without_a_word_of_what_it_would_be():
    class Odd(BaseModel, arbitrary_types_allowed=True):
        what: torch.Tensor

    with pytest.raises(ValidationError) as caught:
        Odd()
    assert one_line(caught.value, Odd) == "what is missing"


def test_a_missing_width_is_the_only_error():
    for field in GIVEN:
        with pytest.raises(
            FieldError, match=f"^DecoderConfig: {field} is missing, expected an integer of at least 1$"
        ):
            DecoderConfig(**{name: value for name, value in GIVEN.items() if name != field})
