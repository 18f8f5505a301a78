"""A probe: one question about a run, how it is answered, and how it is found by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import xarray as xr

from mechmarkov.catalogue.probes import registered
from mechmarkov.claims.claim import Claim
from mechmarkov.claims.tile import Tile
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.recording.quantity import Quantity
from mechmarkov.probing.score import Score
from mechmarkov.probing.subject import Subject
from mechmarkov.utils import plugins
from mechmarkov.utils.text import is_utf8, shown

# What a probe leaves out: functions with a name, which a process can be given.


def _always(_: Subject) -> None:
    return None


def _nothing(subject: Subject) -> xr.Dataset:
    return xr.Dataset(coords={subject.axis: subject.coordinates})


def _no_scores(*_: xr.Dataset | None) -> dict[str, Score]:
    return {}


def _none(*_: object) -> list[Any]:
    return []


def _yes(_: Subject) -> bool:
    return True


@dataclass(frozen=True, repr=False)
class Probe:
    """One question about a run; what a probe leaves out gives nothing, and it applies to every subject.

    Attributes:
        name: The name, as in `mechmarkov probe --probes name`.
        question: What it answers, in one sentence.
        cites: Where its formulas come from.
        applies: None, or one line why the probe does not apply to a subject.
        measure: The measured arrays; pure. Axes are the vocabulary's, the first is `subject.axis`.
            Each variable's attrs hold its unit and source.
        scores: The headline scores at the last step, from the data and the data on null models.
        claims: What was found at the last step, as data, the most important first; no English.
        headline: The tiles it gives the first screen, from all claims of the result.
        figures: Pictures of the data.
        formula: How the headline scores are computed, a line each, in plain text; `cites` is the source.
        formulas: Those of single scores, by name or by a pattern such as `share_*`.
        ranges: The values that single scores can take, by name or pattern, where the unit does not say it.
        records: Quantities it reads that are not in `mechmarkov.probing.recording.record.STANDARD`; all
            probes' are recorded in one pass.
        has_null: Whether fresh models say what chance gives; where not, `scores` gets None for their data.
        after_others: Whether it reads the data of other probes: several processes measure those first.
        on_request: Whether it is put to a run only if it is named, because it takes long.
        with_bos: Whether it measures models whose sequences begin with a token that is not a state
            (`Objective.bos`); where not, it does not apply to them.
    """

    name: str
    question: str
    cites: str
    applies: Callable[[Subject], str | None] = _always
    measure: Callable[[Subject], xr.Dataset] = _nothing
    scores: Callable[[xr.Dataset, xr.Dataset | None], dict[str, Score]] = _no_scores
    claims: Callable[[xr.Dataset, dict[str, Score]], list[Claim]] = _none
    figures: Callable[[xr.Dataset], list[Figure]] = _none
    headline: Callable[[Sequence[Claim]], list[Tile]] = _none
    formula: str = ""
    formulas: Mapping[str, str] = field(default_factory=dict, hash=False)
    ranges: Mapping[str, str] = field(default_factory=dict, hash=False)
    records: tuple[Quantity[Any], ...] = ()
    has_null: Callable[[Subject], bool] = _yes
    after_others: bool = False
    on_request: bool = False
    with_bos: bool = False

    def __post_init__(self) -> None:
        """Check that what a reader sees of the probe is text."""
        for name in ("name", "question", "cites", "formula"):
            if not is_utf8(text := getattr(self, name)):
                raise TypeError(f"{name} is {shown(text)}, expected a text")

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """By its name where it is registered, so that a result goes from one process to another."""
        if self.name in (known := registered()) and plugins.load(self.name, Probe, known) is self:
            return load_probe, (self.name,)
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        """The question, and how it is asked."""
        return f"Probe({self.name}: {self.question})\n  mm.probe(run, [{self.name!r}]) asks it"


def load_probe(name: str) -> Probe:
    """Load one probe by name.

    Raises:
        ValueError: If no probe has that name, or what is registered under it is not one.
    """
    return plugins.load(name, Probe, registered())
