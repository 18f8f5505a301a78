"""Attention over two tokens that differ by one key and one value, against attention by the input table."""

import pytest
import torch
from test_input_table import SHAPES, decoder_of, tokens_for

from mechmarkov.models.fast import binary_table, input_table
from mechmarkov.models.fast.binary_table import MIN_ODDS, attend_binary
from mechmarkov.models.fast.choose import is_additive_binary
from mechmarkov.models.fast.input_table import attend_by_table


def inputs(length=70, d=3, models=2, heads=2):
    """Values `[model, token, head, position, d_head]` that are a token's plus a position's."""
    generator = torch.Generator().manual_seed(0)

    def part(tokens, positions):
        drawn = torch.randn(models, tokens, heads, positions, d, generator=generator, dtype=torch.float64)
        return drawn / 2

    return [part(2, 1) + part(1, length) for _ in range(3)]


def words(length=70, batch=5):
    return torch.randint(2, (2, batch, length), generator=torch.Generator().manual_seed(1))


def never(*_):
    raise AssertionError("left to attend_by_table")


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_for_models_whose_tokens_differ_by_the_same_key_at_every_position(shape):
    decoder = decoder_of(**SHAPES[shape])
    repeated = decoder._input_table(tokens_for(decoder))
    seen = {}
    names = ["blocks.0.attn." + ("hook_rot_k" if shape == "rotary" else "hook_k"), "blocks.0.attn.hook_v"]
    alike = torch.arange(decoder.config.d_vocab)[:, None].expand(-1, repeated.shape[-2])
    with torch.no_grad():
        decoder.run_with_hooks(
            alike, fwd_hooks=[(n, lambda x, hook: seen.update({hook.name: x})) for n in names]
        )
    same = []
    for name in names:
        difference = seen[name][:, 1] - seen[name][:, 0]  # [model, position, head, d_head]
        same.append(bool((difference - difference[:, :1]).abs().max() < 1e-12))
    assert is_additive_binary(decoder.config) == (all(same) and shape != "three states")


@pytest.mark.parametrize("window", [None, 0, 9, 65])
@pytest.mark.parametrize("length", [1, 70, 128])
def test_it_gives_what_the_input_table_gives(window, length, monkeypatch):
    q, k, v = inputs(length)
    expected = attend_by_table(q, k, v, words(length), 0.5, window)
    monkeypatch.setattr(binary_table, "attend_by_table", never)
    found = attend_binary(q, k, v, words(length), 0.5, window)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [None, 2])
def test_gradients_are_those_of_finite_differences(window, monkeypatch):
    monkeypatch.setattr(input_table, "QUERY_CHUNK", 4)  # two chunks of queries
    monkeypatch.setattr(binary_table, "attend_by_table", never)
    generator = torch.Generator().manual_seed(2)
    shapes = [(2, 2, 1, 1, 2), (2, 1, 1, 6, 2)] * 3
    parts = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes
    ]

    def attend(*parts):
        q, k, v = (token + position for token, position in zip(parts[::2], parts[1::2], strict=True))
        return attend_binary(q, k, v, words(6, batch=3), 0.7, window)

    assert torch.autograd.gradcheck(attend, parts)


@pytest.mark.parametrize("log_odds", [-30.0, -2.7, 0.0, 2.7, 30.0, 80.0, 800.0])
def test_no_digits_are_lost_whatever_the_odds(log_odds):
    """One token draws more attention than the other by a factor, also where it is rare, in float32."""
    length = 70
    q, k, v = inputs(length, d=1, models=1, heads=1)
    q = torch.ones_like(q)
    k = k.clone()
    k[:, 1] = k[:, 0] + log_odds
    tokens = (torch.arange(length) % torch.tensor([[2], [9], [length]]) == 0).long()[None]
    expected = attend_by_table(q, k, v, tokens, 1.0)
    found = attend_binary(*(x.float() for x in (q, k, v)), tokens, 1.0)
    # Values of 1 in sums of 70; and a score of 800 is rounded before anything is done with it.
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-6 + abs(log_odds) * 2**-23)


@pytest.mark.parametrize("log_odds", [-3.0, 3.0, 40.0])
def test_odds_far_from_one_are_left_to_the_input_table(log_odds, monkeypatch):
    q, k, v = inputs(d=1)
    k[:, 1] = k[:, 0] + log_odds
    left = torch.zeros(2, 5, 2, 70, 1, dtype=torch.float64)
    monkeypatch.setattr(binary_table, "attend_by_table", lambda *_: left)
    found = attend_binary(torch.ones_like(q), k, v, words(), 1.0)
    assert (found is left) == (log_odds in (-3.0, 40.0))
    assert torch.tensor(-3.0).exp() < MIN_ODDS
