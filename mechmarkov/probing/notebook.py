"""How findings show themselves in a notebook: compact HTML without scripts."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from mechmarkov.probing.preconditions import in_words
from mechmarkov.probing.score import Score, format_null, format_value, standing
from mechmarkov.utils.text import clean, format_range, shorten, words

MAX_TEXT = 2000


def value_in_words(score: Score, digits: int = 4) -> str:
    """A score's value; a predictor's name in the words of the sentences."""
    said = format_value(score, digits)
    return in_words(said) if said.startswith(("in_context_", "step_")) else said


# What every template of ours may apply to a value of a result.
FILTERS: dict[str, Callable[..., object]] = {
    "clean": lambda value, limit=MAX_TEXT: shorten(clean(str(value)), limit),
    "value": value_in_words,
    "null": format_null,
    "standing": standing,
    "range": lambda pair: format_range(*pair),
    "words": words,
}


def fragment(
    title: str,
    outcomes: Mapping[str, Any],
    skipped: Mapping[str, str] = {},
    failed: Mapping[str, str] = {},
    warnings: Sequence[str] = (),
) -> str:
    """Verdicts, scores and their nulls as compact HTML.

    It holds no script and no stylesheet, so that it shows the same in Jupyter, in VS Code and in a notebook
    that is not trusted. Everything that came from the result is escaped.
    """
    return _template().render(
        title=title, outcomes=outcomes, skipped=skipped, failed=failed, warnings=warnings
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(FILTERS)
    text = (files("mechmarkov.probing") / "fragment.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text)
