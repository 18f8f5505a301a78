"""Generalised hidden chains: a measured qubit by its density matrices, and hidden chains as they are."""

import numpy as np
import pytest
from enumeration import EXACT, assert_exact, generator

from mechmarkov.sources import GeneralisedHiddenMarkov, Hidden, HiddenMarkov

QUBIT = GeneralisedHiddenMarkov.qubit(turn=0.7, strength=0.6)
PLAIN = HiddenMarkov(transitions=[[0.9, 0.1], [0.3, 0.7]], emissions=[[0.8, 0.15, 0.05], [0.1, 0.2, 0.7]])


def measured_qubit(x, turn=0.7, strength=0.6):
    """The probability of outcomes, by Kraus operators on density matrices."""
    half = turn / 2
    turned = np.array([[np.cos(half), -np.sin(half)], [np.sin(half), np.cos(half)]])
    rho = np.eye(2) / 2
    for outcome in x:
        sign = 1 - 2 * outcome
        seen = np.diag(np.sqrt([(1 + sign * strength) / 2, (1 - sign * strength) / 2]))
        rho = turned.T @ seen @ rho @ seen @ turned
    return rho.trace()


def test_a_qubit_is_exact_on_all_short_sequences():
    assert_exact(QUBIT, measured_qubit, 6)


def test_a_hidden_chain_is_its_own_generalisation():
    matrices = (PLAIN.T * PLAIN.E.T[:, None, :]).tolist()
    source = GeneralisedHiddenMarkov(matrices=matrices)
    tokens = PLAIN.sample(20, 12, generator=generator()).numpy()
    for name, rule in source.predictors().items():
        expected = PLAIN.predictors()[name].probabilities(tokens)
        np.testing.assert_allclose(rule.probabilities(tokens), expected, **EXACT)


def test_another_basis_is_the_same_process():
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(3, 3))
    matrices = np.linalg.inv(basis) @ QUBIT.T @ basis
    other = GeneralisedHiddenMarkov(matrices=matrices.tolist())
    tokens = QUBIT.sample(10, 10, generator=generator()).numpy()
    expected = QUBIT.best().probabilities(tokens)
    np.testing.assert_allclose(other.best().probabilities(tokens), expected, rtol=0, atol=1e-9)


def test_an_impossible_token_leaves_what_is_known_before_any():
    source = GeneralisedHiddenMarkov(matrices=[[[0.5, 0.0], [1.0, 0.0]], [[0.0, 0.5], [0.0, 0.0]]])
    np.testing.assert_allclose(source.vectors(np.array([[1, 1]]))[0, 1], source.ends[0], **EXACT)


@pytest.mark.parametrize(
    "source", [QUBIT, GeneralisedHiddenMarkov(matrices=(PLAIN.T * PLAIN.E.T[:, None, :]).tolist())]
)
def test_beliefs_are_weights_of_words_that_predict_alike(source):
    """Weights sum to 1; the laws after these words, so weighed, are the law after any past."""
    tokens = source.sample(20, 8, generator=generator()).numpy()
    weights, laws = source.beliefs(tokens), source.laws_of_hidden(tokens)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-9)
    expected = source.best().probabilities(tokens)
    np.testing.assert_allclose(np.einsum("bph,bphj->bpj", weights, laws), expected, rtol=0, atol=1e-9)
    assert isinstance(source, Hidden)
    for i, word in enumerate(source.words):
        law = source.best().probabilities(np.array([word]))[0, -1] if word else source.pi
        np.testing.assert_allclose(laws[0, 0, i], law, rtol=0, atol=1e-9)


@pytest.mark.parametrize("strength", [-0.1, 1.5])
def test_a_strength_outside_its_range_is_refused(strength):
    with pytest.raises(ValueError, match=rf"^strength is {strength}, expected a number in \[0, 1\]$"):
        GeneralisedHiddenMarkov.qubit(turn=0.3, strength=strength)
