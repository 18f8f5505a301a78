"""Context-conditioned chains against loops over all short sequences."""

from itertools import product

import numpy as np

from mechmarkov.theory.context_conditioned import next_laws

BASE = np.array([[0.2, 0.5, 0.3], [0.4, 0.15, 0.45], [0.5, 0.3, 0.2]])


def by_hand(sequence, base):
    """The law of what follows, from the definition."""
    weights = [sequence.count(k) * base[sequence[-1]][k] for k in range(len(base))]
    return np.array(weights) / sum(weights)


def test_the_law_is_that_of_the_definition_on_every_sequence():
    tokens = np.array(list(product(range(3), repeat=5)))
    found = next_laws(tokens, BASE)
    for row, laws in zip(tokens.tolist(), found, strict=True):
        for t in range(5):
            np.testing.assert_allclose(laws[t], by_hand(row[: t + 1], BASE), atol=1e-15)


def test_a_factor_of_a_row_cancels():
    tokens = np.array([[2, 0, 1, 1, 0]])
    scaled = BASE * np.array([[3.0], [0.1], [7.0]])
    np.testing.assert_allclose(next_laws(tokens, scaled), next_laws(tokens, BASE), atol=1e-15)
