"""The decoder against its equations in numpy, and fused against spelled out."""

import copy

import numpy as np
import pytest
import torch
from decoder_cases import CASES, MIXERS, OWN, config_of, decoder_of, stacked_and_alone, tokens_of
from decoder_equations import look, losses_and_gradients, reference, relative_error
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechmarkov.models import HookedDecoder, attention

pytestmark = pytest.mark.tl


@pytest.mark.parametrize("case", CASES)
def test_the_equations(case):
    decoder = decoder_of(config_of(case)).double()
    tokens = tokens_of(decoder.config)
    expected = reference(decoder.config, decoder.state_dict(), tokens)
    assert relative_error(decoder(tokens), expected) < 1e-10
    assert relative_error(decoder.run_with_cache(tokens)[0], expected) < 1e-10


@pytest.mark.parametrize("case", ["relative, window, MLP, LN", "tied", "rotary, part of the head"])
def test_a_short_sequence_of_one_batch(case):
    decoder = decoder_of(config_of(case)).double()
    for length in (1, 4):
        tokens = tokens_of(decoder.config, 1, length=length)
        expected = reference(decoder.config, decoder.state_dict(), tokens)
        assert relative_error(decoder(tokens), expected) < 1e-10
        assert relative_error(decoder.run_with_cache(tokens)[0], expected) < 1e-10


def test_float32_is_near_float64():
    for case in CASES:
        decoder = decoder_of(config_of(case))
        tokens = tokens_of(decoder.config)
        assert decoder(tokens).dtype == torch.float32
        assert relative_error(decoder(tokens), reference(decoder.config, decoder.state_dict(), tokens)) < 3e-6


# -- fused against spelled out -------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "n_models"), stacked_and_alone(CASES, 3))
def test_fused_equals_spelled_out(case, n_models, monkeypatch):
    monkeypatch.setattr(attention, "MAX_SPELLED_OUT", 0)
    decoder = decoder_of(config_of(case), n_models=n_models).double()
    tokens = tokens_of(decoder.config)
    fused, fused_gradients = losses_and_gradients(decoder, tokens, [])
    spelled = [(lambda name: name.endswith("hook_attn_scores"), look)]
    logits, gradients = losses_and_gradients(decoder, tokens, spelled)
    assert torch.allclose(fused, logits, rtol=1e-11, atol=1e-11)
    for name, gradient in gradients.items():
        assert torch.allclose(fused_gradients[name], gradient, rtol=1e-9, atol=1e-10), name


@pytest.mark.parametrize("case", CASES)
def test_looking_at_a_small_pass_changes_no_bit_of_it(case):
    decoder = decoder_of(config_of(case))
    tokens = tokens_of(decoder.config)
    unseen, unseen_gradients = losses_and_gradients(decoder, tokens, [])
    seen, gradients = losses_and_gradients(decoder, tokens, [(lambda _: True, look)])
    assert torch.equal(unseen, seen)
    assert all(torch.equal(unseen_gradients[name], gradient) for name, gradient in gradients.items())
    assert torch.equal(decoder(tokens), decoder.run_with_cache(tokens)[0])


def test_second_derivatives_need_the_mathematical_kernel_or_a_hook(monkeypatch):
    """Torch's fused CPU kernel has no second derivative; spelled out, or by the "math" kernel, it has."""
    monkeypatch.setattr(attention, "MAX_SPELLED_OUT", 0)
    decoder = decoder_of(config_of("relative", n_layers=1)).double()
    tokens, weight = tokens_of(decoder.config), decoder.blocks[0].attn.W_Q

    def curvature(loss):
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    hook = [("blocks.0.attn.hook_pattern", look)]
    spelled = curvature(decoder.run_with_hooks(tokens, return_type="loss", fwd_hooks=hook))
    with sdpa_kernel(SDPBackend.MATH):
        fused = curvature(decoder(tokens, return_type="loss"))
    assert spelled.abs().max() > 1e-3
    assert torch.allclose(fused, spelled, rtol=1e-8, atol=1e-10)


def test_no_later_token_changes_an_earlier_logit():
    for case in CASES | MIXERS:
        decoder = decoder_of(config_of(case)).double()
        tokens = tokens_of(decoder.config)
        later = tokens.clone()
        later[:, 5:] = (later[:, 5:] + 1) % decoder.config.d_vocab
        before, after = decoder(tokens), decoder(later)
        assert torch.allclose(before[:, :5], after[:, :5], atol=1e-12)
        assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3


def test_a_window_forgets_what_lies_behind_it():
    """In one layer a logit sees the last window + 1 tokens: lags 0 to window."""
    decoder = decoder_of(config_of("window", n_layers=1)).double()
    tokens = tokens_of(decoder.config)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % decoder.config.d_vocab
    moved = (decoder(tokens) - decoder(changed)).abs().amax((0, 2))
    assert (moved[:3] > 1e-3).all()
    assert (moved[3:] == 0).all()


# -- tied weights, copies, files -----------------------------------------------------------------------------


def test_a_tied_tensor_is_one_parameter_with_the_gradient_of_both_its_uses():
    tied = decoder_of(config_of("tied, fewer outputs, LN")).double()
    free = HookedDecoder(config_of("tied, fewer outputs, LN", tied=False)).double()
    W_E = tied.embed.W_E
    free.load_state_dict({**tied.state_dict(), "unembed.W_U": W_E[:5].T})
    assert sum(parameter is W_E for parameter in tied.parameters()) == 1
    assert "unembed.W_U" not in tied.state_dict()
    assert {name for name, _ in free.named_parameters()} - {name for name, _ in tied.named_parameters()} == {
        "unembed.W_U"
    }
    tokens = tokens_of(tied.config)
    for model in (tied, free):
        model(tokens).sin().sum().backward()
    expected = free.embed.W_E.grad.clone()
    expected[:5] += free.unembed.W_U.grad.T
    assert torch.allclose(W_E.grad, expected, atol=1e-12)
    assert expected[:5].abs().min() > 0


@pytest.mark.parametrize("n_models", [None, 2])
def test_a_copy_of_a_tied_model_is_tied_to_itself(n_models):
    original = decoder_of(config_of("tied"), n_models=n_models)
    tokens = tokens_of(original.config)
    before, twin = original(tokens), copy.deepcopy(original)
    with torch.no_grad():
        twin.embed.W_E.mul_(2)
    assert torch.equal(twin.unembed.W_U, twin.embed.W_E.mT)
    assert torch.equal(original(tokens), before)
    assert not torch.allclose(twin(tokens), before)


@pytest.mark.parametrize("case", ["gelu and LN", *OWN])
@pytest.mark.parametrize("n_models", [None, 2])
def test_a_saved_state_dict_is_the_model(case, n_models, tmp_path):
    original = decoder_of(config_of(case), n_models=n_models)
    torch.save(original.state_dict(), tmp_path / "state.pt")
    again = HookedDecoder(original.config, n_models)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    tokens = tokens_of(original.config)
    assert torch.equal(again(tokens), original(tokens))


def test_another_models_weights_are_refused():
    decoder = decoder_of(config_of("LN"))
    with pytest.raises(RuntimeError, match=r"Missing key.*ln1"):
        decoder.load_state_dict(decoder_of(config_of()).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        decoder.load_state_dict(decoder_of(config_of("LN", d_head=4)).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        decoder.load_state_dict(decoder_of(config_of("LN"), n_models=2).state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*W_U"):
        decoder_of(config_of("tied")).load_state_dict(decoder_of(config_of()).state_dict())


# -- bad input, and more -------------------------------------------------------------------------------------


def test_tokens_that_do_not_fit():
    decoder = decoder_of(config_of())
    tokens = tokens_of(decoder.config)
    with pytest.raises(ValueError, match=r"10 positions, expected 1 to n_ctx = 9"):
        decoder(torch.cat([tokens, tokens[:, :1]], dim=1))
    with pytest.raises(ValueError, match="0 positions"):
        decoder(tokens[:, :0])
    for wrong in (tokens[0, 0], tokens[None]):
        with pytest.raises(ValueError, match=r"expected \[batch, position\], \[position\]$"):
            decoder(wrong)
    for outside in (-1, 7):
        with pytest.raises(IndexError):
            decoder(torch.full((1, 3), outside))


def test_one_token_alone_and_an_empty_batch():
    decoder = decoder_of(config_of())
    assert decoder(torch.zeros(1, 1, dtype=torch.long)).shape == (1, 1, 7)
    assert decoder(torch.zeros(0, 9, dtype=torch.long)).shape == (0, 9, 7)


def test_loss_is_the_mean_next_token_cross_entropy():
    decoder = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(decoder.config)
    logits = decoder(tokens).detach().numpy()[:, :-1]
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_probability, tokens.numpy()[:, 1:, None], -1)
    assert abs(decoder(tokens, return_type="loss").item() + picked.mean()) < 1e-12
    assert decoder(tokens, return_type=None) is None


def test_a_model_is_true_and_a_single_one_has_no_length():
    decoder = decoder_of(config_of())
    assert bool(decoder)
    with pytest.raises(TypeError, match="no length"):
        len(decoder)


@pytest.mark.parametrize(("case", "n_models"), stacked_and_alone(CASES, 3))
def test_a_batch_that_no_fused_kernel_addresses_at_once(case, n_models, monkeypatch):
    """CUDA's kernels address 65 535; the limit is lowered so that the parts are met on any device."""
    decoder = decoder_of(config_of(case), n_models=n_models)
    tokens = tokens_of(decoder.config)
    whole = decoder(tokens)
    monkeypatch.setattr(attention, "MAX_FUSED_BATCH", 2)
    torch.testing.assert_close(decoder(tokens), whole, rtol=1e-5, atol=1e-6)  # float32, another split of sums
