"""The one line that an import ends with, and arguments that its tests share."""

import json
from pathlib import Path

import pytest

from mechmarkov.cli import main


def data(kind: str, **fields: object) -> str:
    """A source as `--source` takes it."""
    return json.dumps({"kind": kind, **fields})


SOURCE = data("circle", n_states=5, p=0.3)


GELU = ["--set", "act_fn=gelu"]


def refused(capsys, out: Path, *arguments: object, source: str = SOURCE) -> str:
    """The one line that an import ends with."""
    with pytest.raises(SystemExit) as exit_:
        main(["import", *map(str, arguments), "--source", source, "--out", str(out / "run.pt")])
    printed = capsys.readouterr()
    assert (exit_.value.code, printed.out) == (2, "")
    assert not list(out.glob("*run.pt*"))
    (line,) = printed.err.splitlines()
    assert len(line) < 1000
    return line
