"""Rajaraman, Jiao & Ramchandran, tokens of Markov data: the exact loss of a unigram, and training."""

from pathlib import Path

from experiments.harness import Study
from experiments.tokenised.laws import blocks, dictionaries, one_text, ties
from experiments.tokenised.training import training
from experiments.tokenised.windows import windows

STUDY = Study(Path(__file__).parent, __doc__, [blocks, dictionaries, ties, one_text, windows, training])

if __name__ == "__main__":
    STUDY.main()
