"""The gallery: each run with two sentences, a certificate, and a row for people and for programs."""

import importlib.util
import json
from pathlib import Path

import pytest

import mechmarkov as mm
from mechmarkov.certify import load_proof, verify


@pytest.fixture(scope="module")
def gallery():
    file = Path(__file__).parents[1] / "docs" / "guide" / "gallery.py"
    spec = importlib.util.spec_from_file_location("gallery_of_the_guide", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_twenty_eight_runs_have_two_sentences_each(gallery):
    assert len(gallery.RUNS) == 28
    assert all(said.count(". ") == 1 and said.endswith(".") for said, _ in gallery.RUNS.values())


def test_a_run_set_by_hand_is_one_of_its_source(gallery):
    for make, law in {gallery.by_hand: "in_context_bigram", gallery.trigram: "order_2"}.items():
        result = mm.probe(make(), ["behaviour"], sequences=64)
        assert result["behaviour"].scores["nearest_predictor"].value == law


def test_a_certificate_has_a_proof_that_holds(gallery, tmp_path):
    run = mm.example("walk")
    found = gallery.certificate(run, tmp_path, "walk")
    assert verify(load_proof(tmp_path / found["proof"]), run)["worst_kl"] < 1e-6
    row = {"name": "walk", "said": "It <is>. It was.", "report": "walk.html", "source": "a walk"}
    rows = [row | {"badge": "solved", "headline": "Learned", "certificate": found}]
    json.dumps(rows, allow_nan=False)
    assert "[Report](walk.html): *solved*: Learned" in gallery.listed(rows)
    page = gallery.index(rows)
    assert "It &lt;is&gt;. It was." in page
    assert '<a href="walk.proof.json">' in page
    assert found["sentences"][0] in page
