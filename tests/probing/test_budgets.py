"""Budgets of probing: as many sequences as fit, and not one more; small things that others rest on."""

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.probing.batch import draw
from mechmarkov.probing.effects import sequences_for
from mechmarkov.probing.names import LawName
from mechmarkov.probing.own_tokens import tokens_of
from mechmarkov.probing.recording import ATTENTION


def test_probabilities_of_all_models_take_half_a_gigabyte():
    """2^26 of eight bytes: 24 models and 512 states leave 42 sequences of 127 predictions."""
    source = mm.Chain(P=np.full((512, 512), 1 / 512))
    config = DecoderConfig(n_layers=1, d_model=8, n_ctx=128, d_head=4, d_vocab=512)
    batch = draw(source, Objective(), config, seed=0, models=24)
    n, length = batch.tokens.shape
    one = length * 512 * 24
    assert n * one <= 2**26 < (n + 1) * one * 1.02


def test_interventions_see_as_many_tokens_as_fit():
    """Two layers of 4 · 3 · 64 numbers a token, and 5 · 2^20 numbers in all."""
    config = DecoderConfig(
        n_layers=2, d_model=64, n_ctx=32, d_head=16, d_vocab=3, attn_only=True, normalization_type=None
    )
    run = mm.Run.from_model(HookedDecoder(config), source=mm.Chain(P=np.full((3, 3), 1 / 3)))
    n, length = sequences_for(mm.Subject.of(run, [0], sequences=512)).tokens.shape
    assert n == 5 * 2**20 // (2 * 4 * 3 * 64) // length


def test_a_subject_of_ones_own_keeps_no_nulls(tmp_path, monkeypatch):
    """`mm.probe` says so where every probe is a registered one; only of these the code is in the name."""
    monkeypatch.setenv("MECHMARKOV_CACHE", str(tmp_path))
    subject = mm.Subject.of(mm.example("walk"), [50], sequences=16)
    subject.null.recorded(ATTENTION)
    assert not subject.keeps_nulls
    assert not list(tmp_path.iterdir())


def test_a_query_token_is_the_last_of_the_vocabulary():
    assert tokens_of(mm.example("walk"), [0, 1] * 48)[0, -2:].tolist() == [1, 6]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bigram", "bigram"),
        ("in_context_bigram", "in-context bigram"),
        ("in_context_order_2", "in-context order 2"),
    ],
)
def test_a_law_in_context_is_called_so(name, words):
    assert LawName.read(name).words == words


def test_rounding_of_scores_is_no_variance():
    """Scores of 1000: their share in float64 while they differ by a few units of float32, none below."""
    run = mm.example("walk")
    weights = run.states
    d_head = run.config.d_head
    scale = run.config.score_scale
    for name in ("W_Q", "b_K"):
        weights[f"blocks.0.attn.{name}"] = torch.zeros_like(weights[f"blocks.0.attn.{name}"])
    weights["blocks.0.attn.b_Q"] = torch.full_like(weights["blocks.0.attn.b_Q"], 1.0)
    weights["blocks.0.attn.b_K"] += 1000.0 * scale / d_head
    largest = weights["blocks.0.attn.W_K"].abs().amax()
    for size, deviation in ((1e-4, 5e-6), (3e-3, 1.5e-4), (1e-2, 5e-4), (1e3, 50)):
        weights["blocks.0.attn.W_K"] *= size / largest
        largest = size
        share = float(mm.Subject.of(run, [50], sequences=16).recorded(ATTENTION).position_share.item())
        exact = mm.Subject.of(run, [50], sequences=16)
        batch = exact.batch
        _, cache = exact.decoder[0].double().run_with_cache(batch.tokens)
        scores = cache["blocks.0.attn.hook_attn_scores"][:, 0, batch.read[-1], : batch.history.shape[1]]
        scores = scores.detach().numpy()
        assert scores.std() == pytest.approx(deviation, rel=0.02)
        if deviation < 3e-4:
            assert np.isnan(share)
        else:
            assert share == pytest.approx(scores.mean(0).var() / scores.var(), abs=0.01)
