"""The hand-set state space against the add-beta estimator of the source, on every short sequence."""

from itertools import product

import numpy as np
import pytest
import torch

from mechmarkov.models.constructions.counting_mamba import counting_mamba
from mechmarkov.sources import DirichletChains

LENGTH = 8


@pytest.mark.parametrize(
    ("n_states", "order", "beta"), [(2, 1, 1.0), (3, 1, 0.5), (5, 1, 2.0), (2, 2, 1.0), (2, 3, 0.25)]
)
def test_scores_are_counts_and_a_constant(n_states, order, beta):
    model = counting_mamba(n_states, LENGTH, order=order, concentration=beta)
    every = np.array(list(product(range(n_states), repeat=LENGTH)))
    tokens = torch.from_numpy(every[:: max(1, len(every) // 500)])
    expected = np.full((*tokens.shape, n_states), beta)
    for row, states in enumerate(tokens.tolist()):
        for t in range(order - 1, LENGTH):
            now = states[t - order + 1 : t + 1]
            for s in range(order, t + 1):
                expected[row, t, states[s]] += states[s - order : s] == now
    found = model(tokens).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    source = DirichletChains(n_states=n_states, order=order, start="uniform", concentration=beta)
    law = source.best().probabilities(tokens.numpy())
    np.testing.assert_allclose(found / found.sum(-1, keepdims=True), law, atol=1e-6)


def test_its_effective_attention_is_on_what_followed_the_same_history():
    model = counting_mamba(3, LENGTH)
    tokens = torch.tensor([[0, 1, 0, 2, 0, 0, 1, 0]])
    M = model.run_with_cache(tokens)[1]["blocks.0.attn.hook_effective"][0, 0]
    assert M[-1].round(decimals=5).tolist() == [0, 1, 0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(("n_states", "order"), [(3, 2), (2, 0)])
def test_what_has_no_construction_is_refused(n_states, order):
    with pytest.raises(ValueError, match=f"order is {order} on {n_states} states, expected 1, or"):
        counting_mamba(n_states, 5, order=order)
