"""What the tests of runs share: a process that reads files with little memory."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOREIGN = Path(__file__).parent / "golden" / "foreign"
READER = Path(__file__).parent / "limited_reader.py"


@pytest.fixture
def make_bridge(monkeypatch):
    """The script that wrote the golden files of bridges, for those it makes."""
    monkeypatch.syspath_prepend(FOREIGN)
    return importlib.import_module("make_bridge")


@pytest.fixture(scope="session")
def limited_process():
    command = [sys.executable, "-X", "faulthandler", str(READER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def limited_refusal(limited_process):
    """The message with which `file` (`safe.file.read`) or `run` (`load`) refuses, in so many bytes more."""

    def refusal(reader: str, path: Path, extra_bytes: int) -> str:
        print(json.dumps([reader, str(path), extra_bytes]), file=limited_process.stdin, flush=True)
        answer = limited_process.stdout.readline()
        assert answer, "the reader is dead: its fault is on stderr"
        message = json.loads(answer)
        assert message is not None, "it was read"
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        return message.removeprefix(f"{path}: ")

    return refusal
