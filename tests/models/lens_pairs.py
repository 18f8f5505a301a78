"""A HookedTransformer of TransformerLens 3.9 beside a decoder of the same weights."""

from importlib.util import find_spec

import pytest
import torch
from decoder_cases import BASE, SHARED, config_of, randomise, tokens_of

from mechmarkov.models import HookedDecoder

LIVE = find_spec("transformer_lens.HookedTransformer") is not None
needs_live = pytest.mark.skipif(
    not LIVE, reason="HookedTransformer was removed in TransformerLens 4; runs in make test-tl3"
)
needs_bridge = pytest.mark.skipif(
    LIVE, reason="TransformerLens 3's native bridge ignores hooks; HookedTransformer itself is tested there"
)


def assert_close(ours, theirs, tolerance=1e-5):
    """Within 1e-5 max(1, |value|), the promise of the decoder."""
    assert ours.shape == theirs.shape
    assert (ours.isinf() == theirs.isinf()).all()
    error = torch.where(theirs.isinf(), 0.0, (ours - theirs).abs() / theirs.abs().clamp_min(1.0))
    assert error.max() <= tolerance


def hooked_transformer(**config):
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    with pytest.warns(DeprecationWarning, match="HookedTransformer is deprecated"):
        model = HookedTransformer(HookedTransformerConfig(**config))
    return randomise(model, seed=1)


def pair(case, **changes):
    """A live HookedTransformer with every weight drawn, a decoder with the same weights, and tokens."""
    theirs = hooked_transformer(**(BASE | SHARED[case] | changes))
    ours = HookedDecoder(config_of(case, **changes))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, tokens_of(ours.config)
