"""n-grams by hand, orders by depth, heads, sub-n-grams, selected lags, mixtures of chains, hidden tasks."""

from pathlib import Path

from experiments.harness import Study
from experiments.order_and_lag.constant_depth import constant_depth, induction_rank
from experiments.order_and_lag.construction import construction
from experiments.order_and_lag.heads import heads
from experiments.order_and_lag.hidden_tasks import hidden_tasks
from experiments.order_and_lag.lag_scores import lag_scores
from experiments.order_and_lag.lags import lag_attention, lags
from experiments.order_and_lag.mixtures import mixtures
from experiments.order_and_lag.n_grams import n_grams
from experiments.order_and_lag.orders import orders
from experiments.order_and_lag.stages import gradients, stages

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [
        n_grams,
        constant_depth,
        induction_rank,
        construction,
        orders,
        heads,
        stages,
        gradients,
        lags,
        lag_attention,
        lag_scores,
        mixtures,
        hidden_tasks,
    ],
)

if __name__ == "__main__":
    STUDY.main()
