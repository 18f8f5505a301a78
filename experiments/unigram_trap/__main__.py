"""`python -m experiments.unigram_trap [--quick] [--only NAME…] [--out FOLDER]`."""

from experiments.command import main
from experiments.unigram_trap.run import MEASUREMENTS
from experiments.unigram_trap.run import __doc__ as about

main("unigram_trap", about, MEASUREMENTS)
