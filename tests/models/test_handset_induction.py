"""Circuits set by hand against loops over sequences."""

import numpy as np
import pytest
import torch

from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.induction_heads import duplicate_token_head, induction_pair

N_STATES, LENGTH = 3, 14
TOKENS = torch.randint(0, N_STATES, (6, LENGTH), generator=torch.Generator().manual_seed(0))


def patterns(decoder: HookedDecoder, layer: int) -> np.ndarray:
    _, cache = decoder.run_with_cache(TOKENS)
    return cache[f"blocks.{layer}.attn.hook_pattern"].detach().numpy()


def where_tokens_agree(lags: tuple[int, ...]) -> np.ndarray:
    """Uniform on the keys where x[s - lag] is x[t - (lag - lags[0])] for all lags; NaN rows without any."""
    wanted = np.full((len(TOKENS), LENGTH, LENGTH), np.nan)
    for b, x in enumerate(TOKENS.tolist()):
        for t in range(max(lags) - 1, LENGTH):
            hits = [
                s
                for s in range(max(lags), t + 1)
                if all(x[s - lag] == x[t - (lag - lags[0])] for lag in lags)
            ]
            if hits:
                wanted[b, t] = [(s in hits) / len(hits) for s in range(LENGTH)]
    return wanted


@pytest.mark.parametrize("lags", [(1,), (2,), (1, 2), (1, 2, 3)])
def test_the_second_layer_is_uniform_where_the_carried_tokens_agree(lags):
    decoder = induction_pair(N_STATES, LENGTH, lags=lags)
    wanted = where_tokens_agree(lags)
    there = ~np.isnan(wanted[..., 0])
    assert there.sum() > 10
    assert patterns(decoder, 1)[:, 0][there] == pytest.approx(wanted[there], abs=1e-6)
    for head, lag in enumerate(lags):
        first = patterns(decoder, 0)[:, head]
        for t in range(LENGTH):
            assert first[:, t, max(0, t - lag)] == pytest.approx(1)


def test_logits_are_the_gain_times_what_followed_the_current_token():
    decoder = induction_pair(N_STATES, LENGTH, gain=2.5)
    logits = decoder(TOKENS).detach().numpy()
    for b, x in enumerate(TOKENS.tolist()):
        for t in range(1, LENGTH):
            followed = [x[s] for s in range(1, t + 1) if x[s - 1] == x[t]]
            if followed:
                expected = [2.5 * followed.count(state) / len(followed) for state in range(N_STATES)]
                assert logits[b, t] == pytest.approx(expected, abs=1e-5)


def test_a_lag_that_the_query_cannot_know_is_refused():
    with pytest.raises(ValueError, match=r"lags are \[1, 3\], expected one of them to be 2"):
        induction_pair(3, 8, lags=(1, 3))


@pytest.mark.parametrize("n_layers", [1, 3])
def test_the_duplicate_token_head_is_uniform_on_earlier_copies(n_layers):
    decoder = duplicate_token_head(N_STATES, LENGTH, n_layers=n_layers)
    found = patterns(decoder, n_layers - 1)[:, 0]
    for b, x in enumerate(TOKENS.tolist()):
        for t in range(1, LENGTH):
            copies = [s for s in range(t) if x[s] == x[t]] or list(range(t))
            assert found[b, t] == pytest.approx(
                [(s in copies) / len(copies) for s in range(LENGTH)], abs=1e-6
            )
