"""The page "Bring your own": what its rows say to write is there."""

import inspect
import re
from functools import reduce
from pathlib import Path

import pytest

import mechmarkov as mm
from mechmarkov.cli import import_

PAGE = Path(__file__).parents[1] / "docs" / "bring-your-own.md"
SPANS = re.findall(r"`([^`]+)`", PAGE.read_text())
CALLS = re.findall(r"mm\.([\w.]+)\(([^()]*)", "\n".join(SPANS))


def test_every_name_of_the_library_is_there():
    missing = []
    for name, _ in CALLS:
        try:
            reduce(getattr, name.split("."), mm)
        except AttributeError:
            missing.append(name)
    assert len(CALLS) > 15
    assert sorted(set(missing) - {name for name in missing if name.startswith("HiddenMarkov.from_")}) == []


def test_every_way_to_make_a_hidden_markov_model_is_there():
    names = {name for name, _ in CALLS if name.startswith("HiddenMarkov.")}
    assert {name for name in names if not hasattr(mm.HiddenMarkov, name.split(".")[1])} == set()


def unknown(calls: list[tuple[str, str]]) -> set[str]:
    """Arguments that the functions do not take by these names."""
    found = set()
    for name, arguments in calls:
        taken = inspect.signature(reduce(getattr, name.split("."), mm)).parameters
        found |= {f"{name}({x}=)" for x in re.findall(r"(\w+)=", arguments) if x not in taken}
    return found


def test_every_argument_of_a_model_or_a_loop_is_taken():
    calls = [call for call in CALLS if call[0] in ("Run.from_model", "Recorder")]
    assert len(calls) >= 4
    assert unknown(calls) == set()


def test_every_argument_of_sequences_is_taken():
    calls = [call for call in CALLS if call[0].startswith("Observed")]
    assert len(calls) >= 4
    options = inspect.signature(mm.Observed).parameters
    assert {x for x in unknown(calls) if re.findall(r"\((\w+)=", x)[0] not in options} == set()


@pytest.mark.parametrize("option", ["names", pytest.param("weights"), "tokens", "bos", "set", "source"])
def test_every_option_of_the_command_line_is_there(option):
    known = {name for parameter in import_.params for name in parameter.opts}
    assert f"--{option}" in {word for span in SPANS for word in span.split()}
    assert f"--{option}" in known
