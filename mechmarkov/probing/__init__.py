"""The probing layer: subjects, probes, scores beside their nulls."""

from mechmarkov.probing.ask import probe
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.results import AttentionView, Figure, Outcome, Result, Score
from mechmarkov.probing.subject import Subject

__all__ = ["AttentionView", "Figure", "Outcome", "Probe", "Result", "Score", "Subject", "probe"]
