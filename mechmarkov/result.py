"""A `Result`: what `mm.probe` returns, which writes its report and its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechmarkov.probing.outcome import Findings
from mechmarkov.report.first_screen.headline import at_step, headline
from mechmarkov.report.first_screen.still import still_curve
from mechmarkov.report.html import write
from mechmarkov.report.save import save_all
from mechmarkov.utils.errors import path_of


@dataclass(frozen=True, eq=False, repr=False)
class Result(Findings):
    """The answers of all probes about one run; a mapping from a probe's name to its outcome.

    In a notebook it shows itself as a table of scores.
    """

    def summary(self) -> dict[str, Any]:
        """Everything but the arrays, as plain JSON data, with the badge and the title of the first screen."""
        screen = headline(at_step(self, len(self.steps) - 1)) if self.steps else headline(self)
        return super().summary() | {"badge": screen.badge, "headline": screen.title}

    def report(self, path: str | Path) -> Path:
        """Write the single-file HTML report and return its path."""
        return write(self, path_of("path", path))

    def picture(self) -> str | None:
        """The learning curve as an SVG, for a page that runs no scripts; None without `behaviour`."""
        return still_curve(self)

    def save(self, folder: str | Path) -> Path:
        """Write `report.html`, `results.nc` and `summary.json` into a folder and return it."""
        place = path_of("folder", folder)
        save_all({place: self})
        return place
