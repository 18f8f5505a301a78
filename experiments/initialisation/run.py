"""Makkuva et al., NeurIPS 2024: basins of the (e, w) flow, real weights in them, starts, ranks."""

from collections.abc import Callable

from experiments.claims import Measured
from experiments.initialisation.basins import basins, gaussian, networks
from experiments.initialisation.models import adamw, guideline, rank_one

MEASUREMENTS: dict[str, Callable[[bool], Measured]] = {
    "basins": basins,
    "gaussian": gaussian,
    "networks": networks,
    "guideline": guideline,
    "adamw": adamw,
    "rank_one": rank_one,
}
