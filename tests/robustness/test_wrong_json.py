"""JSON from outside with one value wrong, anywhere: a right answer or one line."""

import json
import math
import os
from copy import deepcopy

import anyio
import numpy as np
import pytest
import torch
from mcp.server.mcpserver.exceptions import ToolError

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.safe.json_file import read_json
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.tool_server import Commands

DROPPED = object()
VALUES = [
    None,
    True,
    -1,
    10**30,
    10**400,
    math.nan,
    "",
    "\x1b[31m\ud800",
    [],
    [[]],
    {},
    {"a": 1},
    "9" * 5000,
    DROPPED,
]
# Words of errors that Python and numpy raise where a value was not looked at.
UNLOOKED = ("object has no", "not subscriptable", "unhashable", "could not convert", "invalid literal")
UNLOOKED += (
    "not supported between", "inhomogeneous", "must be a string", "KeyError", "TypeError", "IndexError",
)  # fmt: skip


def places(data, path=()):
    """Every place in nested data: of a list its first and its last item."""
    yield path
    if isinstance(data, dict):
        for key in data:
            yield from places(data[key], (*path, key))
    elif isinstance(data, list):
        for number in sorted({0, len(data) - 1} & {*range(len(data))}):
            yield from places(data[number], (*path, number))


def changed(data, path, value):
    if not path:
        return None if value is DROPPED else value
    data = deepcopy(data)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is DROPPED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    mm.example("walk").save(folder / "walk.pt")
    main(["certify", str(folder / "walk.pt"), "--out", str(folder / "proof.json")])
    mm.probe(mm.example("walk"), ["behaviour"], sequences=16).save(folder / "runs" / "walk")
    main(["quiz", str(folder / "quiz"), "--models", "2"])
    main(["quiz", str(folder / "quiz"), "--by", "random"])
    return folder


READ = {
    "proof.json": ("verify", "proof.json", "walk.pt"),
    "runs/walk/summary.json": ("index", "runs"),
    "quiz/quiz.json": ("quiz", "quiz", "--by", "random"),
    "quiz/answers-random.json": ("quiz", "quiz", "--answers", "quiz/answers-random.json"),
}


@pytest.mark.parametrize("name", READ)
def test_a_wrong_value_is_one_line(name, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    right = (folder / name).read_text("utf-8")
    data = json.loads(right)
    where = [path for path in places(data) if path[:1] != ("claims",) or name == "proof.json"]
    for number, path in enumerate(where):
        value = VALUES[number % len(VALUES)]  # each is put into many places
        (folder / name).write_text(json.dumps(changed(data, path, value)), "utf-8")
        capsys.readouterr()
        try:
            main([*READ[name], "--json"])
            ended = 0
        except SystemExit as end:
            ended = end.code
        said = capsys.readouterr()
        assert ended in (0, 2), (path, value)
        if ended == 2:
            assert said.err.startswith("error: ")
            assert len(said.err.splitlines()) == 1, (path, value)
        told = said.err + "".join(json.loads(said.out).get("unread", {}).values() if ended == 0 else ())
        assert not [word for word in UNLOOKED if word in told], (path, value, told)
    (folder / name).write_text(right, "utf-8")


@pytest.mark.parametrize("name", READ)
def test_a_pipe_is_refused_at_once(name, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    right = (folder / name).read_bytes()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    try:
        with pytest.raises(SystemExit) as end:
            main(list(READ[name]))
    finally:
        (folder / name).unlink()
        (folder / name).write_bytes(right)
    assert end.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def made(folder, name):
    """A file of sequences that is none, by its name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / name
    if name == "bytes.parquet":
        pq.write_table(pa.table({"b": [b"a", b"b"] * 50}), file)
    elif name == "damaged.parquet":
        pq.write_table(pa.table({"s": [0, 1] * 50}), file)
        whole = bytearray(file.read_bytes())
        whole[-60:-20] = bytes(40)
        file.write_bytes(whole)
    else:
        np.save(file, np.full((5, 9), np.inf))
    return file


@pytest.mark.parametrize("name", ["bytes.parquet", "damaged.parquet", "infinite.npy"])
def test_a_file_of_no_states_is_one_line(name, tmp_path, capsys):
    torch.save({}, tmp_path / "m.pt")
    with pytest.raises(SystemExit) as end:
        main(["import", str(tmp_path / "m.pt"), "--source", str(made(tmp_path, name))])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert len(said.splitlines()) == 1
    assert name in said
    assert "expected" in said


def test_what_was_expected_is_said_of_a_long_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["probe", "--probes", "attention", "--sequences", "9" * 3000])
    said = capsys.readouterr().err
    assert len(said) < 1010
    assert "x<=100000" in said


def test_json_may_have_eight_megabytes(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("1" + " " * (8 * 1024 * 1024 - 1), "utf-8")
    assert read_json(path) == 1
    path.write_text("1" + " " * (8 * 1024 * 1024), "utf-8")
    with pytest.raises(RunFileError, match=r"x.json: has 8388609 bytes, expected at most 8388608$"):
        read_json(path)


@pytest.mark.parametrize("value", ['"\\ud800"', "1e999", "NaN"])
def test_claims_that_json_lacks_are_refused(tmp_path, value):
    (tmp_path / "summary.json").write_text(f'{{"claims": [{{"status": "shown", "x": {value}}}]}}', "utf-8")
    with pytest.raises(ToolError, match=r"summary\.json is not JSON: .*, expected a report of `probe`$"):
        anyio.run(Commands(tmp_path).claims, ".")
