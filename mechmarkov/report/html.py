"""The report: one HTML file that opens anywhere, loads nothing and runs no script but its own."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mechmarkov.probing.figure import Figure
from mechmarkov.probing.notebook import FILTERS
from mechmarkov.probing.outcome import Findings
from mechmarkov.report import bundles
from mechmarkov.report.cards import FigureCard, figure_card, probe_card, shown_steps
from mechmarkov.report.circuit import circuit
from mechmarkov.report.headline import headline
from mechmarkov.report.payload import script_json
from mechmarkov.report.score_picture import score_picture
from mechmarkov.utils import text
from mechmarkov.utils.files import replacing

_MAX_TITLE = 200
_MAX_ROWS = 12  # of a formula
_CIRCUIT = (
    "To be read from the bottom up: tokens and positions, heads, the prediction. The number on a path, and "
    "its width, is the rise of the loss in nats when that path alone is cut (its sender set to its mean over "
    "the data, positions to zero). Paths worth less than 2 % of the largest are left out; where all are "
    "worth less than 0.01 nats they are thin and grey: there is no circuit. A part carries its share of the "
    "bigram, a head the lag that it attends to most (lag 1 is the parent of the predicted token)."
)


def render(result: Findings) -> str:
    """The report of a result as one HTML page that needs no network and admits no foreign script.

    What came from the result is escaped text, or JSON in a data block. A Content-Security-Policy names the
    page's own scripts by their hashes and forbids every connection, should escaping ever fail. Plotly.js
    (4.8 MB) and CircuitsVis (1.3 MB) are in the page once each, where a figure needs them.
    """
    numbered = enumerate(result.outcomes.items(), start=1)
    cards = [probe_card(number, name, outcome, result.steps) for number, (name, outcome) in numbered]
    drawn = circuit_figures(result)
    drawing = figure_card("figure-circuit", drawn[-1], drawn if len(drawn) > 1 else ()) if drawn else None
    figures = [figure for card in cards for figure in card.figures] + ([drawing] if drawing else [])
    moves = any(figure.moves for figure in figures)
    slider = [result.steps[i] for i in shown_steps(result.steps)] if moves else []
    return fill(
        "report.html.j2",
        figures,
        title=text.shorten(text.clean(str(result.run.get("title", "A run"))), _MAX_TITLE),
        summary=_summary(result),
        facts=list(_facts(result.run)),
        result=result,
        cards=cards,
        answers=headline(result),
        circuit=drawing,
        steps=slider,
    )


def fill(
    template: str, figures: Sequence[FigureCard], *, steps: Sequence[int] = (), **content: object
) -> str:
    """A template's page with its figures' data, the scripts that draw them and the policy.

    `steps` are the training steps of the page's slider; `content` is what else the template names.
    """
    kinds = {figure.kind for figure in figures}
    scripts = [
        *([bundles.plotly_script()] if "plotly" in kinds else []),
        *([bundles.circuitsvis_script()] if "attention" in kinds else []),
        *([bundles.inline_script(_package_text("report.js"))] if kinds else []),
    ]
    return (
        environment()
        .get_template(template)
        .render(
            figures=figures,
            slider=Markup(script_json(list(steps))),
            n_steps=len(steps),
            policy=Markup(_policy(scripts)),
            style=Markup(_package_text("report.css")),
            scripts=[Markup(script) for script in scripts],
            **content,
        )
    )


def write(result: Findings, path: str | os.PathLike[str]) -> Path:
    """Write the report of a result to a file, whole or not at all, and return the file's path.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    return write_page(lambda: render(result), path)


def write_page(render_page: Callable[[], str], path: str | os.PathLike[str]) -> Path:
    """Write a page to a file, whole or not at all; the folder is looked for before anything is rendered."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is {target}, expected a file in a folder that exists")
    page = render_page().encode()
    with replacing(target) as temporary:
        temporary.write_bytes(page)
    return target


@cache
def environment() -> Environment:
    """The templates' environment: autoescape on for every template, undefined names are errors."""
    templates = Environment(
        loader=PackageLoader("mechmarkov.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        FILTERS,
        picture=score_picture,
        rows=lambda formula: [row for row in str(formula).splitlines() if row.strip()][:_MAX_ROWS],
    )
    return templates


def circuit_figures(result: Findings) -> list[Figure]:
    """The circuit at each step that the slider offers, or at the only one; none without `ablation`."""
    if "path_effect" not in getattr(result.outcomes.get("ablation"), "data", ()):
        return []
    axis = result.outcomes["ablation"].data["path_effect"].sizes
    last = len(result.steps) - 1
    shown = shown_steps(result.steps) if axis.get("step") == len(result.steps) else []
    pictures = [circuit(result, -1 if i == last else i) for i in shown or [last]]
    return [Figure("The circuit", _CIRCUIT, "plotly", picture) for picture in pictures]


def _summary(result: Findings) -> str:
    """One sentence on what was probed: the model, its source, its objective and the steps."""
    run, steps = result.run, result.steps
    where = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
    words = [
        f"{before}{text.shorten(text.clean(str(value)), _MAX_TITLE)}"
        for name, before in (("model", ""), ("source", "trained on "), ("objective", "with "))
        if (value := run.get(name) or ("A model" if name == "model" else None))
    ]
    sentence = ", ".join(words) + (f"; probed at {where}." if steps else ".")
    return sentence[:1].upper() + sentence[1:]


def _facts(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is known of the run, name and text; a group's members stand under their own names."""
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
