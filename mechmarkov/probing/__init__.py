"""How a run is measured: `Probe`s measure a `Subject` and give data, `Score`s with nulls and `Claim`s.

A subject is a stack of models of one shape with sequences whose law is known. `recording` runs the models
over the sequences once for all probes. A probe's data are an `xr.Dataset` whose first axis is `step` (of a
run) or `seed` (of its null, fresh models of the same shape); everything that is told is made of these data.
Here is what a probe of a third party needs (`docs/write-a-probe.md`).
"""

from mechmarkov.claims.claim import Claim, Claims, Condition, Where
from mechmarkov.claims.tile import Tile
from mechmarkov.probing.dataset import score_with_null, variables
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.nulls import NULL_KIND, null_band
from mechmarkov.probing.outcome import Outcome
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.recording import HookSums, PerLayer, Quantity, Recording, Scope
from mechmarkov.probing.score import Score
from mechmarkov.probing.subject import Subject

__all__ = [
    "NULL_KIND",
    "AttentionView",
    "Claim",
    "Claims",
    "Condition",
    "Figure",
    "HookSums",
    "Outcome",
    "PerLayer",
    "Probe",
    "Quantity",
    "Recording",
    "Scope",
    "Score",
    "Subject",
    "Tile",
    "Where",
    "null_band",
    "score_with_null",
    "variables",
]
