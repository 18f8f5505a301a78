"""Attention, Mamba, an LSTM and an MLP over positions on three hidden chains: filtering error in bits."""

from pathlib import Path

from experiments.harness import Study
from experiments.mixers.filtering import filtering

STUDY = Study(Path(__file__).parent, __doc__, [filtering])

if __name__ == "__main__":
    STUDY.main()
