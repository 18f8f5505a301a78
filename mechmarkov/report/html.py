"""The report: one HTML file that opens anywhere, loads nothing and runs no script but its own."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from mechmarkov.catalogue.probes import registered
from mechmarkov.probing import notebook
from mechmarkov.probing.outcome import Findings
from mechmarkov.probing.score import format_null
from mechmarkov.report import bundles
from mechmarkov.report.cards import FigureCard, ProbeCard, probe_figures
from mechmarkov.report.first_screen.headline import Headline
from mechmarkov.report.first_screen.screen import FirstScreen, first_screen
from mechmarkov.report.first_screen.verdict import MEANS
from mechmarkov.report.glossary import explanation
from mechmarkov.report.own_tokens import panel
from mechmarkov.report.payload import script_json
from mechmarkov.report.score_picture import DIGITS, rounded, score_picture
from mechmarkov.report.words.sentences import rest
from mechmarkov.report.words.tiles import WordedTile
from mechmarkov.utils import text
from mechmarkov.utils.files import replacing

FIRST = None  # the first screen among the parts of a page; the others have the names of probes, any text
NO_FACTS = ("title", "fingerprints")  # the heading has the one, and programs read the other
Parts = dict[str | None, Callable[[], Any]]
_OPTION = "--steps all"  # the one that sentences advise: a text of a file with dashes makes no tag
_MAX_TITLE = 200
_MAX_ROWS = 12  # of a formula


def render(result: Findings) -> str:
    """The report of a result as one HTML page that needs no network and admits no foreign script.

    What came from the result is escaped text, or JSON in a data block. A Content-Security-Policy names the
    page's own scripts by their hashes and forbids every connection, should escaping ever fail. Plotly.js and
    CircuitsVis are in the page once each, packed to 2 MB, where a figure needs them.
    """
    return page(result, {name: make() for name, make in parts(result).items()})


def parts(result: Findings) -> Parts:
    """Returns what makes each part of a page, in any order: the first screen, and each probe's figures."""
    numbered = enumerate(result.outcomes.items(), start=1)
    made: Parts = {FIRST: partial(first_screen, result)}
    return made | {name: partial(probe_figures, i, one, result.steps) for i, (name, one) in numbered}


def page(result: Findings, made: Mapping[str | None, Any]) -> str:
    """The report of a result, of what its `parts` made."""
    first: FirstScreen = made[FIRST]
    cards = [ProbeCard(name, outcome, *made[name]) for name, outcome in result.outcomes.items()]
    own = None if result.sequence is None else panel(result.sequence, moving=False)
    of_probes = chain.from_iterable(card.figures for card in cards)
    of_heads = chain.from_iterable(panel.cards for panel in first.panels)
    figures = [*first.hero, *([] if own is None else own.figures), *of_probes, *of_heads]
    named = str(result.metadata.get("name") or "")
    screens = first.headlines
    moves = len(result.steps) > 1 and any(figure.moves for figure in figures)
    scores = [score for outcome in result.outcomes.values() for score in outcome.scores.values()]
    nulls = [score.null_kind for score in scores if score.null is not None and score.null_kind]
    return fill(
        "report.html.j2",
        figures,
        title=text.shorten(text.clean(": ".join(filter(None, [named, screens[-1].title]))), _MAX_TITLE),
        summary=summary(result),
        facts=list(_facts(result.metadata)),
        result=result,
        cards=cards,
        screens=screens,
        tiles=_tiles(screens),
        hero=first.hero,
        no_circuit=result.skipped.get("ablation", ""),
        named=(screens[-1].named or ("",))[-1],
        panels=first.panels,
        own=own,
        command=_command(result),
        usual_null=max(nulls, key=nulls.count, default=""),  # which is said once
        steps=result.steps if moves else [],
    )


def fill(
    template: str,
    figures: Sequence[FigureCard],
    *,
    steps: Sequence[int] = (),
    scripts: Sequence[str] = (),
    **content: object,
) -> str:
    """A template's page with its figures' data, the scripts that draw them and the policy.

    `steps` are the training steps of the page's slider, `scripts` files next to the templates that it runs
    too; `content` is what else the template names.
    """
    kinds = {figure.kind for figure in figures}
    drawing = {"plotly": bundles.plotly_script, "attention": bundles.circuitsvis_script}
    libraries = [library() for kind, library in drawing.items() if kind in kinds]
    ours = [bundles.inline_script(_package_text("report.js"))] if kinds or len(steps) > 1 else []
    ours += [bundles.inline_script(_package_text(name)) for name in scripts]
    page = environment().get_template(template)
    return page.render(
        figures=figures,
        slider=Markup(script_json(list(steps))),
        n_steps=len(steps),
        policy=Markup(_policy([*libraries, *ours])),
        style=Markup(_package_text("report.css")),
        libraries=[Markup(bundles.packed(script)) for script in libraries],
        scripts=[Markup(script) for script in ours],
        **content,
    )


def write(result: Findings, path: str | os.PathLike[str]) -> Path:
    """Write the report of a result to a file, whole or not at all, and return the file's path.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    return write_page(lambda: render(result), path)


def write_page(render_page: Callable[[], str], path: str | os.PathLike[str]) -> Path:
    """Write a page to a file, whole or not at all; the folder is looked for before anything is rendered.

    Raises:
        FileNotFoundError: The folder does not exist.
        IsADirectoryError: The path is a folder.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"path is {target}, a folder, expected a file: {target / 'report.html'}")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path is {target}, expected a file in a folder that exists")
    page = render_page().encode()
    with replacing(target) as temporary:
        temporary.write_bytes(page)
    return target


@cache
def environment() -> Environment:
    """The report's templates, with what they may apply to scores, figures and texts."""
    templates = notebook.environment("mechmarkov.report")
    templates.globals["explain"] = explanation
    templates.filters.update(
        picture=score_picture,
        rounded=rounded,
        value=partial(notebook.value_in_words, digits=DIGITS),
        null=partial(format_null, digits=DIGITS),
        range=lambda pair: text.format_range(pair[0], pair[1], DIGITS),
        rest=rest,
        unbroken=unbroken,
        meaning=MEANS.get,
        rows=lambda formula: [row for row in str(formula).splitlines() if row.strip()][:_MAX_ROWS],
    )
    return templates


def unbroken(sentence: str) -> Markup:
    """A sentence in which no line ends inside the option that it advises.

    >>> unbroken("More by --steps all.")
    Markup('More by <span class="option">--steps all</span>.')
    """
    return Markup(str(escape(sentence)).replace(_OPTION, f'<span class="option">{_OPTION}</span>'))


def summary(result: Findings) -> str:
    """Returns what was probed, in one line: the model, its source, its objective and the steps."""
    run, steps = result.metadata, result.steps
    where = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"
    if dict(run.get("provenance") or {}).get("step") == "unknown":
        where = "an unknown step"
    known = [run.get(name) for name in ("name", "source", "model", "objective")]
    words = [text.shorten(text.clean(str(value)), _MAX_TITLE) for value in known if value]
    return " · ".join([*words, f"probed at {where}"] if steps else words)


def _tiles(screens: Sequence[Headline]) -> list[tuple[str, list[tuple[int, WordedTile | None]]]]:
    """The last step's questions, each with its tile at every step."""
    by_question = [{tile.question: tile for tile in screen.tiles} for screen in screens]
    return [
        (question, [(at, tiles.get(question)) for at, tiles in enumerate(by_question)])
        for question in by_question[-1]
    ]


def _command(result: Findings) -> str:
    """The command that makes this page again; run.pt stands for a run whose file is not known."""
    evaluation, steps = result.metadata.get("evaluation", {}), ",".join(map(str, result.steps))
    words = ["mechmarkov probe", str(result.metadata.get("file", "run.pt"))]
    named = [*result.outcomes, *result.failed] or [*result.skipped]
    # A name asks for a probe that otherwise runs only on request, and was skipped.
    on_request = any(outcome.probe.on_request for outcome in result.outcomes.values())
    if on_request or {*named, *result.skipped} != {*registered()}:
        words.append(f"--probes {','.join(named)}")
    words.append(f"--steps {steps}")
    options = {"--sequences": evaluation.get("sequences"), "--seed": evaluation.get("their seed")}
    words += [f"{name} {value}" for name, value in options.items() if isinstance(value, int)]
    return " ".join(words)


def _facts(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields what is known of the run, name and text; a group's members stand under their own names."""
    for name, value in run.items():
        if name in NO_FACTS:
            continue
        if isinstance(value, Mapping):
            yield from ((key.replace("_", " "), fact) for key, fact in _facts(value))
        elif value is not None:
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
