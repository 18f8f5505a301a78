"""Sums over sequences against loops over the raw pattern, and TransformerLens' detection patterns."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.induction import matches
from mechmarkov.probes.induction.recorded import INDUCTION, reference
from probing_cases import RAW_LOG, random_run, subject_of
from transformer_lens.head_detector import (
    get_duplicate_token_head_detection_pattern,
    get_induction_head_detection_pattern,
    get_previous_token_head_detection_pattern,
)

from mechmarkov.objectives import Objective

pytestmark = pytest.mark.tl

CASES = [
    ("plain", Objective()),
    ("window", Objective()),
    ("LN and MLP", Objective()),
    ("plain", Objective(read="last")),
    ("plain", RAW_LOG),
    ("window", RAW_LOG),
]
IDS = [f"{shape}, {o.kind}, {o.read}" for shape, o in CASES]


def raw_pattern(subject, member: int, layer: int, head: int) -> np.ndarray:
    _, cache = subject.decoder[member].run_with_cache(subject.batch.tokens)
    return cache[f"blocks.{layer}.attn.hook_pattern"][:, head].double().numpy()


@pytest.mark.parametrize(("shape", "objective"), CASES, ids=IDS)
def test_statistics_are_those_of_loops_over_every_query(shape, objective):
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=9)
    batch, found = subject.batch, subject.recorded(INDUCTION)
    known = subject.recorded(INDUCTION).reference.matches
    member, layer, head = 1, 1, 0
    pattern = raw_pattern(subject, member, layer, head)
    real = batch.history.shape[1]
    rows = batch.read.tolist()
    for k in (1, 2, 3):
        match, surprise = known.match[k - 1].numpy(), known.surprise[k - 1].double().numpy()
        masses, scores, nats, ideal = [], np.zeros(9), [], []
        queries = np.zeros(9)
        for b in range(9):
            for r, q in enumerate(rows):
                hits = np.flatnonzero(match[b, r])
                if not len(hits):
                    continue
                queries[b] += 1
                masses.append(pattern[b, q, hits].sum())
                scores[b] += (pattern[b, q, :real] * surprise[b, r]).sum()
                nats.append(np.mean([np.log(1 / len(hits) / max(pattern[b, q, s], 1e-12)) for s in hits]))
                ideal.append(surprise[b, r, hits].mean())
        where = (member, layer, head, k - 1)
        if not queries.sum():
            assert np.isnan(found.mass[where])
            continue
        assert found.mass[where] == pytest.approx(np.mean(masses), abs=1e-6)
        assert found.score[where] == pytest.approx(scores.sum() / queries.sum(), abs=1e-6)
        assert found.fidelity[where] == pytest.approx(np.mean(nats), rel=1e-4)
        off = scores - queries * scores.sum() / queries.sum()
        error = np.sqrt((off**2).sum() * 9 / 8) / queries.sum()
        assert found.error[where] == pytest.approx(error, abs=1e-6)
        assert subject.recorded(INDUCTION).reference.ideal[k - 1] == pytest.approx(np.mean(ideal), abs=1e-6)


@pytest.mark.parametrize(("shape", "objective"), CASES, ids=IDS)
def test_previous_and_duplicate_tokens_are_transformer_lens_patterns(shape, objective):
    """At every token from the second on, whichever positions are read."""
    subject = subject_of(random_run(shape, n_steps=2, objective=objective), sequences=5)
    x, found = subject.batch.history, subject.recorded(INDUCTION)
    n = x.shape[1]
    chance = subject.recorded(INDUCTION).reference
    window = n if subject.config.window is None else subject.config.window
    lag = np.arange(n)[:, None] - np.arange(n)
    uniform = ((lag >= 0) & (lag <= window)) / np.minimum(np.arange(n) + 1, window + 1)[:, None]
    for layer, head in np.ndindex(2, 2):
        pattern = raw_pattern(subject, 0, layer, head)[:, :n, :n]
        for attention, previous, copies in (
            (pattern, found.previous_token[0, layer, head], found.duplicate_token[0, layer, head]),
            (np.stack([uniform] * 5), chance.previous_chance, chance.duplicate_chance),
        ):
            before, same = [], []
            for b in range(5):
                before.append(attention[b] * get_previous_token_head_detection_pattern(x[b : b + 1]).numpy())
                same.append(attention[b] * get_duplicate_token_head_detection_pattern(x[b : b + 1]).numpy())
            assert previous == pytest.approx(np.sum(before) / (5 * (n - 1)), abs=1e-6)
            assert copies == pytest.approx(np.sum(same) / (5 * (n - 1)), abs=1e-6)


def test_matches_of_one_token_are_transformer_lens_induction_pattern():
    subject = subject_of(random_run(), sequences=8)
    match = subject.recorded(INDUCTION).reference.matches.match[0]
    for b, x in enumerate(subject.batch.history):
        assert torch.equal(match[b], get_induction_head_detection_pattern(x[None]))


def test_chunks_of_models_and_sequences_change_nothing():
    run = random_run(n_steps=3)
    whole = subject_of(run, sequences=11).recorded(INDUCTION)
    four = 2 * 49 * 4  # sequences of one model
    pieces = subject_of(run, sequences=11, chunk_elements=four).recorded(INDUCTION)
    for name in ("mass", "score", "error", "fidelity", "previous_token", "duplicate_token"):
        assert getattr(pieces, name) == pytest.approx(getattr(whole, name), abs=1e-6), name


def test_only_so_many_sequences_are_matched_as_memory_holds(monkeypatch):
    run = random_run()
    monkeypatch.setattr(matches, "ELEMENTS", 49 * 8)
    three = 2 * 49 * 3  # sequences: the last chunk is cut
    some = subject_of(run, sequences=20, chunk_elements=three)
    few = subject_of(run, sequences=8, chunk_elements=three)
    assert few.recorded(INDUCTION).score == pytest.approx(some.recorded(INDUCTION).score, abs=1e-6)
    assert torch.equal(few.batch.tokens, some.batch.tokens[:8])
    assert reference(some.batch, 3, None).queries.tolist() == (
        few.recorded(INDUCTION).reference.queries.tolist()
    )


def test_attention_that_misses_a_match_costs_the_floor_and_no_infinity():
    run = random_run()
    for name in ("W_Q", "W_K"):
        run.states[f"blocks.0.attn.{name}"] *= 200
    fidelity = subject_of(run, sequences=8).recorded(INDUCTION).fidelity[0, 0, :, 0]
    assert np.isfinite(fidelity).all()
    assert fidelity.max() > 5
