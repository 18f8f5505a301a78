"""Shi & Cao, random walks on a circle (NeurIPS 2025): the figures and theorems, and what decides them."""

from pathlib import Path

from experiments.harness import Study
from experiments.random_walks.attention_variants import residual, separate_qk, softmax_scale
from experiments.random_walks.direction import direction
from experiments.random_walks.escapes import escape_rates, lag_classes, spectrum
from experiments.random_walks.first_step import first_step, one_step
from experiments.random_walks.graphs import graphs
from experiments.random_walks.hidden_first_step import hidden_first_step
from experiments.random_walks.lags import lags
from experiments.random_walks.larger_start import larger_start
from experiments.random_walks.position_variants import no_positions, rotary
from experiments.random_walks.pretraining import pretraining
from experiments.random_walks.questions import extra_layer, questions
from experiments.random_walks.rebuttal import dense, rebuttal
from experiments.random_walks.sample_size import sample_size
from experiments.random_walks.small_start import small_start
from experiments.random_walks.theorems import learned, rounding, trapped
from experiments.random_walks.token_mean import token_mean
from experiments.random_walks.token_mean_rule import token_mean_rule
from experiments.random_walks.two_layers import two_layers
from experiments.random_walks.whole_law import dense_without_noise
from experiments.random_walks.zero_start_depth import zero_start_depth

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [
        learned,
        trapped,
        rounding,
        direction,
        first_step,
        one_step,
        hidden_first_step,
        spectrum,
        escape_rates,
        lag_classes,
        small_start,
        rebuttal,
        questions,
        extra_layer,
        token_mean_rule,
        lags,
        softmax_scale,
        separate_qk,
        residual,
        two_layers,
        zero_start_depth,
        graphs,
        dense,
        larger_start,
        no_positions,
        rotary,
        sample_size,
        token_mean,
        pretraining,
        dense_without_noise,
    ],
)

if __name__ == "__main__":
    STUDY.main()
