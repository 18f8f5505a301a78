"""What the reviewers asked, measured: the data, the model, the training; `run.py` collects them."""

from collections.abc import Callable

from experiments.claims import Measured
from experiments.random_walks.reviewers_data import lags, sample_size
from experiments.random_walks.reviewers_graphs import graphs
from experiments.random_walks.reviewers_starts import larger_start
from experiments.random_walks.reviewers_training import pretraining, token_mean
from experiments.random_walks.reviewers_variants import (
    no_positions,
    residual,
    rotary,
    separate_qk,
    softmax_scale,
    two_layers,
)

MEASUREMENTS: dict[str, Callable[[bool], Measured]] = {
    measure.__name__: measure
    for measure in (
        lags,
        softmax_scale,
        separate_qk,
        residual,
        two_layers,
        graphs,
        larger_start,
        no_positions,
        rotary,
        sample_size,
        token_mean,
        pretraining,
    )
}
