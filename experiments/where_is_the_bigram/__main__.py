"""Bietti et al., Birth of a Transformer (NeurIPS 2023): how a model comes to hold the bigram, and where."""

from pathlib import Path

from experiments.harness import Study
from experiments.where_is_the_bigram.births import births
from experiments.where_is_the_bigram.data import outputs, triggers
from experiments.where_is_the_bigram.freezing import freezing
from experiments.where_is_the_bigram.homes import homes
from experiments.where_is_the_bigram.layers import layers
from experiments.where_is_the_bigram.ranks import ranks
from experiments.where_is_the_bigram.steps import first_step

STUDY = Study(
    Path(__file__).parent, __doc__, [births, freezing, first_step, triggers, outputs, layers, ranks, homes]
)

if __name__ == "__main__":
    STUDY.main()
