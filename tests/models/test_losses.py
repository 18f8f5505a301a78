"""What a pass returns: logits, a loss, the loss of each token, or both; of one sequence or many."""

import numpy as np
import pytest
import torch
from decoder_cases import SHARED, config_of, decoder_of, tokens_of
from lens_pairs import assert_close, needs_live, pair

pytestmark = pytest.mark.tl


def by_hand(logits, tokens):
    """Cross-entropy of each next token, in numpy."""
    logits = logits.detach().numpy()[..., :-1, :]
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_probability, tokens.numpy()[..., 1:, None], -1)[..., 0]


@pytest.mark.parametrize("n_models", [None, 3])
def test_every_kind_of_return(n_models):
    model = decoder_of(config_of("gelu and LN"), n_models=n_models).double()
    tokens = tokens_of(model.config, *([] if n_models is None else [n_models, 4]))
    logits = model(tokens)
    expected = by_hand(logits, tokens)
    per_token = model(tokens, return_type="loss", loss_per_token=True)
    assert per_token.shape == expected.shape
    assert np.allclose(per_token.detach(), expected, atol=1e-12)
    assert np.allclose(model(tokens, "loss").item(), expected.mean(), atol=1e-12)
    both = model(tokens, return_type="both")
    assert torch.equal(both.logits, logits)
    assert np.allclose(both.loss.item(), expected.mean(), atol=1e-12)
    _, loss = model(tokens, "both", True)
    assert np.allclose(loss.detach(), expected, atol=1e-12)
    assert model(tokens, return_type=None) is None
    with pytest.raises(ValueError, match="return_type is 'probabilities', expected 'logits', 'loss', 'both'"):
        model(tokens, return_type="probabilities")


def test_gradients_of_the_loss_of_each_token():
    model = decoder_of(config_of("gelu and LN")).double()
    tokens = tokens_of(model.config)
    mean = torch.autograd.grad(model(tokens, "loss"), list(model.parameters()))
    each = torch.autograd.grad(model(tokens, "loss", loss_per_token=True).mean(), list(model.parameters()))
    for a, b in zip(mean, each, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("n_models", [None, 2])
def test_one_sequence_is_a_batch_of_one(n_models):
    model = decoder_of(config_of("gelu and LN"), n_models=n_models)
    tokens = tokens_of(model.config)
    assert torch.equal(model(tokens[0]), model(tokens[:1]))
    assert torch.equal(model(tokens[0], "loss"), model(tokens[:1], "loss"))
    assert model.input_to_embed(tokens[0])[1].shape == (*([] if n_models is None else [2]), 1, 9)
    if n_models is None:
        _, cache = model.run_with_cache(tokens[0], remove_batch_dim=True)
        assert cache["resid_post", 1].shape == (9, 12)
        with pytest.raises(AssertionError, match="remove_batch_dim of 3 sequences, expected one"):
            model.run_with_cache(tokens, remove_batch_dim=True)


def test_arguments_of_text_change_nothing_of_tokens():
    model = decoder_of(config_of("plain"))
    tokens = tokens_of(model.config)
    for arguments in ({"prepend_bos": True}, {"prepend_bos": False}, {"padding_side": "left"}):
        assert torch.equal(model(tokens, **arguments), model(tokens))


@pytest.mark.parametrize("text", ["a text", ["a", "b"]])
def test_a_text_is_refused(text):
    model = decoder_of(config_of("plain"))
    for call in (model, model.generate, model.run_with_cache, model.to_tokens, model.input_to_embed):
        for kind in (TypeError, AssertionError):
            with pytest.raises(kind, match=r"no tokenizer, expected integer tokens \[batch, position\]"):
                call(text)


# -- beside HookedTransformer --------------------------------------------------------------------------------


@needs_live
@pytest.mark.parametrize("case", SHARED)
def test_returns_are_theirs(case):
    ours, theirs, tokens = pair(case)
    tokens = tokens % ours.config.d_vocab_out
    for given in (tokens, tokens[0]):
        for per_token in (False, True):
            x, y = (model(given, return_type="both", loss_per_token=per_token) for model in (ours, theirs))
            assert type(x)._fields == type(y)._fields == ("logits", "loss")
            assert_close(x.logits, y.logits)
            assert_close(x.loss, y.loss)
            assert_close(ours(given, "loss", per_token), y.loss)
        assert_close(ours(given, prepend_bos=False), theirs(given, prepend_bos=False))
    with pytest.raises(AssertionError):
        theirs("a text")
