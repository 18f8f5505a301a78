"""Shi & Cao, random walks on a circle (NeurIPS 2025): what the text states, and what decides it."""

from pathlib import Path

from experiments.harness import Study
from experiments.random_walks.answers import factors, residual_stream
from experiments.random_walks.attention_variants import residual, separate_qk, softmax_scale
from experiments.random_walks.deterministic import any_loss, tight, without_positions
from experiments.random_walks.escapes import escape_rates, lag_classes
from experiments.random_walks.first_step import one_step
from experiments.random_walks.graphs import graph_information, graphs
from experiments.random_walks.hidden_first_step import hidden_first_step
from experiments.random_walks.lags import lag_information_grid, lags
from experiments.random_walks.larger_start import larger_start
from experiments.random_walks.lemmas import auxiliary_lemmas, first_step_lemmas
from experiments.random_walks.limits import limits
from experiments.random_walks.other_lags import away_from_half, long_walks, which_token
from experiments.random_walks.position_variants import rotary
from experiments.random_walks.pretraining import pretraining
from experiments.random_walks.questions import extra_layer, questions
from experiments.random_walks.rebuttal import dense, rebuttal
from experiments.random_walks.sample_size import sample_size
from experiments.random_walks.small_start import printed_kl, small_start
from experiments.random_walks.spectrum import spectrum
from experiments.random_walks.theorems import learned, rounding, trapped
from experiments.random_walks.token_mean import mean_stays, token_mean
from experiments.random_walks.token_mean_rule import token_mean_rule
from experiments.random_walks.two_layers import two_layers
from experiments.random_walks.whole_law import dense_without_noise
from experiments.random_walks.zero_start_depth import zero_start_depth

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [
        which_token,
        away_from_half,
        long_walks,
        limits,
        any_loss,
        tight,
        first_step_lemmas,
        auxiliary_lemmas,
        learned,
        trapped,
        small_start,
        printed_kl,
        questions,
        extra_layer,
        token_mean_rule,
        rebuttal,
        without_positions,
        factors,
        residual_stream,
        softmax_scale,
        lags,
        zero_start_depth,
        lag_classes,
        larger_start,
        rounding,
        one_step,
        hidden_first_step,
        spectrum,
        escape_rates,
        lag_information_grid,
        separate_qk,
        residual,
        two_layers,
        graphs,
        graph_information,
        dense,
        rotary,
        sample_size,
        mean_stays,
        token_mean,
        pretraining,
        dense_without_noise,
    ],
)

if __name__ == "__main__":
    STUDY.main()
