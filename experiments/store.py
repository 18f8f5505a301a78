"""The results of a folder: a file per measurement, its figures, and the page made of them."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import plotly.graph_objects as go
import plotly.io

from experiments.claims import Claim, Measured, table


def save(folder: Path, name: str, measured: Measured, seconds: float) -> None:
    """Write `results/NAME.json`, and each figure as `figures/FIGURE.json` and as a picture for the page."""
    results, figures = folder / "results", folder / "figures"
    for place in (results, figures):
        place.mkdir(parents=True, exist_ok=True)
    record = {
        "seconds": round(seconds, 1),
        "figures": [*measured.figures],
        "claims": [asdict(claim) for claim in measured.claims],
    }
    (results / f"{name}.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    for title, figure in measured.figures.items():
        (figures / f"{title}.json").write_text(figure.to_json() + "\n")
        figure.write_image(figures / f"{title}.svg", width=900, height=420)


def load(folder: Path, name: str) -> tuple[list[Claim], float]:
    """The claims of a measurement and the seconds it took. Raises FileNotFoundError before its first run."""
    record = json.loads((folder / "results" / f"{name}.json").read_text())
    return [Claim(**row) for row in record["claims"]], record["seconds"]


def load_figure(folder: Path, title: str) -> go.Figure:
    """A saved figure, to be drawn again."""
    return plotly.io.from_json((folder / "figures" / f"{title}.json").read_text())


def page(folder: Path, names: Iterable[str]) -> str:
    """`README.md` from `reading.md`: the claims where it says `{table}`, the minutes where `{minutes}`."""
    found = [load(folder, name) for name in names]
    claims = [claim for rows, _ in found for claim in rows]
    minutes = sum(seconds for _, seconds in found) / 60
    reading = (folder / "reading.md").read_text()
    return reading.replace("{table}", table(claims)).replace("{minutes}", f"{minutes:.1f}")
