"""`python -m experiments.initialisation [--quick] [--only NAME…] [--out FOLDER]`."""

from experiments.command import main
from experiments.initialisation.run import MEASUREMENTS
from experiments.initialisation.run import __doc__ as about

main("initialisation", about, MEASUREMENTS)
