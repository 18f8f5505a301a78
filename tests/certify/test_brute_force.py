"""Certificates of random small models, from the run to the checked proof, against every sequence."""

import numpy as np
import pytest
from certify_cases import ROOM, every_history, is_within, one_layer, small_run, worst_of_all
from hypothesis import given, settings
from hypothesis import strategies as st

from mechmarkov.certify import EXACT, FLOAT32, certify, proof_of, verify
from mechmarkov.certify.search import Judge, search

ARCHITECTURES = ("LN and MLP", "RMSPre, tied", "rotary", "Qwen3", "GPT-NeoX")


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_certificates_of_random_small_models_hold_for_every_sequence(count):
    """One to three heads, 2 to 4 states, up to 8 positions, a softmax or raw scores, all paths or some.

    For one head the largest error of log odds is exact, and of two states so is the KL. A search from one
    sequence is between what was seen first and the bound.
    """
    rng, bounded, exact, forbidden = np.random.default_rng(count), 0, 0, 0
    for _ in range(count):
        run = small_run(rng)
        for unit in (EXACT, FLOAT32):
            found = certify(run, "parent", unit=unit, tokens=1 << 10)
            if found.bounds is None:  # odds of some state are infinite: no table is near
                assert "may hold a state impossible" in found.why
                continue
            bounded += 1
            seen, at = worst_of_all(run, found.program.table, unit)
            proof = proof_of(found, 0)
            assert is_within(proof["claims"], seen)
            assert (at <= found.kl_at * ROOM + 1e-13).all()
            assert found.seen.nats <= found.worst_kl
            follows = verify(proof, run)
            assert is_within(follows, seen)
            decoder = run.model().double() if unit == EXACT else run.model()
            judge = Judge(decoder, run.objective, found.contexts, found.program)
            searched = search(judge, every_history(run)[:1], tokens=1 << 10).nats
            assert searched <= found.worst_kl
            near = 1e-9 if unit == EXACT else 1e-4  # float32 depends on how many sequences go together
            assert searched <= at.max() * (1 + near) + 1e-3 * near
            forbidden += not (run.source.P > 0).all()
            if unit == EXACT and run.config.n_heads == 1 and np.isfinite(found.worst_logit_error):
                assert found.worst_logit_error == pytest.approx(seen["logit_error"], rel=1e-9, abs=1e-9)
                if run.source.n_states == 2:
                    assert found.worst_kl == pytest.approx(seen["worst_kl"], rel=1e-8, abs=1e-9)
                exact += 1
    assert bounded > count
    assert forbidden > 0.2 * bounded
    assert exact > 0.1 * count


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(ARCHITECTURES))
def test_no_search_finds_more_than_a_certificate_says_in_any_architecture(seed, shape):
    run = one_layer(shape, seed=seed, scale=0.3, n_ctx=4)
    found = certify(run, "parent")
    _, at = worst_of_all(run, found.program.table)
    assert (at <= found.kl_at).all()
    judge = Judge(run.model(), run.objective, found.contexts, found.program)
    assert search(judge, every_history(run)[:1], tokens=1 << 10).nats <= found.worst_kl
