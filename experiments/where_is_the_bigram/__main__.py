"""`python -m experiments.where_is_the_bigram [--quick] [--only NAME…] [--out FOLDER]`."""

from experiments.command import main
from experiments.where_is_the_bigram.run import MEASUREMENTS
from experiments.where_is_the_bigram.run import __doc__ as about

main("where_is_the_bigram", about, MEASUREMENTS)
