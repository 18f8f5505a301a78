"""Independent hidden chains side by side: each factor's own law, multiplied."""

import numpy as np
import pytest
from enumeration import EXACT, assert_exact, generator, hidden_paths

from mechmarkov.sources import FactoredHiddenMarkov, HiddenMarkov

TWO = {"transitions": [[0.9, 0.1], [0.3, 0.7]], "emissions": [[0.8, 0.2], [0.1, 0.9]]}
THREE = {
    "transitions": [[0.2, 0.8, 0.0], [0.5, 0.1, 0.4], [1.0, 0.0, 0.0]],
    "emissions": [[0.9, 0.1, 0.0], [0.25, 0.5, 0.25], [0.5, 0.0, 0.5]],
}
CASES = [
    FactoredHiddenMarkov(factors=[TWO, TWO]),
    FactoredHiddenMarkov(factors=[TWO, THREE]),
    FactoredHiddenMarkov(factors=[TWO, TWO, TWO]),
]


def digits(source, token):
    found = []
    for factor in reversed(source.factors):
        token, digit = divmod(token, factor.n_states)
        found.append(digit)
    return found[::-1]


@pytest.mark.parametrize("source", CASES, ids=["two", "unlike", "three"])
def test_laws_draws_and_best_against_all_short_sequences(source):
    def law(x):
        each = zip(*(digits(source, token) for token in x), strict=True)
        return np.prod(
            [sum(p for _, p in hidden_paths(*pair)) for pair in zip(source.factors, each, strict=True)]
        )

    assert_exact(source, law, 3)


@pytest.mark.parametrize("source", CASES, ids=["two", "unlike", "three"])
def test_beliefs_of_parts_are_each_factors_own(source):
    tokens = source.sample(5, 6, generator=generator()).numpy()
    beliefs = source.beliefs(tokens)
    own = np.array([[digits(source, token) for token in x] for x in tokens])
    for i, factor in enumerate(source.factors):
        expected = HiddenMarkov(**factor.model_dump(exclude={"kind"})).beliefs(own[..., i])
        np.testing.assert_allclose(beliefs @ source.parts[f"factor {i}"], expected, **EXACT)


def test_labels_are_those_of_all_factors():
    assert CASES[1].labels == ("00", "01", "02", "10", "11", "12")
