"""Tokens as texts: a run's decoder knows its source's labels."""

import numpy as np
import pytest
import torch
from decoder_cases import config_of, decoder_of

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder

pytestmark = pytest.mark.tl

LABELS = ["rain", "sun", "snow"]


@pytest.fixture(scope="module")
def run():
    source = mm.Observed(tokens=(LABELS * 200)[:500], order=1, alphabet=LABELS, each="state")
    config = DecoderConfig(n_layers=1, d_model=6, n_ctx=9, d_head=6, d_vocab=3, attn_only=True)
    return mm.Run.from_model(HookedDecoder(config), source=source)


def test_a_decoder_of_a_run_names_its_tokens(run):
    tokens = [0, 2, 1, 1]
    names = ["rain", "snow", "sun", "sun"]
    model = run.model()
    for given in (tokens, torch.tensor(tokens), torch.tensor([tokens]), np.array(tokens)):
        assert model.to_str_tokens(given) == names
    assert model.to_str_tokens([torch.tensor([0, 1]), torch.tensor([2])]) == [["rain", "sun"], ["snow"]]
    assert model.to_str_tokens(torch.tensor(2), prepend_bos=False) == ["snow"]
    assert model.to_str_tokens(torch.zeros(0, dtype=torch.long)) == []
    assert model.to_string(torch.tensor(tokens)) == "rain snow sun sun"
    assert model.to_string([[0, 1], [2, 2]]) == ["rain sun", "snow snow"]
    assert model.to_single_str_token(2) == "snow"
    assert model.to_single_token("snow") == 2
    assert model.get_token_position("sun", torch.tensor(tokens)) == 2
    assert model.get_token_position(1, torch.tensor([tokens]), mode="last") == 3
    assert torch.equal(model.tokens_to_residual_directions("snow"), model.W_U[:, 2])
    assert model.generate(torch.tensor([[0]]), 2, return_type="str").startswith("rain ")


def test_labels_go_with_members_copies_and_stacks(run):
    stack = run.model(steps="all")
    lens = run.model().as_lens()
    for model in (stack, stack[0], lens, HookedDecoder.stack([stack[0], run.model()])):
        assert model.to_str_tokens([0, 1]) == ["rain", "sun"]


def test_a_query_token_has_a_name():
    assert mm.example("walk").model().to_str_tokens([5, 6]) == ["5", "query"]


def test_without_a_source_labels_are_numbers():
    model = decoder_of(config_of("plain"))
    assert model.tokenizer is None
    assert model.to_str_tokens([0, 6]) == ["0", "6"]
    assert model.to_single_token("6") == 6


def test_what_has_no_label(run):
    model = run.model()
    calls = {
        r"token is 3, expected 0 to 2": lambda: model.to_str_tokens([0, 3]),
        r"token is -1, expected 0 to 2": lambda: model.to_single_str_token(-1),
        r"label is 'hail', expected one of rain, sun, snow": lambda: model.to_single_token("hail"),
        r"to_str_tokens of tokens \[2, 3\]": lambda: model.to_str_tokens(torch.zeros(2, 3)),
        r"token 1 does not occur": lambda: model.get_token_position("sun", torch.tensor([0, 2])),
        r"mode is 'middle'": lambda: model.get_token_position(0, torch.tensor([0, 2]), mode="middle"),
        r"tokens have shape \[2, 1\]": lambda: model.get_token_position(0, torch.zeros(2, 1)),
        r"to_str_tokens of a text: a HookedDecoder has no tokenizer": lambda: model.to_str_tokens("rain"),
        r"get_token_position in a text": lambda: model.get_token_position(0, "rain"),
    }
    for message, call in calls.items():
        with pytest.raises(AssertionError, match=message):
            call()


def test_an_array_is_told_to_be_a_tensor(run):
    for tokens in ([0, 1], np.array([0, 1])):
        with pytest.raises(TypeError, match=r"expected a tensor: torch.as_tensor\(input\)$"):
            run.model()(tokens)
