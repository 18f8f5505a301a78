"""Makkuva et al. (ICLR 2025): the loss landscape at the unigram, who stays at it, and why."""

from pathlib import Path

from experiments.harness import Study
from experiments.unigram_trap.authors import authors
from experiments.unigram_trap.data import order_two
from experiments.unigram_trap.landscape import many_states, near_unigram, points
from experiments.unigram_trap.models import depth, paths
from experiments.unigram_trap.precision import precision
from experiments.unigram_trap.training import leaving, phase

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [points, near_unigram, many_states, authors, phase, leaving, paths, depth, precision, order_two],
)

if __name__ == "__main__":
    STUDY.main()
