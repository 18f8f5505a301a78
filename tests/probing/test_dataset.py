"""What all probes read their scores with."""

import numpy as np
import pytest
import xarray as xr

from mechmarkov.probing.dataset import (
    best_heads,
    head_name,
    head_names,
    imitates,
    interval_at,
    last_model,
    model_axis,
    normal_interval,
    score_with_null,
    variables,
)
from mechmarkov.probing.nulls import NULL_KIND

SCORES = np.array([[[0.1, 0.9], [0.3, 0.2]], [[0.4, np.nan], [0.5, 0.2]]])
DATA = xr.Dataset(
    variables("probability", ("step", "layer", "head"), score=SCORES)
    | variables("nats", "step", kl=[2.0, 1.0], kl_low=[1.5, 0.5], kl_high=[2.5, 1.5]),
    coords={"step": [0, 10]},
)


def test_each_model_has_its_own_best_head_and_one_without_a_value_is_never_it():
    best = best_heads(DATA["score"])
    assert DATA["score"].isel(best).values.tolist() == [0.9, 0.5]
    assert head_name(best_heads(last_model(DATA)["score"])) == "L1H0"
    assert head_names(DATA) == ["L0H0", "L0H1", "L1H0", "L1H1"]


def test_the_last_model_is_that_of_the_last_step_or_seed():
    assert float(last_model(DATA)["kl"]) == 1.0
    assert interval_at(DATA, "kl") == (0.5, 1.5)
    seeds = xr.Dataset(variables("nats", "seed", kl=[3.0, 4.0]))
    assert model_axis(seeds) == "seed"
    assert float(last_model(seeds)["kl"]) == 4.0


def test_a_score_stands_beside_the_same_quantity_of_the_null_models():
    null = xr.Dataset(variables("nats", "seed", kl=np.linspace(0, 1, 41)))
    score = score_with_null(lambda d: d["kl"], DATA, null, "nats", interval=(0.5, 1.5))
    assert (score.value, score.unit, score.interval, score.null_kind) == (1.0, "nats", (0.5, 1.5), NULL_KIND)
    assert np.allclose(score.null, (0.025, 0.5, 0.975))
    alone = score_with_null(lambda d: d["kl"], DATA, None, "nats")
    assert (alone.null, alone.null_kind) == (None, None)
    nowhere = score_with_null(lambda d: d["kl"], DATA, np.nan * null, "nats")
    assert (nowhere.null, nowhere.null_kind) == (None, None)
    absent = score_with_null(lambda d: np.nan * d["kl"], DATA, null, "nats", reason="why")
    assert (absent.value, absent.reason, absent.null) == (None, "why", None)


def test_a_normal_interval_stops_at_the_smallest_value_there_is():
    assert np.allclose(normal_interval(1.0, 0.5), (0.02, 1.98))
    assert normal_interval(0.1, 0.5, least=0.0)[0] == 0.0


@pytest.mark.parametrize(
    ("nearest", "next_one", "answer"),
    [(0.009, 0.05, True), (0.011, 0.05, False), (0.049, 0.5, True), (0.051, 0.5, False)],
)
def test_a_hundredth_of_a_nat_or_a_tenth(nearest, next_one, answer):
    """It is a share of the distance to the next predictor, whichever is more."""
    kl = xr.DataArray([next_one, nearest], dims="predictor")
    assert imitates(kl, 1e-6 + 0 * kl) is answer
