"""LSTM and token MLP as mixers: against torch's LSTM, against sums written out, and in a stack."""

import math
from itertools import product

import pytest
import torch
from decoder_cases import randomise

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.recurrent import LSTM
from mechmarkov.models.token_mlp import TokenMLP

SHAPE = {"d_vocab": 3, "n_layers": 2, "d_model": 6, "d_head": 4, "n_heads": 2, "n_ctx": 7}


def config_of(mixer, **changes):
    return DecoderConfig(mixer=mixer, attn_only=True, **SHAPE | changes)


def mixer_of(mixer, **changes):
    model = HookedDecoder(config_of(mixer, **changes)).double()
    randomise(model, seed=0)
    return model.blocks[0].attn


def stream(batch=5, length=7):
    return torch.randn(batch, length, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@torch.no_grad()
def test_one_head_is_the_lstm_of_torch():
    own, u = mixer_of("lstm", n_heads=1), stream()
    theirs = torch.nn.LSTM(6, 4, batch_first=True).double()
    order = ("I", "F", "V", "G")  # torch's gates: in, forget, cell, out
    past = dict(zip(("V", "I", "F", "G"), own.W_R[0].chunk(4, -1), strict=True))
    theirs.weight_ih_l0.copy_(torch.cat([getattr(own, f"W_{side}")[0].T for side in order]))
    theirs.bias_ih_l0.copy_(torch.cat([getattr(own, f"b_{side}")[0] for side in order]))
    theirs.weight_hh_l0.copy_(torch.cat([past[side].T for side in order]))
    theirs.bias_hh_l0.zero_()
    torch.testing.assert_close(own.mix(u, u, u)[..., 0, :], theirs(u)[0], rtol=0, atol=1e-12)


@torch.no_grad()
def test_each_head_is_an_lstm_of_its_own():
    own, u = mixer_of("lstm"), stream()
    z = own.mix(u, u, u)
    for head in range(2):
        one = mixer_of("lstm", n_heads=1)
        for name in ("W_V", "W_I", "W_F", "W_G", "b_V", "b_I", "b_F", "b_G", "W_R"):
            getattr(one, name).copy_(getattr(own, name)[[head]])
        torch.testing.assert_close(one.mix(u, u, u)[..., 0, :], z[..., head, :], rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_token_mlp_is_its_sums_written_out():
    own, u = mixer_of("mlp"), stream(batch=2, length=4)
    z = own.mix(u, u, u)
    v = torch.einsum("btd,hde->bthe", u, own.W_V) + own.b_V
    for b, t, head, d in product(range(2), range(4), range(2), range(4)):
        total = 0.0
        for s in range(t + 1):
            x = own.b_A[head, s] + sum(own.W_A[head, s, r] * v[b, r, head, d] for r in range(s + 1))
            gelu = x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
            total = total + own.W_B[head, t, s] * gelu
        assert float(z[b, t, head, d]) == pytest.approx(float(total), abs=1e-12)


@torch.no_grad()
def test_what_a_hook_writes_into_cells_is_shown():
    model = HookedDecoder(config_of("lstm", n_layers=1)).double()
    randomise(model, seed=0)
    tokens = torch.tensor([[0, 1, 2]])
    _, cache = model.run_with_cache(tokens)
    gone = model.run_with_hooks(
        tokens, fwd_hooks=[("blocks.0.attn.hook_state", lambda c, hook: torch.zeros_like(c))]
    )
    zero = model.run_with_hooks(
        tokens, fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: torch.zeros_like(z))]
    )
    torch.testing.assert_close(gone, zero, rtol=0, atol=1e-14)
    assert cache["blocks.0.attn.hook_state"].shape == (1, 3, 2, 4)


@pytest.mark.parametrize("mixer", ["lstm", "mlp"])
@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("positional_embedding_type", "relative", "'none' or 'standard'"),
        ("positional_embedding_type", "alibi", "'none' or 'standard'"),
        ("n_key_value_heads", 1, "None"),
        ("window", 2, "None"),
        ("d_state", 4, "it left out"),
    ],
)
def test_fields_without_meaning_are_refused(mixer, field, value, expected):
    line = f"{field} is {value!r}, expected {expected} where mixer is '{mixer}'"
    with pytest.raises(ValueError, match=line):
        config_of(mixer, **{field: value})


def test_both_are_registered_by_name():
    assert isinstance(mixer_of("lstm"), LSTM)
    assert isinstance(mixer_of("mlp"), TokenMLP)
    assert config_of("lstm").positional_embedding_type == "none"
