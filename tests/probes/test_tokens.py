"""Probes on tokens of a chain: models set by hand that hold the token bigram, or only the unigram."""

import numpy as np
import pytest
import torch
from probing_cases import probe_quickly, run_of

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import direct_table

TOKENS = mm.sources.Tokenised(
    source=mm.sources.Switch(p=0.8, q=0.7, lag=2),
    tokeniser={"kind": "greedy", "words": ["a", "b", "ab", "ba", "aab"]},
)


def probed(table, probes):
    floored = torch.tensor(np.log(np.maximum(table, 1e-6))).float()
    return probe_quickly(run_of(direct_table(floored, n_ctx=12), source=TOKENS), probes)


def test_the_token_bigram_is_found_where_it_was_put():
    result = probed(TOKENS.P, ["behaviour", "storage"])
    assert result["behaviour"].scores["nearest_predictor"].value == "bigram"
    assert result["storage"].scores["bigram_home"].value == "direct"


def test_a_token_unigram_is_no_bigram():
    result = probed(np.tile(TOKENS.pi, (5, 1)), ["behaviour", "storage"])
    assert result["behaviour"].scores["nearest_predictor"].value == "unigram"
    assert result["storage"].scores["bigram_home"].value == "none"


def test_the_loss_per_symbol_is_that_of_the_symbols_that_came():
    run = run_of(direct_table(torch.zeros(5, 5), n_ctx=12), source=TOKENS)
    subject = mm.Subject.of(run, sequences=64)
    scores = probe_quickly(run, ["behaviour"])["behaviour"].scores
    targets = subject.batch.targets.numpy()
    symbols = np.array([len(label) for label in TOKENS.labels])[targets].sum()
    assert scores["loss_per_symbol"].value == pytest.approx(targets.size * np.log(5) / symbols, rel=1e-5)
    assert scores["least_per_symbol"].value == pytest.approx(TOKENS.source.entropy_rate)


def test_tokens_are_named_by_their_symbols():
    data = probed(TOKENS.P, ["behaviour"])["behaviour"].data
    assert data.attrs["labels"] == ["a", "b", "ab", "ba", "aab"]


def test_the_least_loss_of_a_hidden_chain_has_no_closed_form():
    source = mm.sources.Tokenised(
        source=mm.HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[[0.8, 0.2], [0.3, 0.7]]),
        tokeniser={"kind": "strings", "length": 2},
    )
    run = run_of(direct_table(torch.zeros(4, 4), n_ctx=6), source=source)
    score = probe_quickly(run, ["behaviour"])["behaviour"].scores["least_per_symbol"]
    assert score.value is None
    assert "no closed form" in score.reason


def test_a_belief_over_many_tokens_is_not_asked_for():
    source = mm.sources.Tokenised(source=mm.Binary(p=0.2, q=0.3), tokeniser={"kind": "strings", "length": 6})
    run = run_of(direct_table(torch.zeros(64, 64), n_ctx=6), source=source)
    assert "64 tokens" in probe_quickly(run, ["belief"]).skipped["belief"]


def test_the_belief_is_read_by_its_parts():
    source = mm.sources.Tokenised(
        source=mm.Binary(p=0.5, q=0.3), tokeniser={"kind": "greedy", "words": ["a", "b", "aab"]}
    )
    run = run_of(direct_table(torch.tensor(np.log(source.P)).float(), n_ctx=12), source=source)
    scores = probe_quickly(run, ["belief"])["belief"].scores
    belief, parents = source.beliefs, mm.Subject.of(run, sequences=64).batch.history.numpy()
    for name, values in source.parts.items():
        exact = belief(parents) @ values
        mean = np.stack([exact[parents == token].mean(0) for token in range(3)])[parents]
        within = ((exact - mean) ** 2).sum() / ((exact - exact.mean((0, 1))) ** 2).sum()
        assert scores[f"part_r2_{name}"].value == pytest.approx(1 - within, abs=0.02)  # of the token only
    assert "part_overlap_memory_pending" in scores
