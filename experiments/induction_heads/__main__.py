"""`python -m experiments.induction_heads [--quick] [--only NAME…] [--out FOLDER]`."""

from experiments.command import main
from experiments.induction_heads.run import MEASUREMENTS
from experiments.induction_heads.run import __doc__ as about

main("induction_heads", about, MEASUREMENTS)
