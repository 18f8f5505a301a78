"""A folder of probed runs as one page and as JSON: a row a run, with badge, loss and a link to its report."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Strict

from mechmarkov.report.first_screen.verdict import Badge
from mechmarkov.report.html import fill
from mechmarkov.report.shares import CountedRun, RunShare, key_of, setting_of, shares_of
from mechmarkov.report.words.forms import formed
from mechmarkov.safe.json_file import read_as
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import path_of
from mechmarkov.utils.files import replacing
from mechmarkov.utils.text import counted, format_number, is_utf8, printable

PAGE, DATA = "index.html", "index.json"
SUMMARY, REPORT = "summary.json", "report.html"
MAX_DEPTH = 4  # folders below the one that is listed
MAX_RUNS = 5000
MAX_BYTES = 16 << 20  # of a summary
WIDTH, HEIGHT = 120, 28  # pixels of a small curve


@dataclass(frozen=True)
class ProbedRun:
    """A row of the dashboard: a run that was probed, as its `summary.json` has it.

    Attributes:
        folder: The folder of its files, from the folder that is listed.
        report: Its report, from there; empty where there is none.
        badge: The word of its first screen; empty where it is undecided.
        headline: The title of its first screen.
        title: The run: source, model and training.
        source: Where its data come from.
        model: The model's shape.
        objective: The loss.
        has: What it has formed (`mechmarkov.report.words.forms`); None where that is undecided.
        seed: The seed that it was trained with, if it is known.
        step: The last step that was probed.
        excess: The loss above the best possible (nats), if it was measured.
        interval: The 95 % interval of `excess` (nats).
        curve: `step` and `loss` of its training, if they were kept.
        failed: How many probes failed.
        warnings: What may invalidate all of it.
        fingerprints: Hashes of its source, model, objective and training, by these names.
    """

    folder: str
    report: str
    badge: str
    headline: str
    title: str
    source: str
    model: str
    objective: str
    has: dict[str, bool | None]
    seed: int | None
    step: int | None
    excess: float | None
    interval: tuple[float, float] | None
    curve: dict[str, list[float]] | None
    failed: int
    warnings: tuple[str, ...]
    fingerprints: dict[str, str]


class _Part(BaseModel):
    """A part of a summary, which may come from anywhere: texts are texts and numbers are finite."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class _Run(_Part):
    title: str
    source: str = ""
    model: str = ""
    objective: str = ""
    seed: int | None = None
    fingerprints: dict[str, str] = {}


class _Score(_Part):
    value: float | None = None
    interval: Annotated[tuple[float, float], Strict(False)] | None = None


class _Scores(_Part):
    excess_loss: _Score = _Score()


class _Probe(_Part):
    scores: _Scores = _Scores()


class _Condition(_Part):
    name: str
    holds: bool | None = True


class _Claim(_Part):
    relation: str
    status: str
    object: list[str] = []
    probe: str = ""
    where: dict[str, list[str | int | list[str]]] = {}  # a pair of states is a list
    because: list[_Condition] = []

    @property
    def is_everywhere(self) -> bool:
        """Returns whether it is said of all states, positions and pairs."""
        return not {*self.where} & {"states", "positions", "pairs"}

    def holds(self, name: str) -> bool:
        """Returns whether the premise of that name is there and holds."""
        return any(one.name == name and bool(one.holds) for one in self.because)


class _Curve(_Part):
    step: list[float]
    loss: list[float]


class _Summary(_Part):
    run: _Run
    probes: dict[str, _Probe]
    claims: list[_Claim] = []
    steps: list[int]
    failed: dict[str, Any]
    warnings: list[str]
    badge: Badge | None = None
    headline: str | None = None
    curve: _Curve | None = None


@dataclass(frozen=True)
class Dashboard:
    """The probed runs of a folder.

    Attributes:
        folder: The folder that was searched.
        runs: Its probed runs, one a `summary.json`.
        unread: Why a `summary.json` could not be read, by its path in the folder.
    """

    folder: Path
    runs: tuple[ProbedRun, ...]
    unread: dict[str, str]

    def __repr__(self) -> str:
        """Returns how many runs there are, and where."""
        return f"Dashboard({counted(len(self.runs), 'probed run')} in {self.folder}: .runs, .to_data())"

    def to_data(self) -> dict[str, Any]:
        """Everything as plain data, as `index.json` has it."""
        shares = [asdict(share) for share in self.shares()]
        return {"runs": [asdict(run) for run in self.runs], "shares": shares, "unread": self.unread}

    def shares(self) -> list[RunShare]:
        """Returns which share of the seeds of a setting has a badge, or formed something (`shares_of`)."""
        return shares_of([_counted(run) for run in self.runs])


def _counted(run: ProbedRun) -> CountedRun:
    key = key_of(run.fingerprints, run.step)
    return CountedRun(setting_of(asdict(run)), run.badge, run.has, run.folder, key, run.seed)


def read_dashboard(folder: str | os.PathLike[str]) -> Dashboard:
    """Find the probed runs of a folder, by their `summary.json`, up to four folders deep.

    Raises:
        TypeError: What is not a path.
        NotADirectoryError: It is not a folder.
        ValueError: It has no probed run, or more than 5000.
    """
    folder = path_of("folder", folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder, expected one with reports of `mechmarkov probe`")
    patterns = ["*/" * depth + SUMMARY for depth in range(MAX_DEPTH + 1)]
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    if not files:
        raise ValueError(
            f"{folder} has no {SUMMARY}, expected reports: mechmarkov probe RUN --out {folder / 'NAME'}"
        )
    if len(files) > MAX_RUNS:
        raise ValueError(f"{folder} has {len(files)} probed runs, expected at most {MAX_RUNS}")
    runs, unread = [], {}
    for file in files:
        name = file.parent.relative_to(folder).as_posix()
        if not is_utf8(name):  # neither a page nor JSON could hold it
            unread[printable(name)] = "its name is not UTF-8 text: rename the folder"
            continue
        try:
            runs.append(_read(file, name))
        except RunFileError as error:
            unread[name] = str(error)
    return Dashboard(folder, tuple(runs), unread)


def write_dashboard(board: Dashboard) -> Path:
    """Write `index.html` and `index.json` into the folder, both or none, and return the page."""
    page, data = render(board).encode(), json.dumps(board.to_data(), ensure_ascii=False, allow_nan=False)
    with replacing(board.folder / PAGE) as html, replacing(board.folder / DATA) as listed:
        html.write_bytes(page)
        listed.write_text(data + "\n", "utf-8")
    return board.folder / PAGE


def render(board: Dashboard) -> str:
    """The page: filters that need no network above a table whose columns sort."""
    counts = Counter(run.badge or "undecided" for run in board.runs)
    order = [*get_args(Badge), "undecided"]
    return fill(
        "dashboard.html.j2",
        [],
        scripts=["dashboard.js"],
        title=counted(len(board.runs), "probed run"),
        badges=[(badge, counts[badge]) for badge in order if counts[badge]],
        rows=[_row(run) for run in board.runs],
        shares=[
            (setting, [*map(str, of)])
            for setting, of in groupby(board.shares(), key=lambda share: share.setting)
        ],
        unread=board.unread,
    )


def _row(run: ProbedRun) -> dict[str, Any]:
    """A run as the template shows it: numbers in words, its curve as points of a picture."""
    excess = "" if run.excess is None else format_number(run.excess, 3)
    loss = run.curve["loss"] if run.curve else []
    return {
        "run": run,
        "link": quote(run.report),
        "excess": excess,
        "points": sparkline(loss),
        "said": f"from {format_number(loss[0], 3)} to {format_number(loss[-1], 3)}" if loss else "",
    }


def sparkline(values: Sequence[float]) -> str:
    """Points of a polyline that is as wide and as high as a small picture.

    >>> sparkline([2.0, 1.0])
    '2.0,2.0 118.0,26.0'
    """
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    across, down = (WIDTH - 4) / (len(values) - 1), (HEIGHT - 4) / ((high - low) or 1)
    return " ".join(f"{2 + i * across:.1f},{2 + (high - x) * down:.1f}" for i, x in enumerate(values))


def _read(file: Path, name: str) -> ProbedRun:
    """A run out of its summary, which may come from anywhere: texts are texts and numbers are numbers."""
    data = read_as(_Summary, file, MAX_BYTES, name=SUMMARY)
    score, report = data.probes.get("behaviour", _Probe()).scores.excess_loss, file.parent / REPORT
    return ProbedRun(
        folder=name,
        report=f"{name}/{REPORT}" if report.is_file() else "",
        badge=data.badge or "",
        headline=data.headline or "",
        title=data.run.title,
        source=data.run.source,
        model=data.run.model,
        objective=data.run.objective,
        has=formed(data.claims, list(data.probes)),
        seed=data.run.seed,
        step=data.steps[-1] if data.steps else None,
        excess=score.value,
        interval=score.interval,
        curve=None if data.curve is None else data.curve.model_dump(),
        failed=len(data.failed),
        warnings=tuple(data.warnings),
        fingerprints=data.run.fingerprints,
    )
