"""Canonical coordinates read off models that were built from them."""

import dataclasses

import numpy as np
import pytest
import torch
from mechmarkov.probes.landscape.canonical_fit import canonical_fit
from probing_cases import random_run, run_of, subject_of

from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.sources import Binary, Chain
from mechmarkov.theory import canonical


def rank_one_model(e: float, w: float, tilt: float = 0.0) -> HookedDecoder:
    """Embeddings ±e/2 along one direction, an MLP that adds 2 w |w| times the stream; log-odds plus tilt."""
    config = DecoderConfig(
        n_layers=1,
        d_model=3,
        d_head=2,
        n_heads=1,
        n_ctx=6,
        d_vocab=2,
        d_mlp=4,
        act_fn="relu",
        tied=True,
        normalization_type=None,
    )
    decoder = HookedDecoder(config)
    with torch.no_grad():
        decoder.embed.W_E[:, 1] = torch.tensor([-e / 2, e / 2])
        decoder.get_parameter("blocks.0.mlp.W_in")[1, :2] = torch.tensor([1.0, -1.0])
        decoder.get_parameter("blocks.0.mlp.W_out")[:2, 1] = 2 * w * abs(w) * torch.tensor([1.0, -1.0])
        decoder.unembed.b_U.copy_(torch.tensor([0.0, 0.3]))
        decoder.pos_embed.W_pos[3:, 1] = tilt / e
    return decoder


@pytest.mark.parametrize(("e", "w"), [(1.2, 0.4), (0.7, -0.3), (1.5, -1.1)])
def test_coordinates_are_those_the_model_was_built_from(e, w):
    run = run_of(rank_one_model(e, w), rank_one_model(2 * e, w), source=Binary(p=0.5, q=0.8))
    fit = canonical_fit(subject_of(run, sequences=32))
    assert fit["canonical_e"].values == pytest.approx([e, 2 * e], rel=1e-5)
    assert fit["canonical_w"].values == pytest.approx([w, w], rel=1e-5)
    assert fit["fit_error"].values == pytest.approx([0, 0], abs=1e-5)
    assert fit["rank_one"].values == pytest.approx([1, 1])
    assert fit["energy"].values == pytest.approx(
        canonical.energy(np.array([e, 2 * e]), np.array([w, w])), rel=1e-4
    )
    assert fit["basin"].values.tolist() == [
        canonical.basin(e, w, 0.5, 0.8),
        canonical.basin(2 * e, w, 0.5, 0.8),
    ]


def test_what_two_numbers_leave_out_is_the_fit_error():
    # Half of the positions have their log-odds raised by tilt: ± tilt / 2 about the line.
    tilt = 0.2
    run = run_of(rank_one_model(1.0, 0.0, tilt), source=Binary(p=0.5, q=0.5))
    fit = canonical_fit(subject_of(run, sequences=256))
    assert float(fit["fit_error"][0]) == pytest.approx(tilt / 2, rel=1e-3)
    assert float(fit["log_odds_sd"][0]) > float(fit["fit_error"][0])


def test_without_an_embedding_there_is_no_w():
    decoder = rank_one_model(1.0, 0.5)
    with torch.no_grad():
        decoder.embed.W_E.zero_()
    fit = canonical_fit(subject_of(run_of(decoder, source=Binary(p=0.5, q=0.8))))
    assert np.isnan(fit["canonical_w"][0])
    assert fit["basin"].values.tolist() == ["unknown"]


def test_models_without_canonical_coordinates_say_why():
    run = random_run("plain")
    assert "binary chain" in canonical_fit(subject_of(run))
    two = random_run("plain", d_vocab=2)
    other = dataclasses.replace(two, source=Chain([[0.2, 0.8], [0.4, 0.6]]))
    assert "tied layer with an MLP" in canonical_fit(subject_of(other))
