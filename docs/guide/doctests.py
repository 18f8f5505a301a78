"""Doctests of docstrings as code blocks: mkdocstrings knows them only under the heading `Examples:`."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts a fence around every doctest."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        del kwargs
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""The text with its doctests in fences, at their indentation.

    >>> fenced("Add.\n\n>>> 1 + 1\n2\n\nNo more.").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'No more.']
    """
    return EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)
