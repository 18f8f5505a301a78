"""Makkuva et al., NeurIPS 2024: basins of the flow, with attention too; real weights, starts, ranks."""

from pathlib import Path

from experiments.harness import Study
from experiments.initialisation.attention import attention, gaussian_attention
from experiments.initialisation.basins import basins, gaussian, networks
from experiments.initialisation.models import adamw, guideline, rank_one

STUDY = Study(
    Path(__file__).parent,
    __doc__,
    [basins, gaussian, attention, gaussian_attention, networks, guideline, adamw, rank_one],
)

if __name__ == "__main__":
    STUDY.main()
