"""The benchmark's files: a page of tables, heat maps and scatters, the leaderboard, and every claim."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mechmarkov.bench.cases import QUESTIONS
from mechmarkov.bench.leaderboard import Estimate, Placed, leaderboard, places, summary
from mechmarkov.bench.metrics import METRICS
from mechmarkov.bench.run import COST, Benchmark
from mechmarkov.bench.scores import SCORES
from mechmarkov.probing.figure import Figure
from mechmarkov.report.cards import figure_card
from mechmarkov.report.figures import heatmap
from mechmarkov.report.html import fill
from mechmarkov.report.words.grids import bench_in_short, of_bench
from mechmarkov.utils.files import replacing
from mechmarkov.utils.text import clean, counted, markdown, markdown_code, shorten, spreadsheet

# What writes each file.
FILES: dict[str, Callable[[Benchmark, Path], object]] = {
    "bench.html": lambda found, path: path.write_text(render(found), encoding="utf-8"),
    "leaderboard.json": lambda found, path: path.write_text(
        json.dumps(leaderboard(found), indent=1, ensure_ascii=False), encoding="utf-8"
    ),
    "scores.csv": lambda found, path: _write_csv(found.scores, path),
    "effects.csv": lambda found, path: _write_csv(found.effects, path),
    "reasons.csv": lambda found, path: _write_csv(found.reasons, path),
}
COLUMNS = {  # of each table, by what its methods claim; the first orders it
    "edges": ("rank", "pearson", "sign", "auroc", "built", "cpr", "cmd", "error", "alarms"),
    "nodes": ("rank", "pearson", "sign", "auroc", "built", "error", "alarms"),
    "layers": ("error", "sign", "alarms"),
    "beliefs": ("belief_error", "kl", "angle", "forced", "alarms"),
    "subspaces": ("angle", "forced", "alarms"),
    "features": ("cosine",),
    "coefficients": ("llc_error",),
}
MEANINGS = {name: words for name, (_, _, words) in SCORES.items()} | {
    "claims in": "whether claims are in this metric; others are scored by order and sign, or are sizes",
    "cases": "how many the first score is a mean of: all that every ranked method answers, if it is ranked",
    "passes": "forward passes that a case takes",
    "declared": "the most that the method says it takes",
    "seconds": "of processor, for a case",
    "tunes": "what it may fit or choose, on other sequences than it is scored on",
}
REFERENCE = "reference"
MAX_REASONS = 3  # of a method; of more it is said how many
WHY = {  # orders differ between metrics
    "kl": "KL is 0 at the clean output and nowhere below, so its gradient there is zero: claims stated for a "
    "logit difference are scored here by the order of their sizes.",
    "nats": "At an optimum the gradient of the expected loss is zero: methods of first order are run with a "
    "logit difference, and scored here by order and sign.",
}
PLACES = (
    "Place and score of each ranked method under each metric, with its 95 % interval over seeds. "
    "Methods of one kind are on the same cases."
)
WIDEST = 60  # characters of a cell in a terminal
PAIRED = {
    "minimal": "Clean and corrupt sequences differ in one state, and the last prediction is read.",
    "resampled": "Clean and corrupt sequences have nothing in common, and every prediction is read.",
}


class Code(str):
    """A name, or several, set as code: of a method, which may be anybody's, of a case or a score."""

    names: tuple[str, ...]

    def __new__(cls, *names: str) -> "Code":
        """Names as a text: separated by commas."""
        made = super().__new__(cls, ", ".join(names))
        made.names = names
        return made


class Table(NamedTuple):
    """A table: what it is of, the names of its columns, and its rows."""

    title: str
    head: list[str]
    rows: list[list[str]]


class Section(NamedTuple):
    """A part of the page: its title, what its tables show, and the tables."""

    title: str
    words: str
    tables: list[Table]


def save(benchmark: Benchmark, folder: str | Path) -> Path:
    """Write the page, the leaderboard, the scores, all claims and all reasons, each whole or not.

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
    """The page: what was found, tables and a heat map for each metric, and claims against effects."""
    maps = [figure for metric in METRICS if (figure := _heat_map(benchmark, metric)) is not None]
    cells = benchmark.effects[["case", "metric"]].drop_duplicates().itertuples(index=False)
    scatters = [_scatter(benchmark, str(case), str(metric)) for case, metric in cells]
    cards = [figure_card(f"figure-{number}", figure) for number, figure in enumerate([*maps, *scatters])]
    return fill(
        "bench.html.j2",
        cards,
        title="Interpretability methods against exact effects",
        maps=cards[: len(maps)],
        scatters=cards[len(maps) :],
        sections=sections(benchmark),
        conclusions=conclusions(benchmark),
        meanings=MEANINGS,
        seeds=counted(benchmark.scores["seed"].nunique(), "seed"),
    )


def conclusions(benchmark: Benchmark) -> list[str]:
    """One sentence on all metrics, then one for each metric and kind of claim: what is first, or open."""
    ranked = [*places(benchmark)]
    kinds = [each.of for each in ranked]
    shortly = [each for each in ranked if each.of == ("edges" if "edges" in kinds else kinds[0])]
    firsts = {each.metric: None if each.is_open else next(iter(each.methods)) for each in shortly}
    in_short = [bench_in_short(shortly[0].of, shortly[0].score, firsts)] if len(firsts) > 1 else []
    return in_short + [
        of_bench(
            metric=each.metric,
            of=each.of,
            score=each.score,
            scores={name: (e.value, e.low, e.high) for name, e in each.methods.items()},
            lead=None if each.lead is None else (each.lead.value, each.lead.low, each.lead.high),
            cases=len(each.cases),
        )
        for each in ranked
    ]


def as_text(benchmark: Benchmark) -> str:
    """Returns what was found and all tables, with columns that stand under one another, for a terminal."""
    parts = conclusions(benchmark)
    for section in sections(benchmark):
        parts += [f"\n{section.title}\n{section.words}"]
        for _, head, rows in section.tables:
            shown = [[shorten(clean(cell), WIDEST) for cell in row] for row in (head, *rows)]
            widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
            lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def as_markdown(benchmark: Benchmark) -> str:
    """The same as Markdown; `docs/bench.md` shows it."""
    told = [markdown(sentence) for sentence in conclusions(benchmark)]
    parts = [*told[:1], "\n".join(f"- {sentence}" for sentence in told[1:])]
    for section in sections(benchmark):
        parts.append(f"**{section.title}** {section.words}")
        for _, head, rows in section.tables:
            lines = [[Code(name) if name in SCORES else name for name in head], ["---"] * len(head), *rows]
            parts.append("\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines))
    return "\n\n".join(part for part in parts if part) + "\n"


def sections(benchmark: Benchmark) -> list[Section]:
    """Places, scores under each metric and of other claims; where methods are silent, and what they broke."""
    means = summary(benchmark).reset_index()
    ranked = [*places(benchmark)]  # once for all tables: each place is a mean over many draws
    placed = {(each.of, each.metric): each.methods for each in ranked}
    found = [Section("Places.", PLACES, _places(ranked))]
    for metric, words in METRICS.items():
        tables = [
            _table(benchmark, means, placed.get((of, metric), {}), of, metric)
            for of in ("edges", "nodes", "layers")
        ]
        pairs = PAIRED[str(benchmark.pairs)]
        said = " ".join([f"An effect is the {words}.", pairs, *filter(None, [WHY.get(metric)])])
        found.append(Section(f"{_titled(metric)}.", said, tables))
    tables = [_table(benchmark, means, {}, of, "") for of in list(COLUMNS)[3:]]
    found.append(Section("Other claims.", "Beliefs, subspaces, features and learning coefficients.", tables))
    for title, words, broken in (
        ("Silent.", "Draws that a method gives a reason for and no claim; they are in none of its means.", 0),
        ("Broken.", "Draws in which a method broke what it promised; they are in none of its means.", 1),
    ):
        rows = _reasons(benchmark, broken=bool(broken))
        found.append(Section(title, words, [Table("", ["method", "draws", "cases", "reason"], rows)]))
    return [
        Section(title, words, some)
        for title, words, all_of in found
        if (some := [table for table in all_of if table.rows])
    ]


def _places(ranked: Sequence[Placed]) -> list[Table]:
    """The place of each ranked method under each metric, and the score that it has it by."""
    cells: dict[str, dict[str, dict[str, str]]] = {}
    for each in ranked:
        for place, (name, score) in enumerate(each.methods.items(), 1):
            by_method = cells.setdefault(each.of, {}).setdefault(name, {})
            by_method[each.metric] = f"{place}: {_with_interval(score)}"
    return [
        Table(
            of,
            [of, *map(_titled, METRICS)],
            [[Code(name), *(by.get(m, "–") for m in METRICS)] for name, by in rows.items()],
        )
        for of, rows in cells.items()
    ]


def _titled(metric: str) -> str:
    return {"kl": "KL from the clean output", "nats": "Loss in nats"}.get(metric, "Logit difference")


def _table(
    benchmark: Benchmark, means: pd.DataFrame, placed: Mapping[str, Estimate], of: str, metric: str
) -> Table:
    """The methods that claim one kind of thing, the best first; references last.

    Those that are ranked by this metric come with their means in `placed`.
    """
    columns = COLUMNS[of]
    best, _, _ = SCORES[columns[0]]
    rows = means[(means["of"] == of) & (means["metric"] == metric)]
    shown = [column for column in columns if rows[column].notna().any()]
    rows = rows.assign(
        group=[
            2 if benchmark.methods[name].reference else int(name not in placed) for name in rows["method"]
        ],
        by=rows[columns[0]] * (1 if best == 0 else -1),
    ).sort_values(["group", "by"], kind="stable")
    head = [of, *(["claims in"] if metric else []), *shown, *(["cases"] if metric else []), *COST, "tunes"]
    cells = []
    for _, row in rows.iterrows():
        method = benchmark.methods[row["method"]]
        claims = "this metric" if row["own"] else ", ".join(method.metrics) or "a unit of its own"
        claims += f" ({REFERENCE})" * method.reference
        scores = {name: _number(row[name]) for name in shown}
        if method.name in placed:
            scores[columns[0]] = _with_interval(placed[method.name])
        costs = [_number(row[name]) for name in COST]
        cases = "–" if np.isnan(row["cases"]) else f"{row['cases']:.0f}"
        about = ([claims], [cases]) if metric else ([], [])
        cells.append([Code(method.name), *about[0], *scores.values(), *about[1], *costs, method.tunes or "–"])
    return Table(of, head, cells)


def _reasons(benchmark: Benchmark, *, broken: bool) -> list[list[str]]:
    """Method, draws, cases and reason; without the cases in which no method of its kind has a score."""
    reasons = benchmark.reasons[benchmark.reasons["broken"] == broken]
    if not broken:
        scored = benchmark.scores[benchmark.scores[[*SCORES]].notna().any(axis=1)]
        known = set(scored[["of", "case"]].itertuples(index=False, name=None))
        of = reasons["method"].map({name: method.of for name, method in benchmark.methods.items()})
        told = [pair in known for pair in zip(of, reasons["case"], strict=True)]
        reasons = reasons[np.array(told, bool)]
    rows = []
    for method, of_method in reasons.groupby("method"):
        whys = of_method["reason"].value_counts(sort=False).sort_values(ascending=False, kind="stable").index
        shown, rest = whys[:MAX_REASONS], whys[MAX_REASONS:]
        groups = [(str(why), of_method[of_method["reason"] == why]) for why in shown]
        if len(rest):  # a number of a draw makes a reason of its own
            others = f"{counted(len(rest), 'other reason')}, in reasons.csv"
            groups.append((others, of_method[of_method["reason"].isin(rest)]))
        for why, some in groups:
            draws = some[["case", "seed"]].drop_duplicates()
            rows.append([Code(method), str(len(draws)), Code(*dict.fromkeys(draws["case"])), why])
    return rows


def _with_interval(score: Estimate) -> str:
    if np.isnan(score.low):
        return _number(score.value)
    return f"{_number(score.value)} ({_number(score.low)} to {_number(score.high)})"


def _number(value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{round(value, 2) + 0.0:.2f}" if abs(value) < 10 else f"{value:.0f}"  # no minus before a 0


def _cell(text: str) -> str:
    return ", ".join(map(markdown_code, text.names)) if isinstance(text, Code) else markdown(text)


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    written = table.map(lambda value: spreadsheet(value) if isinstance(value, str) else value)
    written.to_csv(path, index=False, quoting=csv.QUOTE_NONNUMERIC)


def _heat_map(benchmark: Benchmark, metric: str) -> Figure | None:
    """The rank correlation of each method in each case; None where there is none."""
    table = benchmark.table("rank", metric).dropna(how="all").dropna(axis=1, how="all")
    if table.empty:
        return None
    names, values = [list(map(str, axis)) for axis in (table.index, table.columns)], table.to_numpy()
    picture = heatmap(values, *names, value_title="rank", diverging=True, limits=(-1, 1))
    for axis, labels in zip(("yaxis", "xaxis"), names, strict=True):  # every name, not every second
        picture.layout[axis].update(tickvals=list(range(len(labels))), ticktext=labels)
    picture.update_layout(height=160 + 20 * len(table), meta={"least": 200 + 28 * len(table.columns)})
    seeds = benchmark.scores["seed"].nunique()
    caption = f"Mean over {seeds} seeds: {SCORES['rank'][2]}. Chance: 0. Blank: not applicable."
    return Figure(f"{_titled(metric)}: rank correlation with exact effects", caption, "plotly", picture)


def _scatter(benchmark: Benchmark, case: str, metric: str) -> Figure:
    """Claimed against exact effects of one case under one metric, a colour a method."""
    picture = go.Figure()
    of_case = benchmark.effects.query("case == @case and metric == @metric")
    for method, rows in of_case.groupby("method", sort=False):
        picture.add_scatter(
            x=rows["exact"].round(4),
            y=rows["claimed"].round(4),
            mode="markers",
            name=str(method),
            text=[f"{c}, seed {s}" for c, s in zip(rows["component"], rows["seed"], strict=True)],
            hovertemplate="%{text}<br>exact %{x:.3f}<br>claimed %{y:.3f}<extra>" + f"{method}</extra>",
            visible=True if method in ("eap", "eap-ig", "acdc") else "legendonly",
        )
    ends = [float(np.min(of_case["exact"])), float(np.max(of_case["exact"]))]
    picture.add_scatter(
        x=ends, y=ends, mode="lines", name="claimed = exact", line={"dash": "dot", "color": "#777"}
    )
    picture.update_layout(
        height=420, xaxis_title="exact effect", yaxis_title="claimed", margin={"t": 20, "b": 60}
    )
    return Figure(
        f"{case}, {_titled(metric)}: claimed against exact",
        f"{QUESTIONS.get(case, '')} Click a name to show a method.",
        "plotly",
        picture,
    )
