"""Recording: what one pass over the evaluation batch gives all probes.

A `Quantity` begins a `Recording` (`hooks`, `update`, `compute`) for each group of models; `record` runs them
all together, in chunks of bounded memory.
"""

from mechmarkov.probing.recording.activations import MLP_BY_PARENT, NORM_SCALE, SCORES, WHERE_READ
from mechmarkov.probing.recording.attention import ATTENTION
from mechmarkov.probing.recording.paths import PATHS
from mechmarkov.probing.recording.quantity import HookSums, PerLayer, PerSequence, Quantity, Recording, Scope

__all__ = [
    "ATTENTION",
    "MLP_BY_PARENT",
    "NORM_SCALE",
    "PATHS",
    "SCORES",
    "WHERE_READ",
    "HookSums",
    "PerLayer",
    "PerSequence",
    "Quantity",
    "Recording",
    "Scope",
]
