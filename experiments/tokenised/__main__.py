"""Rajaraman, Jiao & Ramchandran, tokens of Markov data: the exact loss of a unigram, and training."""

from pathlib import Path

from experiments.harness import Study
from experiments.tokenised.byte_pairs import byte_pairs
from experiments.tokenised.encoders import encoders
from experiments.tokenised.laws import blocks, dictionaries, one_text, ties
from experiments.tokenised.learnt import learnt
from experiments.tokenised.theorems import theorems
from experiments.tokenised.training import training
from experiments.tokenised.windows import windows

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [
        theorems,
        blocks,
        learnt,
        dictionaries,
        ties,
        one_text,
        encoders,
        windows,
        training,
        byte_pairs,
    ],
)

if __name__ == "__main__":
    STUDY.main()
