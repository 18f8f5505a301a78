"""Chains of variable order: a context tree per sequence (Zhou et al. 2024), and one tree for all."""

from pathlib import Path

from experiments.harness import Study
from experiments.variable_order.depths import depths
from experiments.variable_order.leaves import leaves

STUDY = Study(Path(__file__).parent, __doc__, [depths, leaves])

if __name__ == "__main__":
    STUDY.main()
