"""Generalised hidden chains against density matrices, lengths of stretches, and hidden chains as they are."""

from itertools import pairwise

import numpy as np
import pytest
from enumeration import EXACT, assert_exact, generator
from scipy.optimize import brentq

from mechmarkov.sources import GeneralisedHiddenMarkov, Hidden, HiddenMarkov
from mechmarkov.training import load_recipe

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


def bloch_walk(x, alpha=0.7, beta=1.9):
    """The probability of outcomes along +z, -z, +x and -x, by Kraus operators on density matrices."""
    z, x_axis, rho = np.diag([1.0, -1.0]), np.array([[0.0, 1.0], [1.0, 0.0]]), np.eye(2) / 2
    scale = 2 * np.sqrt(alpha**2 + beta**2)
    for outcome in x:
        seen = (alpha * np.eye(2) + (-1) ** outcome * beta * (z, x_axis)[outcome // 2]) / scale
        rho = seen @ rho @ seen.T
    return rho.trace()


def renewal(x, between, before, around, mean):
    """The probability of a word of a renewal process that is in its stationary law.

    Args:
        x: The word; token 0 is a reset.
        between: The probability of a stretch between two resets.
        before: The expected number of stretches that end, or begin, with these tokens.
        around: Of those that hold them.
        mean: The mean length of a stretch with its reset.
    """
    resets = [i for i, token in enumerate(x) if token == 0]
    if not resets:
        return around(x) / mean
    stretches = [between(x[i + 1 : j]) for i, j in pairwise(resets)]
    return before(x[: resets[0]]) * np.prod(stretches) * before(x[resets[-1] + 1 :]) / mean


def angle_law(x, angle=1.3, decay=0.45):
    """Stretches by their length, summed until rounding."""
    n = np.arange(400)
    law = decay**n * np.sin(n * angle / 2) ** 2
    law[0] = 1 - law.sum()
    return renewal(
        x,
        lambda ones: law[len(ones)],
        lambda ones: law[len(ones) :].sum(),
        lambda ones: (law * np.maximum(n - len(ones) + 1, 0)).sum(),
        (law * (n + 1)).sum(),
    )


def moon_law(x, alpha=2.2, beta=0.4):
    """Stretches by the product s of their numbers: (s - 1 - log s) / z^(n + 1), summed in closed form."""
    both, logs = alpha + beta, np.log(alpha * beta)

    def once(z, s=1.0):  # over all tokens on one side
        return s / (z - both) - (1 + np.log(s)) / (z - 2) - logs / (z - 2) ** 2

    def twice(z, s=1.0):  # over all tokens on both sides
        return z * (s / (z - both) ** 2 - (1 + np.log(s)) / (z - 2) ** 2 - 2 * logs / (z - 2) ** 3)

    z = brentq(lambda z: once(z) - 1, both + 1e-3, 50, xtol=1e-15)

    def product_of(tokens):
        return np.prod([(alpha, beta)[token - 1] for token in tokens])

    return renewal(
        x,
        lambda own: (product_of(own) - 1 - np.log(product_of(own))) / z ** (len(own) + 1),
        lambda own: once(z, product_of(own)) / z ** len(own),
        lambda own: twice(z, product_of(own)) / z ** len(own),
        twice(z),
    )


@pytest.mark.parametrize(
    ("source", "law", "length"),
    [
        (GeneralisedHiddenMarkov.bloch_walk(0.7, 1.9), bloch_walk, 5),
        (GeneralisedHiddenMarkov.moon(2.2, 0.4), moon_law, 5),
        (GeneralisedHiddenMarkov.frdn(1.3, 0.45), angle_law, 7),
    ],
    ids=["bloch walk", "moon", "frdn"],
)
def test_processes_of_the_paper_are_exact(source, law, length):
    assert_exact(source, law, length)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GeneralisedHiddenMarkov.bloch_walk(0.0, 0.0), "alpha and beta are 0.0 and 0.0, expected "),
        (
            lambda: GeneralisedHiddenMarkov.bloch_walk(np.nan, 1.0),
            "alpha and beta are nan and 1.0, expected ",
        ),
        (
            lambda: GeneralisedHiddenMarkov.moon(0.9, 0.5),
            "alpha and beta are 0.9 and 0.5, expected alpha > 1",
        ),
        (lambda: GeneralisedHiddenMarkov.moon(2.0, np.nan), "alpha and beta are 2.0 and nan, expected "),
        (lambda: GeneralisedHiddenMarkov.frdn(1.0, 1.0), r"decay is 1.0, expected a number in \(0, 1\)"),
        (lambda: GeneralisedHiddenMarkov.frdn(3.0, 0.9), "decay is 0.9, expected less: stretches sum to 4"),
    ],
)
def test_numbers_that_give_no_process_are_refused(call, words):
    with pytest.raises(ValueError, match=rf"^{words}[^\n]*$"):
        call()


@pytest.mark.parametrize(
    ("recipe", "source"),
    [
        ("measured-qubit", GeneralisedHiddenMarkov.qubit(turn=1.0, strength=0.8)),
        ("bloch-walk", GeneralisedHiddenMarkov.bloch_walk(1.0, 3.0)),
        ("frdn", GeneralisedHiddenMarkov.frdn()),
        ("moon", GeneralisedHiddenMarkov.moon()),
    ],
)
def test_a_recipe_has_the_process_it_names(recipe, source):
    assert np.allclose(load_recipe(recipe).source.T, source.T, atol=1e-14)
