"""The tables of questions in `docs/api`: what they call is there, and takes what they give it."""

import ast
import inspect
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

import mechmarkov as mm

PAGES = sorted((Path(__file__).parents[1] / "docs" / "api").glob("*.md"))
ROW = re.compile(r"^\| [^|]+\? \| (?P<call>.+) \|$", re.MULTILINE)


@cache
def objects():
    """What the tables call by a short name."""
    run = mm.example("walk")
    result = mm.probe(run, ["attention"], sequences=8)
    short = {"mm": mm, "run": run, "result": result, "model": run.model(), "range": range}
    return short | {"HookedDecoder": mm.HookedDecoder, "tokens": torch.zeros(1, 2)}


SOURCES = [
    mm.Circle(n_states=6, p=0.5),
    mm.HiddenMarkov(transitions=[[0, 1], [1, 0]], emissions=[[1, 0], [0, 1]]),
]


def meant(node, page):
    """What a name, or an attribute of one, is; None of what a call with arguments returns."""
    match node:
        case ast.Attribute(value=ast.Name(id="source"), attr=name):
            return next(getattr(source, name) for source in SOURCES if hasattr(source, name))
        case ast.Attribute(value=value, attr=name):
            owner = meant(value, page)
            return None if owner is None else getattr(owner, name)
        case ast.Subscript(value=value, slice=ast.Constant(value=key)):
            return meant(value, page)[key]
        case ast.Call(args=[], keywords=[], func=function):
            return meant(function, page)()
        case ast.Name(id=name) if name in objects():
            return objects()[name]
        case ast.Name(id=name):  # a public thing that the page documents
            documented = [resolve_name(dotted) for dotted in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
            (one,) = {
                thing if thing.__name__ == name else getattr(thing, name, None) for thing in documented
            } - {None}
            return one
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_questions_are_answered_by_what_exists(path):
    page = path.read_text("utf-8")
    rows = [row["call"] for row in ROW.finditer(page)]
    assert rows
    for code in (code for call in rows for code in re.findall(r"`([^`]+)`", call)):
        if path.stem == "theory":
            assert find_spec(f"mechmarkov.theory.{code}"), code
        elif "(" not in code and not code.startswith(("source.", "result")):
            continue  # a command, or the type of what is returned
        else:
            for node in ast.walk(ast.parse(code.replace("…", "..."))):
                if isinstance(node, ast.Call) and (function := meant(node.func, page)) and node.keywords:
                    words = {word.arg: None for word in node.keywords if word.arg}
                    inspect.signature(function).bind_partial(**words)
                elif isinstance(node, ast.Attribute):
                    meant(node, page)
