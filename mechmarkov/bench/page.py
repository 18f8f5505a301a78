"""The benchmark's files: a page of heat maps and scatters, the scores and every claim."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechmarkov.bench.cases import QUESTIONS
from mechmarkov.bench.run import MIN_SEEDS, Benchmark
from mechmarkov.bench.scores import SCORES
from mechmarkov.probing.figure import Figure
from mechmarkov.report.cards import figure_card
from mechmarkov.report.figures import heatmap
from mechmarkov.report.html import fill
from mechmarkov.report.words.grids import of_bench
from mechmarkov.utils.files import replacing
from mechmarkov.utils.text import counted, markdown, markdown_code, spreadsheet

# What writes each file.
FILES: dict[str, Callable[[Benchmark, Path], object]] = {
    "bench.html": lambda found, path: path.write_text(render(found), encoding="utf-8"),
    "bench.md": lambda found, path: path.write_text(tables(found), encoding="utf-8"),
    "scores.nc": lambda found, path: found.scores.to_netcdf(path, engine="h5netcdf"),
    "effects.csv": lambda found, path: _write_csv(found.effects, path),
    "reasons.csv": lambda found, path: _write_csv(found.reasons, path),
}
COLUMNS = {  # of each table, by what its methods claim
    ("nodes", "edges"): ("pearson", "sign", "auroc", "area", "cpr", "error", "alarms", "passes"),
    ("beliefs",): ("belief_error", "kl", "angle", "forced", "alarms", "passes"),
    ("subspaces",): ("angle", "forced", "alarms", "passes"),
    ("features",): ("cosine", "passes"),
    ("coefficients",): ("llc_error", "seconds"),
}
KEYS = ["method", "case", "seed"]
HEAT_MAPS = {"pearson": "Correlation with exact effects", "auroc": "AUROC: is a component in the circuit?"}


class Code(str):
    """A name, or several, set as code: of a method, which may be anybody's, of a case or a score."""

    names: tuple[str, ...]

    def __new__(cls, *names: str) -> "Code":
        """Names as a text: separated by commas."""
        made = super().__new__(cls, ", ".join(names))
        made.names = names
        return made


Table = tuple[list[str], list[list[str]]]  # head and rows


class Section(NamedTuple):
    """A part of the page: its title, what its tables show, and the tables."""

    title: str
    words: str
    tables: list[Table]


def save(benchmark: Benchmark, folder: str | Path) -> Path:
    """Write the page, its tables, the scores, all claims and all reasons to make none, each whole or not.

    Returns:
        The page's path.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in FILES.items():
        with replacing(folder / name) as temporary:
            write(benchmark, temporary)
    return folder / "bench.html"


def render(benchmark: Benchmark) -> str:
    """The page: tables of scores, heat maps of method × case, for each case claims against exact effects."""
    scored = [score for score in HEAT_MAPS if benchmark.scores[score].notnull().any()]
    figures = [_heat_map(benchmark, score, HEAT_MAPS[score]) for score in scored]
    figures += [_scatter(benchmark, str(case)) for case in benchmark.effects["case"].unique()]
    cards = [figure_card(f"figure-{number}", figure) for number, figure in enumerate(figures)]
    scores, *others = sections(benchmark)
    return fill(
        "bench.html.j2",
        cards,
        title="Interpretability methods against exact effects",
        maps=cards[: len(scored)],
        scatters=cards[len(scored) :],
        scores=scores,
        conclusion=_conclusion(benchmark),
        others=others,
        meanings=SCORES,
        seeds=benchmark.scores.sizes["seed"],
    )


def _conclusion(benchmark: Benchmark) -> str:
    """The methods that are first by correlation, of those that claim effects."""
    claimed = benchmark.summary()["pearson"].dropna()
    return of_bench("correlation with exact effects in nats", claimed.to_dict())


def tables(benchmark: Benchmark) -> str:
    """Scores of methods, and what changes place against AUROC, as Markdown; `docs/bench.md` shows them."""
    parts = []
    for section in sections(benchmark):
        parts += [section.words, *(_markdown(*table) for table in section.tables)]
    return "\n\n".join(parts) + "\n"


def sections(benchmark: Benchmark) -> list[Section]:
    """Scores by what methods claim; places by AUROC and by correlation; what methods say nothing of."""
    seeds = benchmark.scores.sizes["seed"]
    words = f"Means over the cases where a score applies, {counted(seeds, 'seed')} each."
    sections = [Section("Which methods tell the size and sign of effects?", words, _score_tables(benchmark))]
    rows: list[list[str]] = []
    for method, row in benchmark.ranks().sort_values(["of", "moves"]).iterrows():
        places = [f"{row[key]:.3g}" for key in ("auroc_rank", "pearson_rank")]
        moves = f"{row['moves']:+.1f}"
        if not np.isnan(row["low"]):
            moves += f" ({row['low']:+.1f} to {row['high']:+.1f})"
        rows.append([Code(str(method)), row["of"], str(row["cases"]), *places, moves])
    if rows:
        words = (
            "Places by AUROC and by correlation with exact effects are those of the means over seeds. A move "
            "is counted in each seed and averaged, so it may differ from the difference of the places"
            + ("; 95 % intervals over seeds. " if seeds >= MIN_SEEDS else ". ")
            + "All are on the cases that each ranked method answers; one that answers fewer than half is not "
            "ranked."
        )
        head = ["method", "claims", "cases", "place by AUROC", "place by correlation", "moves up by"]
        sections.append(Section("Whose place changes when effects count?", words, [(head, rows)]))
    silent = _silent(benchmark)
    if silent:
        words = "Draws that a method gives a reason for and no claim; they are in none of its means."
        head = ["method", "draws", "cases", "reason"]
        sections.append(Section("What do methods say nothing of?", words, [(head, silent)]))
    return sections


def _score_tables(benchmark: Benchmark) -> list[Table]:
    summary, of = benchmark.summary(), benchmark.scores["of"].to_series()
    parts: list[Table] = []
    for names, columns in COLUMNS.items():
        best, *_ = columns
        some = summary[of.isin(names)].sort_values(best, ascending=SCORES[best][0] == 0, kind="stable")
        rows = [
            [Code(method), of[method], *(_number(some.loc[method, column]) for column in columns)]
            for name in names
            for method in some.index[of[some.index] == name]
        ]
        if rows:
            parts.append((["method", "claims", *map(Code, columns)], rows))
    return parts


def _silent(benchmark: Benchmark) -> list[list[str]]:
    """Method, draws, cases and reason, where a method gives a reason and another of its kind has a score."""
    scored = benchmark.scores[list(SCORES)].notnull().to_array().any("variable")
    of_kind = scored.groupby("of").any().sel(of=scored["of"])
    missing = (of_kind & ~scored).to_series()
    reasons = benchmark.reasons[
        missing.reindex(pd.MultiIndex.from_frame(benchmark.reasons[KEYS])).to_numpy(bool)
    ]
    rows = []
    for (method, why), some in reasons.groupby(["method", "reason"]):
        rows.append([Code(method), str(len(some)), Code(*dict.fromkeys(some["case"])), str(why)])
    return rows


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [map(_cell, head), ["---"] * len(head), *(map(_cell, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return ", ".join(map(markdown_code, text.names)) if isinstance(text, Code) else markdown(text)


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    written = table.map(lambda value: spreadsheet(value) if isinstance(value, str) else value)
    written.to_csv(path, index=False, quoting=csv.QUOTE_NONNUMERIC)


def _heat_map(benchmark: Benchmark, score: str, title: str) -> Figure:
    table = benchmark.table(score).dropna(how="all").dropna(axis=1, how="all")
    _, chance, words = SCORES[score]
    picture = heatmap(
        table.to_numpy(),
        list(table.index),
        list(table.columns),
        value_title=score,
        diverging=chance == 0,
        limits=(-1, 1) if chance == 0 else (0, 1),
    )
    for axis, names in (("xaxis", table.columns), ("yaxis", table.index)):  # every name, not every second
        picture.layout[axis].update(tickvals=list(range(len(names))), ticktext=list(names))
    picture.update_layout(height=160 + 20 * len(table), meta={"least": 200 + 28 * len(table.columns)})
    seeds = benchmark.scores.sizes["seed"]
    caption = f"Mean over {seeds} seeds: {words}. Chance: {chance:g}. Blank: not applicable."
    return Figure(title, caption, "plotly", picture)


def _scatter(benchmark: Benchmark, case: str) -> Figure:
    """Claimed against exact effects of one case, a colour a method whose claims are in nats."""
    picture = go.Figure()
    of_case = benchmark.effects[benchmark.effects["case"] == case]
    for method, rows in of_case.groupby("method", sort=False):
        picture.add_scatter(
            x=rows["exact"],
            y=rows["claimed"],
            mode="markers",
            name=str(method),
            text=[f"{c}, seed {s}" for c, s in zip(rows["component"], rows["seed"], strict=True)],
            hovertemplate="%{text}<br>exact %{x:.3f} nats<br>claimed %{y:.3f}<extra>" + f"{method}</extra>",
            visible=True if method in ("eap", "eap-ig", "acdc") else "legendonly",
        )
    ends = [float(np.min(of_case["exact"])), float(np.max(of_case["exact"]))]
    picture.add_scatter(
        x=ends, y=ends, mode="lines", name="claimed = exact", line={"dash": "dot", "color": "#777"}
    )
    picture.update_layout(
        height=420, xaxis_title="exact effect, nats", yaxis_title="claimed", margin={"t": 20, "b": 60}
    )
    return Figure(
        f"{case}: claimed against exact",
        f"{QUESTIONS.get(case, '')} Click a name to show a method.",
        "plotly",
        picture,
    )
