"""`python -m experiments.order_and_lag [--quick] [--only NAME…] [--out FOLDER]`."""

from experiments.command import main
from experiments.order_and_lag.run import MEASUREMENTS
from experiments.order_and_lag.run import __doc__ as about

main("order_and_lag", about, MEASUREMENTS)
