"""Recording: what a pass over the evaluation batch keeps, one file per quantity."""

from mechmarkov.probing.recording.attention import ATTENTION
from mechmarkov.probing.recording.mlp_by_parent import MLP_BY_PARENT
from mechmarkov.probing.recording.norm_scale import NORM_SCALE
from mechmarkov.probing.recording.paths import PATHS
from mechmarkov.probing.recording.quantity import PerLayer, Quantity, Recorder, Sums, Totals
from mechmarkov.probing.recording.scores import SCORES

__all__ = [
    "ATTENTION",
    "MLP_BY_PARENT",
    "NORM_SCALE",
    "PATHS",
    "SCORES",
    "PerLayer",
    "Quantity",
    "Recorder",
    "Sums",
    "Totals",
]
