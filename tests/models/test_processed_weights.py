"""Weights processed in place: other parameters, the same predictions."""

import pytest
import torch
from decoder_cases import CASES, SHARED, config_of, decoder_of, tokens_of
from lens_pairs import needs_live, pair

from mechmarkov.models import DecoderConfig, HookedDecoder

pytestmark = pytest.mark.tl

ELSEWHERE = [case for case in CASES if "post-norm" in case or "last norm" in case]  # norms
REFUSED = [case for case in CASES if "tied" in case or "shortformer" in case] + ELSEWHERE
ROUNDING = 1e-4  # of log probabilities: TransformerLens processes weights in float32


@pytest.mark.parametrize("case", [case for case in CASES if case not in REFUSED])
def test_predictions_stay(case):
    model = decoder_of(config_of(case))
    tokens, kind = tokens_of(model.config), model.config.normalization_type
    before = model(tokens).log_softmax(-1)
    model.process_weights_()
    assert torch.allclose(model(tokens).log_softmax(-1), before, atol=ROUNDING)
    assert model.config.normalization_type == {"LN": "LNPre", "RMS": "RMSPre"}.get(kind, kind)
    norms = (".ln1.w", ".ln1.b", ".ln2.w", "ln_final.w", "ln_final.b")
    assert not any(name.endswith(norms) for name, _ in model.named_parameters())
    assert not any(block.attn.b_V.abs().max() > 1e-6 for block in model.blocks)  # in b_O now
    assert model.W_U.mean(-1).abs().max() < 1e-6
    if model.config.normalization_type == "LNPre":
        assert model.W_E.mean(-1).abs().max() < 1e-6
        assert model.W_O.mean(-1).abs().max() < 1e-6
    cached, _ = model.run_with_cache(tokens)
    assert torch.allclose(cached, model(tokens), atol=1e-5)  # hook points are those of the new norms


def test_one_step_at_a_time():
    model = decoder_of(config_of("gelu and LN"))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.process_weights_(fold_ln=False, center_writing_weights=False)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, kept[name])}
    biases = {f"blocks.{layer}.attn.{name}" for layer in (0, 1) for name in ("b_V", "b_O")}
    assert changed == biases | {"unembed.W_U", "unembed.b_U"}
    assert model.config.normalization_type == "LN"


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_change_predictions_is_refused(case):
    model = decoder_of(config_of(case))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if case == "shortformer, window":  # it has no norm that could be folded
        model.process_weights_()
        return
    with pytest.raises(AssertionError, match=r"tied is true|would change a log prob|norm\w* is False"):
        model.process_weights_()
    assert model.config == config_of(case)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_stack_and_another_mixer_are_refused():
    with pytest.raises(TypeError, match=r"process_weights_: this is a stack of 2 models.*stack\[i\]"):
        decoder_of(config_of("LN"), n_models=2).process_weights_()
    mamba = DecoderConfig(
        n_layers=1, d_model=8, n_ctx=9, d_head=4, d_vocab=7, d_state=3, attn_only=True, mixer="mamba"
    )
    with pytest.raises(AssertionError, match="mixer is 'mamba', expected 'attention'"):
        HookedDecoder(mamba).process_weights_()


# -- beside HookedTransformer --------------------------------------------------------------------------------


@needs_live
@pytest.mark.parametrize("case", [case for case in SHARED if case not in REFUSED])
def test_the_weights_are_theirs(case):
    ours, theirs, _ = pair(case)
    for model in (ours, theirs):
        model.process_weights_()
    expected = theirs.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.allclose(value, expected[name], atol=1e-6), name
