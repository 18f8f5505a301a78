"""`python -m experiments.random_walks [--quick] [--only NAME…] [--out FOLDER]`."""

from experiments.command import main
from experiments.random_walks.run import MEASUREMENTS
from experiments.random_walks.run import __doc__ as about

main("random_walks", about, MEASUREMENTS)
