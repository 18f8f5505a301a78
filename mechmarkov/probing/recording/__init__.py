"""Recording: what a pass over the evaluation batch keeps."""

from mechmarkov.probing.recording.activations import MLP_BY_PARENT, NORM_SCALE, SCORES
from mechmarkov.probing.recording.attention import ATTENTION
from mechmarkov.probing.recording.paths import PATHS
from mechmarkov.probing.recording.quantity import HookSums, PerLayer, PerSequence, Quantity, Recorder, Sums

__all__ = [
    "ATTENTION",
    "MLP_BY_PARENT",
    "NORM_SCALE",
    "PATHS",
    "SCORES",
    "HookSums",
    "PerLayer",
    "PerSequence",
    "Quantity",
    "Recorder",
    "Sums",
]
