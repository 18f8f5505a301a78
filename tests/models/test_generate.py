"""Sequences drawn from a decoder: from a law that is known, and with HookedTransformer's own draws."""

import inspect

import numpy as np
import pytest
import torch
from decoder_cases import SHARED, config_of, decoder_of, tokens_of
from lens_pairs import needs_live, pair

import mechmarkov as mm
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.lookup_tables import direct_table

pytestmark = pytest.mark.tl

P = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.2, 0.3, 0.5]])


def chain(n_ctx=40):
    """A model whose next token has the law of its last token's row of P."""
    return direct_table(P.log(), n_ctx)


def test_draws_have_the_law():
    tokens = chain().generate(torch.zeros(400, 1, dtype=torch.long), max_new_tokens=40, verbose=False)
    assert tokens.shape == (400, 41)
    counts = np.zeros((3, 3))
    np.add.at(counts, (tokens[:, :-1].flatten(), tokens[:, 1:].flatten()), 1)
    n = counts.sum(1, keepdims=True)
    error = np.sqrt(P.numpy() * (1 - P.numpy()) / n)
    assert (np.abs(counts / n - P.numpy()) < 4 * error).all()  # nine of them: one in 2000 draws is beyond


def test_temperature_and_the_likeliest_tokens():
    start = torch.tensor([[0], [1], [2]])
    greedy = [[0, 1, 0, 1], [1, 0, 1, 0], [2, 2, 2, 2]]
    for arguments in ({"do_sample": False}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.4}):
        found = chain().generate(start, max_new_tokens=3, verbose=False, **arguments)
        assert found.tolist() == greedy, arguments
    hot = chain().generate(torch.zeros(600, 1, dtype=torch.long), max_new_tokens=10, temperature=1e6)
    assert np.abs(np.bincount(hot[:, 1:].flatten()) / 6000 - 1 / 3).max() < 0.03
    second = chain().generate(torch.zeros(200, 1, dtype=torch.long), max_new_tokens=1, top_k=2)
    assert set(second[:, 1].tolist()) == {1, 2}


def test_what_was_often_seen_is_penalised():
    seen = torch.tensor([[1, 1, 1, 0]])
    plain = chain().generate(seen, max_new_tokens=1, temperature=0.01)
    other = chain().generate(seen, max_new_tokens=1, temperature=0.01, freq_penalty=500.0)
    assert (plain[0, -1], other[0, -1]) == (1, 2)


def test_a_seed_is_of_these_draws_alone():
    start = torch.zeros(20, 1, dtype=torch.long)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (chain().generate(start, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)  # torch's own generator did not move
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(1)
    assert torch.equal(chain().generate(start, seed=None), first)


def test_an_end_of_sequence():
    start = torch.tensor([[0], [1], [2]])
    tokens = chain().generate(start, max_new_tokens=30, eos_token_id=0, verbose=False)
    for row in tokens.tolist():
        first = row.index(0, 1)
        assert set(row[first:]) == {0}
    assert tokens.shape[1] == 1 + max(row.index(0, 1) for row in tokens.tolist())  # no longer than it takes
    either = chain().generate(start, max_new_tokens=30, eos_token_id=[1, 2])
    assert all(set(row[1 + sum(t == 0 for t in row[1:]) :]) <= {1, 2} for row in either.tolist())
    unended = chain().generate(start, max_new_tokens=30, eos_token_id=0, stop_at_eos=False)
    assert unended.shape == (3, 31)
    with pytest.raises(AssertionError, match="give eos_token_id"):
        chain().generate(start, stop_at_eos=True)


@pytest.mark.parametrize("case", ["gelu and LN", "shortformer", "rotary", "relative", "tied"])
def test_kinds_of_input_and_output(case):
    model = decoder_of(config_of(case))
    tokens = tokens_of(model.config, length=4)
    arguments = {"max_new_tokens": 3, "verbose": False}
    whole = model.generate(tokens, **arguments)
    assert torch.equal(whole[:, :4], tokens)
    assert torch.equal(model.generate(tokens[0], **arguments), model.generate(tokens[:1], **arguments))
    embedded = model.embed(tokens).detach()
    before = embedded.clone()
    assert torch.equal(model.generate(embedded, return_type="tokens", **arguments), whole[:, 4:])
    assert torch.equal(embedded, before)
    for given in (tokens, embedded):
        embeds = model.generate(given, return_type="embeds", **arguments)
        assert torch.equal(embeds, model.embed(whole))
    assert torch.equal(model.generate(embedded, **arguments), model.embed(whole))
    texts = model.generate(tokens, return_type="str", **arguments)
    assert texts == [" ".join(map(str, row)) for row in whole.tolist()]
    assert isinstance(model.generate(tokens[0], return_type="str", **arguments), str)
    logits = model.generate(tokens, output_logits=True, return_dict_in_generate=True, **arguments)
    assert torch.equal(logits.sequences, whole)
    assert len(logits.logits) == 3
    assert torch.allclose(logits.logits[-1], model(whole[:, :-1])[:, -1], atol=1e-5)


def test_members_of_a_stack_draw_each_their_own():
    members = [decoder_of(config_of("gelu and LN"), seed=seed) for seed in range(3)]
    stack = HookedDecoder.stack(members)
    tokens = tokens_of(stack.config, length=4)
    found = stack.generate(tokens, max_new_tokens=4, do_sample=False)
    assert found.shape == (3, 3, 8)
    own = stack.generate(tokens_of(stack.config, 3, 2, length=4), max_new_tokens=4)
    assert own.shape == (3, 2, 8)
    for i, member in enumerate(members):
        assert torch.equal(found[i], member.generate(tokens, max_new_tokens=4, do_sample=False))


def test_hooks_act_on_every_token():
    with chain().hooks([("unembed.hook_out", lambda x, hook: -x)]) as model:
        found = model.generate(torch.tensor([[0]]), max_new_tokens=4, do_sample=False)
    assert found.tolist() == [[0, 0, 0, 0, 0]]


def test_what_cannot_be_drawn():
    model, tokens = chain(n_ctx=6), torch.zeros(1, 4, dtype=torch.long)
    assert model.generate(tokens, max_new_tokens=3).shape == (1, 7)  # the last one is not read
    with pytest.raises(AssertionError, match=r"do not fit n_ctx = 6: give max_new_tokens=3 at most"):
        model.generate(tokens)
    with pytest.raises(AssertionError, match="give the last 6 positions"):
        model.generate(torch.zeros(1, 9, dtype=torch.long), max_new_tokens=1)
    with pytest.raises(AssertionError, match="max_new_tokens is 0"):
        model.generate(tokens, max_new_tokens=0)
    with pytest.raises(AssertionError, match="return_type is 'text', expected one of"):
        model.generate(tokens, 1, return_type="text")
    with pytest.raises(AssertionError, match="embeddings have no tokens"):
        model.generate(model.embed(tokens), 1, freq_penalty=1.0)
    with pytest.warns(UserWarning, match="unsupported generation kwargs; ignoring: num_beams"):
        model.generate(tokens, 1, num_beams=2)


def test_a_run_whose_outputs_are_no_logits_is_not_drawn_from():
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(AssertionError, match="predicts a state at a query token"):
        mm.example("walk").model().generate(tokens)
    graph = mm.example("graph").model(steps="all")
    for model in (graph, graph[0]):
        with pytest.raises(AssertionError, match=r"raw_log, its outputs are scores, not logits"):
            model.generate(tokens)
    run = mm.example("induction")
    assert run.model().generate(tokens, max_new_tokens=2).shape == (1, 6)


# -- beside HookedTransformer --------------------------------------------------------------------------------


HOW = [
    {},
    {"top_k": 2},
    {"top_p": 0.6},
    {"temperature": 0.3},
    {"freq_penalty": 1.0},
    {"do_sample": False},
    {"eos_token_id": 2, "stop_at_eos": True},
    {"eos_token_id": [2, 1], "stop_at_eos": True},
]


@needs_live
@pytest.mark.parametrize("case", SHARED)
def test_draws_are_theirs(case):
    """From torch's own generator; their cache misplaces positions where there is no tokenizer."""
    ours, theirs, tokens = pair(case)
    tokens = tokens[:, :4] % ours.config.d_vocab_out
    for how in HOW:
        found = []
        for model, seed in ((ours, {"seed": None}), (theirs, {"use_past_kv_cache": False})):
            torch.manual_seed(1)
            arguments = {"stop_at_eos": False, "verbose": False} | seed | how
            found.append(model.generate(tokens, max_new_tokens=5, **arguments))
        assert torch.equal(*found), how


@needs_live
def test_the_signature_is_theirs():
    _, theirs, _ = pair("plain")
    ours = inspect.signature(HookedDecoder.generate).parameters
    for name, parameter in inspect.signature(theirs.generate).parameters.items():
        assert name in ours
        if name not in ("stop_at_eos", "prepend_bos", "padding_side", "generation_kwargs"):
            assert ours[name].default == parameter.default, name


def test_a_config_without_room_for_a_token():
    config = DecoderConfig(n_layers=1, d_model=4, n_ctx=1, d_head=4, d_vocab=3, attn_only=True)
    assert HookedDecoder(config).generate(torch.zeros(2, 1, dtype=torch.long), 1).shape == (2, 2)
