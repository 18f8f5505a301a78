"""Shapes of parameters by the config are those of the model's own modules, in their order."""

import pytest
from probing_cases import SHAPES, config_of

from mechmarkov.models import decoder, shapes
from mechmarkov.models.config import DecoderConfig

MIXERS = {
    "mamba": {"d_state": 4},
    "mamba1": {"d_state": 4, "d_head": 1, "n_heads": 16},
    "lstm": {"d_head": 4},
    "mlp": {"d_head": 4},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_those_of_the_modules(shape):
    config = config_of(shape)
    found, expected = shapes.parameter_shapes(config), decoder.parameter_shapes(config)
    assert list(found.items()) == list(expected.items())


@pytest.mark.parametrize("mixer", MIXERS)
def test_other_mixers_are_asked(mixer):
    config = DecoderConfig(
        n_layers=2,
        d_model=8,
        n_ctx=6,
        d_vocab=3,
        attn_only=True,
        mixer=mixer,
        **{"d_head": 4} | MIXERS[mixer],
    )
    found, expected = shapes.parameter_shapes(config), decoder.parameter_shapes(config)
    assert list(found.items()) == list(expected.items())


def test_a_mixer_of_another_name_is_refused():
    config = DecoderConfig(n_layers=1, d_model=8, d_head=4, n_ctx=6, d_vocab=3, attn_only=True, mixer="none")
    with pytest.raises(ValueError, match="mixer is 'none'"):
        shapes.parameter_shapes(config)
