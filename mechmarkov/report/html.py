"""The report: one HTML file that opens anywhere, loads nothing and runs no script but its own."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mechmarkov.atomic import replacing
from mechmarkov.probing.results import Figure, Outcome, Result
from mechmarkov.report import bundles, text
from mechmarkov.report.bars import bar
from mechmarkov.report.payload import figure_data, script_json

_LONGEST_TITLE = 200
_LONGEST_TEXT = 2000


@dataclass(frozen=True)
class _FigureCard:
    """A figure as the template wants it; `json` is the data that the renderer reads."""

    id: str
    title: str
    caption: str
    kind: str
    heads: list[str]
    note: str
    json: Markup


@dataclass(frozen=True)
class _ProbeCard:
    """A probe as the template wants it; `problem` says why its figures are missing, where they are."""

    name: str
    outcome: Outcome
    figures: list[_FigureCard]
    problem: str


def render(result: Result) -> str:
    """Returns the report of a result as one HTML page that needs no network and admits no foreign script.

    Everything in the page that came from the result is escaped text or JSON in a data block. A
    Content-Security-Policy names the page's own scripts by their hashes, so that nothing else runs even where
    escaping were to fail, and forbids every connection.

    Args:
        result: what `mechmarkov.probe` returned.

    Returns:
        The page; UTF-8 when encoded, under 8 MB for a run of ordinary size (plotly.js is 4.8 MB of it and
        CircuitsVis 1.3 MB, each there once and only where a figure needs it).
    """
    numbered = enumerate(result.outcomes.items(), start=1)
    cards = [_probe_card(number, name, outcome) for number, (name, outcome) in numbered]
    kinds = {figure.kind for card in cards for figure in card.figures}
    scripts = [
        *([bundles.plotly_script()] if "plotly" in kinds else []),
        *([bundles.circuitsvis_script()] if "attention" in kinds else []),
        *([bundles.inline_script(_package_text("report.js"))] if kinds else []),
    ]
    page: str = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=text.shorten(text.clean(str(result.run.get("title", "A run"))), _LONGEST_TITLE),
            summary=_summary(result),
            facts=list(_facts(result.run)),
            result=result,
            cards=cards,
            policy=Markup(_policy(scripts)),
            style=Markup(_package_text("report.css")),
            scripts=[Markup(script) for script in scripts],
        )
    )
    return page


def write(result: Result, path: str | os.PathLike[str]) -> Path:
    """Writes the report of a result to `path`, whole or not at all, and returns the path.

    Args:
        result: what `mechmarkov.probe` returned.
        path: the file to write; an existing one is replaced, and its folder must exist.

    Raises:
        FileNotFoundError: when the folder does not exist.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is {target}, expected a file in a folder that exists")
    page = render(result).encode()
    with replacing(target) as temporary:
        temporary.write_bytes(page)
    return target


@cache
def environment() -> Environment:
    """Returns the templates' environment: autoescape on for every template, undefined names are errors."""
    templates = Environment(
        loader=PackageLoader("mechmarkov.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        clean=lambda value, limit=_LONGEST_TEXT: text.shorten(text.clean(str(value)), limit),
        value=text.format_value,
        null=text.format_null,
        standing=text.standing,
        bar=bar,
        range=lambda pair: text.format_range(*pair),
        words=text.words,
    )
    return templates


def _probe_card(number: int, name: str, outcome: Outcome) -> _ProbeCard:
    # A probe from anywhere may fail to draw; the report then says so in its card and is otherwise whole.
    try:
        figures = [
            _figure_card(f"figure-{number}-{i}", figure) for i, figure in enumerate(outcome.figures(), 1)
        ]
    except Exception as error:
        return _ProbeCard(name, outcome, [], f"{type(error).__name__}: {error}")
    return _ProbeCard(name, outcome, figures, "")


def _figure_card(name: str, figure: Figure) -> _FigureCard:
    data = figure_data(figure)
    note = ""
    if data["kind"] == "attention":
        note = f"The strongest colour is {text.format_number(data['strongest'])}."
        if len(data["tokens"]) < data["positions"]:
            note += f" The last {len(data['tokens'])} of {data['positions']} positions are shown."
    return _FigureCard(
        id=name,
        title=figure.title,
        caption=figure.caption,
        kind=figure.kind,
        heads=data.get("heads", []),
        note=note,
        json=Markup(script_json(data)),
    )


def _summary(result: Result) -> str:
    """Returns one sentence on what was probed: the model, its source, its objective and the steps."""
    run, steps = result.run, result.steps
    where = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
    part = {
        name: text.shorten(text.clean(str(value)), _LONGEST_TITLE) for name, value in run.items() if value
    }
    parts = [part.get("model", "A model")]
    if "source" in part:
        parts.append(f"trained on {part['source']}")
    if "objective" in part:
        parts.append(f"with {part['objective']}")
    sentence = ", ".join(parts) + (f"; probed at {where}." if steps else ".")
    return sentence[:1].upper() + sentence[1:]


def _facts(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what is known of the run as name and text; a group's members stand under their own names."""
    for name, value in run.items():
        if isinstance(value, Mapping):
            yield from ((key.replace("_", " "), fact) for key, fact in _facts(value))
        elif value is not None and name != "title":
            yield text.words(name), text.format_number(value) if isinstance(value, float) else str(value)


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(bundles.script_hash(script) for script in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _package_text(name: str) -> str:
    return (files("mechmarkov.report") / "templates" / name).read_text(encoding="utf-8")
