"""The generalised induction head set by hand: frequencies after the states at a set of lags."""

import pytest
import torch

from experiments.which_parents.counter import lag_set_counter
from mechmarkov.models.constructions.n_grams import k_gram_counter


def counted(tokens, n_states, lags):
    """By the definition, after the last token; all earlier positions with all lags where nothing agrees."""
    n = len(tokens)
    keys = range(max(lags), n)
    found = [i for i in keys if all(tokens[i - lag] == tokens[n - lag] for lag in lags)] or keys
    return [sum(tokens[i] == state for i in found) / len(found) for state in range(n_states)]


@pytest.mark.parametrize("lags", [(1,), (2,), (3, 1), (1, 2, 3), (2, 4)])
def test_it_counts_what_followed_the_states_at_its_lags(lags):
    tokens = torch.randint(3, (50, 12), generator=torch.Generator().manual_seed(0))
    model = lag_set_counter(3, 12, lags=lags, dtype=torch.float64)
    found = model(tokens)[:, -1]
    wanted = torch.tensor([counted(row.tolist(), 3, lags) for row in tokens], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    other = lag_set_counter(3, 12, lags=(1, 4), dtype=torch.float64)
    assert (other(tokens)[:, -1] - wanted).abs().max() > 0.1


def test_the_last_lags_are_an_order():
    tokens = torch.randint(2, (20, 16), generator=torch.Generator().manual_seed(1))
    ours, theirs = lag_set_counter(2, 16, lags=(1, 2)), k_gram_counter(2, 16, order=2)
    torch.testing.assert_close(ours(tokens)[:, 2:], theirs(tokens)[:, 2:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("lags", [(), (0, 1), (1, 1), (4,)])
def test_lags_that_are_wrong(lags):
    with pytest.raises(ValueError, match=r"^lags are \[.*\], expected different ones from 1 to 3$"):
        lag_set_counter(2, 4, lags=lags)
