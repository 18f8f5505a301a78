"""Results on one page, aligned probe by probe: verdicts, scores in columns, figures side by side."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mechmarkov.probing.figure import Figure
from mechmarkov.probing.outcome import Findings
from mechmarkov.probing.probe import Probe
from mechmarkov.probing.score import Score
from mechmarkov.report.cards import FigureCard, figure_card
from mechmarkov.report.first_screen.circuit import circuit_figures
from mechmarkov.report.first_screen.curve import overlaid_curves
from mechmarkov.report.first_screen.headline import Headline, headline
from mechmarkov.report.html import fill, summary, write_page
from mechmarkov.report.scales import share_scales
from mechmarkov.report.shares import RunShare, counted_run, shares_of, told_shares
from mechmarkov.report.words.differences import differences, settings
from mechmarkov.report.words.tiles import WordedTile
from mechmarkov.utils.errors import path_of
from mechmarkov.utils.text import error_line, shown

MAX_DRAWN_RUNS = 4  # runs side by side; of more, the page has only the scores


@dataclass(frozen=True)
class _Card:
    """A probe as the template wants it: `rows` hold the figures of one key, a run each."""

    name: str
    probe: Probe
    verdicts: list[tuple[str, str]]
    scores: list[tuple[str, list[Score | None]]]
    rows: list["_Row"]
    problems: list[str]


@dataclass(frozen=True)
class _Row:
    """Figures of one key, a run each: their heading and caption are said once where they are the same."""

    title: str
    caption: str
    figures: list[FigureCard]


def write_comparison(results: Mapping[str, Findings], path: str | os.PathLike[str]) -> Path:
    """Write results side by side to one HTML file, by the names they have there, and return its path.

    Learning curves are overlaid. Figures of one key share their scales and their caption. Of more than four
    runs there are no figures, only scores.

    Raises:
        TypeError: Results without names, or something else than results.
        ValueError: Fewer than two results.
        FileNotFoundError: The folder does not exist.
    """
    if not isinstance(results, Mapping):
        raise TypeError(f"results are a {type(results).__name__}, expected a mapping: {{'name': result, …}}")
    for name, result in results.items():
        if not isinstance(name, str):
            raise TypeError(f"results has the name {shown(name)}, expected a text")
        if not hasattr(result, "outcomes"):
            kind = type(result).__name__
            raise TypeError(f"results[{name!r}] is a {kind}, expected what mm.probe returns")
    if len(results) < 2:
        raise ValueError(f"results hold {len(results)}, expected two or more to put side by side")
    return write_page(lambda: render(results), path_of("path", path))


def render(results: Mapping[str, Findings]) -> str:
    """The page of `write_comparison`."""
    drawn = len(results) <= MAX_DRAWN_RUNS
    names = dict.fromkeys(name for result in results.values() for name in result.outcomes)
    cards = [_card(number, name, results, drawn) for number, name in enumerate(names, 1)]
    screens = {name: headline(result) for name, result in results.items()}
    runs = [(name, screens[name], _what(result)) for name, result in results.items()]
    rows = [_row("figure-circuit", list(circuit_figures(results).items()))] if drawn else []
    overlaid = overlaid_curves(results) if drawn else None
    curves = [figure_card("figure-curves", overlaid)] if overlaid else []
    figures = [*curves, *(figure for row in rows for figure in row.figures)]
    return fill(
        "compare.html.j2",
        [*figures, *(figure for card in cards for row in card.rows for figure in row.figures)],
        curves=curves,
        rows=rows,
        title=f"{len(results)} runs side by side",
        conclusion=differences(
            {name: screen.badge for name, screen in screens.items()},
            {name: result.claims for name, result in results.items()},
            {name: screen.named for name, screen in screens.items()},
        )
        + settings({name: result.metadata for name, result in results.items()}),
        runs=runs,
        shares=told_shares(shares_of_results(results)),
        questions=_questions(screens),
        cards=cards,
        usual_null="",
        without_figures=not drawn,
        most_drawn=MAX_DRAWN_RUNS,
    )


def shares_of_results(results: Mapping[str, Findings]) -> list[RunShare]:
    """Returns which share of runs that differ in their seed only has a badge, or formed something."""
    return shares_of([counted_run(result, headline(result).badge, name) for name, result in results.items()])


def _what(result: Findings) -> str:
    """Returns what was probed: the run and its seed, and at which steps."""
    seed = result.metadata.get("seed")
    last = ", scores at the last" * (len(result.steps) > 1)
    return " · ".join([summary(result) + last, *[f"seed {seed}"] * (seed is not None)])


def _questions(screens: Mapping[str, Headline]) -> list[tuple[str, list[tuple[str, WordedTile]]]]:
    answers: dict[str, list[tuple[str, WordedTile]]] = {}
    for name, screen in screens.items():
        for tile in screen.tiles:
            answers.setdefault(tile.question, []).append((name, tile))
    return list(answers.items())


def _card(number: int, probe: str, results: Mapping[str, Findings], drawn: bool) -> _Card:
    asked = {name: result.outcomes.get(probe) for name, result in results.items()}
    first = next(outcome.probe for outcome in asked.values() if outcome is not None)
    verdicts = [(name, o.verdict if o else _why(results[name], probe)) for name, o in asked.items()]
    scores = dict.fromkeys(name for outcome in asked.values() if outcome for name in outcome.scores)
    table = [(name, [None if o is None else o.scores.get(name) for o in asked.values()]) for name in scores]
    by_key: dict[str, list[tuple[str, Figure]]] = {}
    problems = []
    for name, outcome in asked.items() if drawn else ():
        try:
            for figure in [] if outcome is None else outcome.figures():
                by_key.setdefault(figure.key, []).append((name, figure))
        except Exception as error:  # a probe from anywhere may fail to draw; the page is otherwise whole
            problems.append(f"The figures of {name} could not be made: {error_line(error)}")
    rows = [_row(f"figure-{number}-{i}", figures) for i, figures in enumerate(by_key.values(), 1)]
    return _Card(probe, first, verdicts, table, rows, problems)


def _why(result: Findings, probe: str) -> str:
    if probe in result.failed:
        return f"failed: {result.failed[probe]}"
    return f"does not apply: {result.skipped[probe]}" if probe in result.skipped else "was not found"


def _row(name: str, figures: list[tuple[str, Figure]]) -> _Row:
    share_scales([figure.content for _, figure in figures])
    titles, captions = ({getattr(f, part) for _, f in figures} for part in ("title", "caption"))
    title = titles.pop() if len(titles) == 1 else ""
    caption = captions.pop() if len(captions) == 1 else ""
    cards = [
        figure_card(
            f"{name}-{i}",
            replace(
                figure,
                title=run if title else f"{run}: {figure.title}",
                caption="" if caption else figure.caption,
            ),
        )
        for i, (run, figure) in enumerate(figures, 1)
    ]
    rest = {card.caption for card in cards}  # the scale of attention, which every card says
    if title and len(cards) > 1 and len(rest) == 1:
        caption = f"{caption} {rest.pop()}".strip()
        cards = [replace(card, caption="") for card in cards]
    return _Row(title, caption, cards)
