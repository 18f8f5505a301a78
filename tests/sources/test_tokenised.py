"""Tokens: against plain encoders on all short texts, on long samples, and against `tokenizers`."""

import json
import re
from itertools import pairwise, product

import numpy as np
import pytest
from enumeration import EXACT, assert_exact, generator
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.trainers import BpeTrainer

from mechmarkov.sources import Binary, Chain, HiddenMarkov, OrderK, Switch, Tokenised
from mechmarkov.sources.tokens.dictionaries import bpe, every_bpe, lzw
from mechmarkov.sources.tokens.symbol_chain import symbol_chain
from mechmarkov.sources.tokens.tokenisers import Greedy, Merges, Strings
from mechmarkov.theory import token_law, transducer

P3 = [[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]]
SECOND = [[[0.8, 0.2], [0.3, 0.7]], [[0.1, 0.9], [0.6, 0.4]]]
HIDDEN = HiddenMarkov(transitions=[[0.9, 0.1], [0.3, 0.7]], emissions=[[0.8, 0.2], [0.25, 0.75]])
WORDS = Greedy(words=["a", "b", "ab", "aba"])
CASES = [
    Tokenised(source=Switch(p=0.8, q=0.8, lag=2), tokeniser=Strings(length=2)),
    Tokenised(source=Binary(p=0.2, q=0.3), tokeniser=WORDS),
    Tokenised(source=OrderK(SECOND), tokeniser=Greedy(words=["bb", "a", "b", "bab"])),
    Tokenised(source=HIDDEN, tokeniser=WORDS),
    Tokenised(source=Chain(P3), tokeniser=Greedy(words=["a", "b", "c", "aa", "bc"])),
    Tokenised(source=Binary(p=0.6, q=0.3), tokeniser=Merges(merges=[["a", "a"], ["aa", "b"]])),
    Tokenised(source=OrderK(SECOND), tokeniser=Merges(merges=[["b", "a"], ["ba", "ba"]])),
]


def encoded(source, text):
    """Plain encoders, which look at the whole text."""
    labels = source.labels
    if isinstance(source.tokeniser, Strings):
        r = source.tokeniser.length
        return [labels.index(text[i : i + r]) for i in range(0, len(text) // r * r, r)]
    if isinstance(source.tokeniser, Greedy):
        longest = re.compile("|".join(sorted(labels, key=len, reverse=True)))
        return [labels.index(word) for word in longest.findall(text)]
    pieces, ranks = list(text), {merge: i for i, merge in enumerate(source.tokeniser.merges)}
    while True:
        pairs = [(ranks.get((a, b), np.inf), i) for i, (a, b) in enumerate(pairwise(pieces))]
        rank, i = min(pairs, default=(np.inf, 0))
        if rank == np.inf:
            return [labels.index(piece) for piece in pieces]
        pieces[i : i + 2] = ["".join(pieces[i : i + 2])]


def pending_text(source, state, queue):
    """Symbols that were read and are not yet told by a token."""
    waiting = "".join(source.labels[token] for token in queue)
    if isinstance(source.tokeniser, Merges):  # later merges hold what was read earlier
        held = (first for (first, _), on in zip(source.tokeniser.merges, state, strict=True) if on)
        return waiting + "".join(reversed(list(held)))
    return waiting + "".join("abc"[symbol] for symbol in state)


def joint_law(source, n):
    """The law of n tokens: from each place where a token may end, all texts that decide what follows."""
    T = symbol_chain(source.source)
    longest = max(map(len, source.labels))
    joint = np.zeros((source.n_states,) * n)
    for start, place in zip(source.hidden_law, source.chain.pending, strict=True):
        state, queue, hidden = place
        first = pending_text(source, state, queue)
        for new in product(range(len(T)), repeat=n * longest + longest - 1 - len(first)):
            at = np.eye(T.shape[1])[hidden]
            for symbol in new:
                at = at @ T[symbol]
            if at.sum():
                text = first + "".join("abc"[symbol] for symbol in new)
                joint[tuple(encoded(source, text)[:n])] += start * at.sum()
    return joint


@pytest.mark.parametrize("source", CASES, ids=lambda source: source.title())
def test_laws_and_best_against_all_short_texts(source):
    n = 2 if source.source.n_states == 3 or len(max(source.labels, key=len)) > 3 else 3
    joint = joint_law(source, n)
    assert_exact(source, lambda x: joint[x], n)


@pytest.mark.parametrize("source", CASES, ids=lambda source: source.title())
def test_one_solve_over_symbols_gives_the_token_law(source):
    np.testing.assert_allclose(source.pi, source.in_the_long_run.law, **EXACT)
    lengths = np.array([len(label) for label in source.labels])
    assert source.symbols_per_token == pytest.approx(source.pi @ lengths, abs=1e-12)


@pytest.mark.parametrize("source", CASES, ids=lambda source: source.title())
def test_a_long_text_has_these_tokens_and_pairs(source):
    symbols = source.source.sample(1, 60_000, generator=generator(1))[0].tolist()
    tokens = np.array(source.transducer.encode(symbols))
    pairs = np.zeros((source.n_states, source.n_states))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1 / (len(tokens) - 1))
    np.testing.assert_allclose(pairs, source.pi[:, None] * source.P, rtol=0, atol=0.015)


@pytest.mark.parametrize("source", CASES, ids=lambda source: source.title())
def test_both_encoders_agree_on_a_long_text(source):
    symbols = source.source.sample(1, 400, generator=generator(2))[0].tolist()
    written = source.transducer.encode(symbols)
    assert written == encoded(source, "".join("abc"[symbol] for symbol in symbols))[: len(written)]
    assert sum(len(source.labels[token]) for token in written) > 390


def text(rng_seed, lag, n=5_000):
    """A switching chain by numpy's generator, behind zeros."""
    switches = np.random.default_rng(rng_seed).random(n) < 0.8
    x = [0] * lag
    for switch in switches:
        x.append(x[-lag] ^ int(switch))
    return x[lag:]


# The dictionaries of LZW are those of one text; over texts the loss varies (see the next test).
KNOWN = {
    "2-strings": (lambda lag: Strings(length=2), 0.5968, 0.6931),
    "4-strings": (lambda lag: Strings(length=4), 0.5486, 0.5968),
    "LZW, 16": (lambda lag: lzw(text(1, lag), 2, 16), 0.6009, 0.6216),
    "LZW, 128": (lambda lag: lzw(text(1, lag), 2, 128), 0.5550, 0.5758),
}


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("name", KNOWN)
def test_losses_per_symbol_have_their_known_values(name, lag):
    make, *expected = KNOWN[name]
    source = Tokenised(source=Switch(p=0.8, q=0.8, lag=lag), tokeniser=make(lag))
    assert round(source.in_the_long_run.loss_per_symbol, 4) == expected[lag - 1]
    assert round(source.unigram_entropy / source.symbols_per_token, 4) == expected[lag - 1]
    assert round(source.symbol_entropy_rate, 4) == 0.5004


def test_the_loss_of_lzw_depends_on_its_text():
    T = symbol_chain(Switch(p=0.8, q=0.8, lag=1))
    losses = []
    for seed in range(40):
        words = lzw(text(seed, 1, 200), 2, 16).transducer(2)
        losses.append(token_law.unigram(T, words).loss_per_symbol)
    assert np.std(losses) > 0.015


def test_blocks_of_the_order_make_a_chain_of_tokens():
    source = CASES[0]
    bigram = -(source.pi[:, None] * source.P * np.log(source.P)).sum()
    assert bigram == pytest.approx(2 * source.symbol_entropy_rate, abs=1e-12)
    assert source.entropy_rate == pytest.approx(bigram, abs=1e-12)


@pytest.mark.parametrize("source", [CASES[1], CASES[2], CASES[5]], ids=lambda source: source.title())
def test_more_last_tokens_come_nearer_the_entropy_rate(source):
    """Conditional entropies of all short windows fall to the rate, which is that of the symbols."""
    n = 7
    tokens = np.array(list(product(range(source.n_states), repeat=n - 1)))
    rules = source.predictors()
    joint = np.zeros((len(tokens), source.n_states))
    ahead = source.hidden_law * source.E.T[tokens[:, 0]]
    for t in range(1, n - 1):
        ahead = ahead @ source.T * source.E.T[tokens[:, t]]
    joint = ahead @ source.T @ source.E
    losses = []
    for name in ("unigram", "bigram", "order_2", "order_3", "forward_filter"):
        law = rules[name].probabilities(tokens)[:, -1]
        losses.append(-(joint * np.log(np.where(law > 0, law, 1))).sum())
    assert np.all(np.diff(losses) <= 1e-12)
    assert source.entropy_rate - 1e-12 <= losses[-1] <= source.entropy_rate + 0.01


def test_last_tokens_are_the_filter_begun_anew():
    source = CASES[2]
    tokens = source.sample(4, 8, generator=generator()).numpy()
    for k in (2, 3):
        law = source.predictors()[f"order_{k}"].probabilities(tokens)
        for t in range(8):
            fresh = source.best().probabilities(tokens[:, max(0, t + 1 - k) : t + 1])[:, -1]
            np.testing.assert_allclose(law[:, t], fresh, **EXACT)


def test_byte_pairs_encode_as_tokenizers_do():
    source = CASES[5]
    vocabulary = {label: i for i, label in enumerate(source.labels)}
    theirs = Tokenizer(BPE(vocabulary, [tuple(merge) for merge in source.tokeniser.merges]))
    symbols = source.source.sample(1, 3_000, generator=generator(3))[0].tolist()
    ours = source.transducer.encode(symbols)
    assert theirs.encode("".join("ab"[symbol] for symbol in symbols)).ids[: len(ours)] == ours


def test_longest_words_encode_as_tokenizers_do():
    source = CASES[1]
    vocabulary = {label: i for i, label in enumerate(source.labels)} | {"?": 4}
    theirs = Tokenizer(
        WordPiece(vocabulary, unk_token="?", max_input_chars_per_word=10_000, continuing_subword_prefix="")
    )
    symbols = source.source.sample(1, 3_000, generator=generator(4))[0].tolist()
    ours = source.transducer.encode(symbols)
    assert theirs.encode("".join("ab"[symbol] for symbol in symbols)).ids[: len(ours)] == ours


def test_tokenizers_finds_the_merges_that_the_law_says():
    source = Binary(p=0.2, q=0.35)
    theirs = Tokenizer(BPE())
    symbols = source.sample(1, 40_000, generator=generator(5))[0].tolist()
    theirs.train_from_iterator(
        ["".join("ab"[symbol] for symbol in symbols)], BpeTrainer(vocab_size=6, show_progress=False)
    )
    found = [label for label, _ in sorted(theirs.get_vocab().items(), key=lambda item: item[1])]
    assert found[2:] == ["".join(merge) for merge in bpe(source, 4).merges]


def test_a_tie_in_law_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"^merges\[0\] is a tie in law of a\+a, a\+b, b\+a, b\+b, expected"):
        bpe(Switch(p=0.8, q=0.8, lag=2), 1)
    firsts = {each.merges for each in every_bpe(Switch(p=0.8, q=0.8, lag=2), 1)}
    assert firsts == {(pair,) for pair in product("ab", repeat=2)}


def test_ties_may_lead_to_unequal_losses():
    source = Switch(p=0.8, q=0.8, lag=2)
    chains = (Tokenised(source=source, tokeniser=each) for each in every_bpe(source, 2))
    losses = {round(chain.in_the_long_run.loss_per_symbol, 6) for chain in chains}
    assert len(losses) > 1


def test_a_text_too_short_for_a_dictionary_is_refused():
    with pytest.raises(
        ValueError, match=r"^a text of 3 symbols gives 4 words, expected 16: pass a longer one$"
    ):
        lzw([0, 1, 0], 2, 16)


def test_thousands_of_words_have_their_exact_loss():
    T = symbol_chain(Switch(p=0.8, q=0.8, lag=1))
    loss = token_law.unigram(T, transducer.strings(2, 10)).loss_per_symbol
    rate = -(0.8 * np.log(0.8) + 0.2 * np.log(0.2))
    assert loss == pytest.approx((np.log(2) + 9 * rate) / 10, abs=1e-9)


def test_no_closed_form_of_the_source_is_none_of_its_tokens():
    assert hasattr(CASES[1], "entropy_rate")
    assert not hasattr(CASES[3], "entropy_rate")


def test_parts_are_the_memory_and_what_is_pending():
    source = Tokenised(source=Binary(p=0.5, q=0.5), tokeniser=Greedy(words=["a", "b", "aab"]))
    # Behind b nothing is pending. To write a then takes ab, so that b is next, or aaa, so that aa is held.
    belief = source.beliefs(np.array([[1, 0]]))[0, -1]
    assert list(source.parts) == ["memory", "pending"]
    for values in source.parts.values():
        np.testing.assert_allclose(sorted(belief @ values)[-2:], [1 / 3, 2 / 3], **EXACT)
    places = source.chain.pending
    held = sum(share for share, place in zip(belief, places, strict=True) if place[0])
    assert held == pytest.approx(1 / 3)


def test_a_part_that_never_varies_is_none():
    source = Tokenised(
        source={"kind": "binary", "p": 0.3, "q": 0.6}, tokeniser={"kind": "strings", "length": 2}
    )
    assert list(source.parts) == ["memory"]
    belief = source.beliefs(np.arange(4)[:, None])[:, 0] @ source.parts["memory"]
    assert source.labels == ("aa", "ab", "ba", "bb")  # the memory is the last symbol
    np.testing.assert_allclose(belief[0], belief[2], **EXACT)
    assert np.abs(belief[0] - belief[1]).max() == pytest.approx(1)


@pytest.mark.parametrize("source", CASES, ids=lambda source: source.title())
def test_what_is_pending_tells_the_symbols_that_wait(source):
    texts = [pending_text(source, *place[:2]) for place in source.chain.pending]
    values = source.parts.get("pending", np.ones((source.n_hidden, 1))).argmax(1).tolist()
    assert len(set(zip(values, texts, strict=True))) == len(set(values))


def test_three_thousand_words_have_one_law():
    text = Switch(p=0.8, q=0.8, lag=2).sample(1, 64_200, generator=generator(0))[0].tolist()
    source = Tokenised(source=Switch(p=0.8, q=0.8, lag=2), tokeniser=lzw(text, 2, 3200))
    assert source.n_states == 3200
    # The chain of tokens against the linear solve over symbols, which has no limit.
    np.testing.assert_allclose(source.pi, source.in_the_long_run.law, atol=1e-12)


def test_too_many_hidden_states_are_one_line():
    source, theirs = Binary(p=0.8, q=0.8), Tokenizer(BPE())
    text = "".join("ab"[symbol] for symbol in source.sample(1, 20_000, generator=generator(0))[0].tolist())
    theirs.train_from_iterator([text], BpeTrainer(vocab_size=32, show_progress=False))
    merges = json.loads(theirs.to_str())["model"]["merges"]
    with pytest.raises(ValueError, match="more than 4096 hidden states together") as told:
        Tokenised(source=source, tokeniser=Merges(merges=merges))
    assert "\n" not in str(told.value)
