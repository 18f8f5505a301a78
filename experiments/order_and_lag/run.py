"""What is measured: orders by depth, what heads look at, sub-n-grams, selected lags, mixtures of chains."""

from collections.abc import Callable

from experiments.claims import Measured
from experiments.order_and_lag.heads import heads
from experiments.order_and_lag.lags import lags
from experiments.order_and_lag.mixtures import mixtures
from experiments.order_and_lag.orders import orders
from experiments.order_and_lag.stages import gradients, stages

MEASUREMENTS: dict[str, Callable[[bool], Measured]] = {
    "orders": orders,
    "heads": heads,
    "stages": stages,
    "gradients": gradients,
    "lags": lags,
    "mixtures": mixtures,
}
