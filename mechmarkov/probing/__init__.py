"""The probing layer: subjects, probes, scores and their nulls."""

from mechmarkov.claims.claim import Claim, Claims, Condition, Where
from mechmarkov.claims.tile import Tile
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.outcome import Outcome
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.score import Score
from mechmarkov.probing.subject import Subject

__all__ = [
    "AttentionView",
    "Claim",
    "Claims",
    "Condition",
    "Figure",
    "Outcome",
    "Probe",
    "Score",
    "Subject",
    "Tile",
    "Where",
]
