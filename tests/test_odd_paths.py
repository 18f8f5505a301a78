"""Paths that no one means: the name of a nobody, the end of a line, nothing, a file that cannot be read."""

import os

import pytest

import mechmarkov as mm
from mechmarkov.cli import main

COMMANDS = {
    "show": ["show", "PATH"],
    "probe": ["probe", "PATH"],
    "ablate": ["ablate", "PATH", "--parts", "L0H0"],
    "certify": ["certify", "PATH"],
    "tokens": ["tokens", "PATH", "--tokens", "0 1"],
    "import": ["import", "PATH", "--source", '{"kind": "binary", "p": 0.3, "q": 0.6}'],
    "bench": ["bench", "--verify", "PATH"],
    "index": ["index", "PATH"],
    "quiz": ["quiz", "PATH", "--by", "random"],
}


def refused(name, path, capsys):
    """The line of a command that is given a path."""
    with pytest.raises(SystemExit) as end:
        main([path if word == "PATH" else word for word in COMMANDS[name]])
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("path", "shown"), [("~nobody-at-all/run", "~nobody-at-all/run"), ("two\nlines", r"two\nlines")]
)
def test_a_path_is_named_in_whole(name, path, shown, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(name, path, capsys)
    assert line.startswith(f"error: {shown}")
    assert any(why in line for why in (": cannot be read: No such file", " is not a folder", " has no quiz"))
    assert list(tmp_path.iterdir()) == []


def test_no_path_is_not_the_current_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "empty, expected a path: the current folder is '.'" in refused("import", "", capsys)
    with pytest.raises(ValueError, match=r"^path is empty, expected a path"):
        mm.load("")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="a file that breaks off is one of Linux")
@pytest.mark.parametrize("name", ["show", "bench"])
def test_a_file_that_breaks_off_is_named(name, capsys):
    assert (
        refused(name, "/proc/self/mem", capsys) == "error: /proc/self/mem: cannot be read: Input/output error"
    )


def test_recipe_without_a_name_lists_them(capsys):
    main(["recipe"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-2]] == [*mm.recipes()]
    assert lines[0] == "recipes: mechmarkov recipe NAME"
    assert lines[-1] == "one of your own: mechmarkov recipe new --source chain > mine.toml"
