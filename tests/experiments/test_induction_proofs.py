"""Proofs on in-context chains: gradients, moments and scores against sums over all sequences."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mechmarkov as mm
from experiments.induction_heads import constructions, lemmas, minimal, proofs, without_unigrams
from experiments.induction_heads.expected_gradient import chains, of_v, of_W, signal
from experiments.order_and_lag.lag_scores import joint, scores, stationary

SWITCH, BACK = 0.3, 0.45
LENGTH = 6  # T, so that a sequence has one token more


def gradients(scale):
    """Both gradients of the last token's loss by autograd, over all sequences of one chain."""
    P = torch.tensor([[1 - SWITCH, SWITCH], [BACK, 1 - BACK]], dtype=torch.float64)
    start = torch.tensor([BACK, SWITCH], dtype=torch.float64) / (SWITCH + BACK)
    sequences = torch.tensor(list(product([0, 1], repeat=LENGTH + 1)))
    probability = start[sequences[:, 0]] * P[sequences[:, :-1], sequences[:, 1:]].prod(1)
    v = torch.zeros(1, LENGTH + 1, dtype=torch.float64, requires_grad=True)
    W = (scale * torch.tensor([[[1.3, 0.3], [0.3, 1.3]]], dtype=torch.float64)).requires_grad_()
    logits = minimal.logits(v, W, sequences[None])[0, :, -1]
    loss = -(probability * (logits.log_softmax(-1) * P[sequences[:, -1]]).sum(-1)).sum()
    return torch.autograd.grad(loss, (v, W))


def test_the_first_gradient_is_that_of_all_sequences():
    pair = np.array([SWITCH]), np.array([BACK])
    v, W = gradients(0.0)
    assert np.allclose(of_W(pair, LENGTH)[0], W[0].numpy(), atol=1e-14)
    assert float(v.abs().max()) == 0


def test_the_second_gradient_is_that_of_all_sequences():
    pair = np.array([SWITCH]), np.array([BACK])
    scale = 1e-7  # to leading order in W, so of this relative size
    v, _ = gradients(scale)
    assert np.allclose(of_v(pair, LENGTH)[0], v[0].numpy() / scale, atol=1e-6)


def test_the_signal_of_lag_one_is_lemma_b2():
    (p, q), weight = chains()
    assert weight.sum() == pytest.approx(1, abs=1e-12)
    rate = p * q * (4 * p * q - p - q) / (p + q) ** 3  # as its proof has it
    for n in range(5):
        assert signal(n) == pytest.approx(float(weight @ (rate * (1 - p - q) ** n)), abs=1e-9)


def dirichlet(*powers):
    """The mean of a product of powers under the uniform law on a simplex with as many entries."""
    k = len(powers)
    return (
        math.prod(map(math.factorial, powers)) * math.factorial(k - 1) / math.factorial(k - 1 + sum(powers))
    )


@pytest.mark.parametrize("k", [2, 3, 5])
def test_moments_of_equal_rows(k):
    def moment(a, b):
        base = np.zeros(k, dtype=int)
        base[a] += 1
        base[b] += 1
        squares = sum(dirichlet(*(base + 2 * np.eye(k, dtype=int)[s])) for s in range(k))
        return dirichlet(*base) / k - squares

    on, off, printed = lemmas.pair_moments(k)
    assert float(on) == pytest.approx(moment(0, 0), abs=1e-15)
    assert float(off) == pytest.approx(moment(0, 1), abs=1e-15)
    assert on / off == 2 + 4 * Fraction(k) / (k**2 + 3 * k - 6)
    every = sum(moment(a, b) for a in range(k) for b in range(k)) / k**2
    assert float(printed) == pytest.approx(every, abs=1e-15)


def test_the_first_token_counts_as_following_itself():
    tokens = torch.tensor([[1, 0, 1, 1]])
    read = constructions.printed_transformer(tokens, 2)[0, -1]
    assert torch.allclose(read, torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))  # (1,1), (1,0), (1,1)
    plain = constructions.pair_counts(tokens.numpy(), 2, first_follows_itself=False)[0, -1]
    assert plain.tolist() == [1, 1]


def test_directions_of_the_proofs_follow_the_numbers():
    found = {finding.key: finding.direction for finding in proofs.proofs(True).findings}
    assert found["second_step_rate"] == "corrected"
    assert {found[key] for key in ("first_step_minimal", "second_step_largest", "two_steps", "even_odd")} == {
        "for"
    }
    flat = -np.ones(proofs.LAGS + 1)
    assert proofs._even_odd(flat).direction == "against"


def test_a_share_of_chains_has_equal_rows():
    generator = torch.Generator().manual_seed(0)
    P = without_unigrams.PartlyUnigram(unigram_share=0.5).sample_chains(400, generator=generator)
    equal_rows = (P - P[:, :1]).abs().amax((1, 2)) < 1e-12
    even = (P.sum(1) - 1).abs().amax(1) < 1e-9
    assert bool((equal_rows | even).all())
    assert 150 < int(equal_rows.sum()) < 250


LAGS, TRUE = (1, 2, 4), 2


def test_scores_of_lags_are_those_of_all_sequences():
    P = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.5, 0.3, 0.2]], dtype=torch.float64)
    start = stationary(P[None])[0]
    assert torch.allclose(start @ P, start)
    expected = torch.zeros(3, dtype=torch.float64)
    for path in product(range(3), repeat=5):  # the oldest first; the parent is two back
        probability = start[path[0]] * start[path[1]]
        for i in range(2, 5):
            probability = probability * P[path[i - TRUE], path[i]]
        given = torch.stack([P[path[4 - lag], path[4]] for lag in LAGS])
        expected += probability * given / given.sum()
    assert torch.allclose(scores(P[None], LAGS, TRUE)[0], expected)
    assert float(joint(P[None], LAGS, TRUE).sum()) == pytest.approx(1)


def test_a_lag_that_is_not_the_parent_scores_lower():
    P = F.one_hot(torch.tensor([1, 2, 0]), 3).double()[None] * 0.9 + 0.1 / 3
    for true in LAGS:
        assert int(scores(P, LAGS, true).argmax()) == LAGS.index(true)


def test_the_mixed_source_says_what_it_is():
    source = without_unigrams.PartlyUnigram()
    assert "25% of them of independent tokens" in source.title()
    assert isinstance(source.best(), str)
    assert {"uniform", "in_context_unigram", "in_context_bigram"} <= set(source.predictors())
    assert isinstance(source, mm.sources.Source)
