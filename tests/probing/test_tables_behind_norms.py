"""Tables of weights where norms stand behind the sums: against products of matrices written out by hand."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.attention.by_token import qk_tables
from mechmarkov.probes.induction.composition import composition
from mechmarkov.probes.program.extraction import composed_tables
from probing_cases import random_run, subject_of

from mechmarkov.objectives import Objective
from mechmarkov.probing.recording import NORM_SCALE
from mechmarkov.probing.value_circuits import float64_weights, path_tables, to_scores


@pytest.fixture(scope="module")
def subject():
    return subject_of(random_run("post-norm"), sequences=6)


@pytest.fixture(scope="module")
def w(subject):
    return {name: value[0] for name, value in float64_weights(subject).items()}


def fold(w, *norms: str) -> np.ndarray:
    """Centring and gain of norms one behind the other, `[d_model, d_model]`."""
    d = len(w["blocks.0.ln1.w"])
    whole = np.eye(d)
    for norm in norms:
        whole = whole @ (np.eye(d) - 1 / d) @ np.diag(w[f"blocks.{norm}.w"])
    return whole


def scales(subject, *norms: str, where: str = "") -> float:
    return float(np.prod([subject.recorded(NORM_SCALE)[f"blocks.{norm}{where}"][0] for norm in norms]))


def ov(w, layer: int, head: int) -> np.ndarray:
    return w[f"blocks.{layer}.attn.W_V"][head] @ w[f"blocks.{layer}.attn.W_O"][head]


ALL = ("0.ln1", "0.ln2", "1.ln1", "1.ln2")
FIRST, LAST = ALL[:2], ALL[2:]


@pytest.mark.parametrize("read", ["all", "last"])
def test_circuits_pass_the_norms_between(read, w):
    """Logits pass norms where these are read; queries and keys, wherever the keys are."""
    subject = subject_of(random_run("post-norm", objective=Objective(read=read)), sequences=6)
    tables, late = path_tables(subject), ".where_read"
    W_E, W_U = w["embed.W_E"], w["unembed.W_U"]
    expected = {
        "direct": W_E @ fold(w, *ALL) @ W_U / scales(subject, *ALL, where=late),
        "L0H1": W_E @ ov(w, 0, 1) @ fold(w, *ALL) @ W_U / scales(subject, *ALL, where=late),
        "L1H0": W_E @ fold(w, *FIRST) @ ov(w, 1, 0) @ fold(w, *LAST) @ W_U
        / scales(subject, *FIRST) / scales(subject, *LAST, where=late),
    }  # fmt: skip
    for name, table in expected.items():
        np.testing.assert_allclose(tables[name][0], table, rtol=1e-5, atol=1e-7)


def test_heads_one_behind_the_other_pass_them_too(subject, w):
    way = w["embed.W_E"] @ ov(w, 0, 0) @ fold(w, *FIRST) @ ov(w, 1, 1) @ fold(w, *LAST) @ w["unembed.W_U"]
    way = way / scales(subject, *FIRST) / scales(subject, *LAST, where=".where_read")
    np.testing.assert_allclose(composed_tables(subject)["L0H0→L1H1"][0], way, rtol=1e-5, atol=1e-7)


def test_composition_has_the_norms_between(subject, w):
    between, found = fold(w, *FIRST), composition(subject.decoder)
    Q, K = (between @ w[f"blocks.1.attn.W_{side}"][1] for side in "QK")
    reads = {"Q": Q @ K.T, "K": K @ Q.T, "V": between @ ov(w, 1, 1)}
    for side, read in reads.items():
        size = np.linalg.norm
        expected = size(ov(w, 0, 0) @ read) / size(ov(w, 0, 0)) / size(read)
        assert found[side][0, 0, 0, 1, 1] == pytest.approx(expected, rel=1e-4), side
        assert np.isnan(found[side][0, 1]).all()


@torch.no_grad()
def test_tokens_are_looked_up_behind_the_norms(subject):
    decoder = subject.decoder[0]
    first, second = decoder.blocks
    read = {0: decoder.embed.W_E, 1: first.ln2(first.ln1(decoder.embed.W_E))}
    for layer, block in enumerate((first, second)):
        q, k = (read[layer] @ block.attn.W_Q[1] + block.attn.b_Q[1], read[layer] @ block.attn.W_K[1])
        scores = q @ (k + block.attn.b_K[1]).T / decoder.config.score_scale
        expected = (scores - scores.mean(-1, keepdim=True)).numpy()
        np.testing.assert_allclose(qk_tables(subject)[0, layer, 1], expected, rtol=1e-4, atol=1e-5)


def test_a_part_without_its_writer_is_refused(subject):
    weights = float64_weights(subject)
    with pytest.raises(ValueError, match="writer is None, expected the component that writes x where norm_"):
        to_scores(subject, weights, np.zeros((1, 3, subject.config.d_model)))
