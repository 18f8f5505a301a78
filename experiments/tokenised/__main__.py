"""Rajaraman, Jiao & Ramchandran, tokens of Markov data: the exact loss of a unigram, and training."""

from pathlib import Path

from experiments.harness import Study
from experiments.tokenised.larger import byte_pairs, many_words
from experiments.tokenised.laws import blocks, dictionaries, one_text, ties
from experiments.tokenised.training import training
from experiments.tokenised.windows import windows

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [blocks, dictionaries, ties, one_text, windows, training, byte_pairs, many_words],
)

if __name__ == "__main__":
    STUDY.main()
