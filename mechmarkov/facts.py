"""A few facts as compact HTML: how a run, a source and a recipe show themselves in a notebook."""

import html
from collections.abc import Mapping


def facts(title: str, rows: Mapping[str, object]) -> str:
    """A title and a table of two columns, without scripts or styles; everything in it is escaped text.

    >>> facts("a < b", {})
    '<strong>a &lt; b</strong><table></table>'
    """
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<strong>{html.escape(title)}</strong><table>{cells}</table>"
