"""The trained model of `experiments/which_parents`: its first derivative, and its limit."""

from itertools import product

import numpy as np
import pytest
import torch

from experiments.which_parents.counter import lag_set_counter
from experiments.which_parents.kernel_model import Weights, agreement, outputs
from mechmarkov.theory.lag_sets import finite_scores, lag_sets

SETS = lag_sets(2, 2)


@pytest.mark.parametrize(("n_states", "length"), [(2, 8), (3, 6)])
@pytest.mark.parametrize("eps", [1e-3, 0.1])
def test_finite_scores_are_the_derivative_by_autograd_over_all_sequences(n_states, length, eps):
    """The expected loss of the model itself, with heads that lean to their lag or attend alike."""
    kernel = np.random.default_rng(0).dirichlet(np.full(n_states, 0.5), (n_states, n_states))
    tokens = np.array(list(product(range(n_states), repeat=length)))
    chance = np.full(len(tokens), n_states**-2.0)
    for i in range(2, length):
        chance *= kernel[tokens[:, i - 2], tokens[:, i - 1], tokens[:, i]]
    answer = kernel[tokens[:, -2], tokens[:, -1]]
    rng = np.random.default_rng(0)
    a = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    W = torch.tensor(rng.normal(size=(1, 2, 2)))
    c = torch.tensor(rng.normal(size=(1, len(SETS))))
    weights, read = Weights(W, c, a), torch.tensor(tokens)[None]
    law = outputs(read, weights, SETS, n_states)[0]
    expected = -(torch.tensor(chance)[:, None] * torch.tensor(answer) * (law + eps).log()).sum()
    (slope,) = torch.autograd.grad(expected, a)
    with torch.no_grad():
        values = agreement(read, weights, SETS, n_states)[0].numpy()
    scores = finite_scores(values, tokens[:, 2:], answer, chance, eps=eps)
    assert abs(float(slope) + float(weights.shares[0].numpy() @ scores)) < 1e-13
    assert abs(float(slope)) > 1e-3
    wrong = finite_scores(values[:, ::-1], tokens[:, 2:], answer, chance, eps=eps)
    assert abs(float(slope) + float(weights.shares[0].numpy() @ wrong)) > 1e-5


def test_exact_heads_and_a_large_scale_are_the_decoder_set_by_hand():
    tokens = torch.randint(2, (1, 100, 30), generator=torch.Generator().manual_seed(0))
    c = torch.tensor([[1.0 if each == (1, 2) else 0.0 for each in SETS]], dtype=torch.float64)
    weights = Weights(
        80 * torch.eye(2, dtype=torch.float64)[None], c, torch.full((1,), 80.0, dtype=torch.float64)
    )
    ideal = lag_set_counter(2, 30, lags=(1, 2), dtype=torch.float64)(tokens[0])[:, -1]
    torch.testing.assert_close(outputs(tokens, weights, SETS, 2)[0], ideal, rtol=0, atol=1e-12)
