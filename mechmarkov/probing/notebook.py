"""How findings show themselves in a notebook: compact HTML without scripts."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mechmarkov.probing.names import LawName
from mechmarkov.probing.score import Score, format_null, format_value, standing
from mechmarkov.utils.text import clean, format_range, shorten, words

MAX_TEXT = 2000


def value_in_words(score: Score, digits: int = 4) -> str:
    """A score's value as text; a predictor's name in the words of the sentences.

    Example:
        >>> value_in_words(Score("in_context_bigram", "")), value_in_words(Score(0.25, "nats"))
        ('in-context bigram', '0.25')
    """
    text = format_value(score, digits)
    law = LawName.read(text)
    return law.words if law.in_context or law.number is not None else text


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
    """Verdicts, scores and their nulls as compact HTML: what a notebook shows of a `Result`.

    It holds no script and no stylesheet, so that it shows the same in Jupyter, in VS Code and in a notebook
    that is not trusted. Everything that came from the result is escaped.

    Args:
        title: The heading.
        outcomes: Probes' outcomes by name.
        skipped: Probes that do not apply, and why.
        failed: Probes that raised, and what.
        warnings: Sentences above all of it.
    """
    page = environment("mechmarkov.probing", "").get_template("fragment.html.j2")
    return page.render(title=title, outcomes=outcomes, skipped=skipped, failed=failed, warnings=warnings)


@cache
def environment(package: str, folder: str = "templates") -> Environment:
    """The jinja2 templates in a folder of a package: all with autoescape, undefined names are errors."""
    templates = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FILTERS)
    return templates
