"""AGENTS.md names every command, every error type and the keys of the JSON that is printed."""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import mechmarkov
from mechmarkov.cli import cli, main

PAGE = (Path(__file__).parents[1] / "AGENTS.md").read_text("utf-8")


def error_types():
    """Every public exception and warning of the library."""
    found = set()
    for module in walk_packages(mechmarkov.__path__, "mechmarkov."):
        if not module.name.rpartition(".")[2].startswith(("__main__", "gpu_")):  # these need Triton
            names = vars(import_module(module.name)).values()
            found |= {one for one in names if isinstance(one, type) and issubclass(one, Exception)}
    own = {one.__name__ for one in found if one.__module__.startswith("mechmarkov")}
    return {name for name in own if not name.startswith("_")}


def test_every_error_type_has_its_row():
    table = PAGE[PAGE.index("## Errors") : PAGE.index("## What not")]
    assert set(re.findall(r"`(\w+(?:Error|Warning))`", table)) == error_types()


def test_every_command_is_named():
    assert not [name for name in cli.commands if not re.search(rf"\b{name}\b", PAGE)]


def test_every_command_but_the_server_prints_json():
    of_recipes = [
        cli.commands["recipe"].get_command(None, name) for name in ("new", "fields", "schema", "walk-k6-half")
    ]
    assert all("as_json" in {p.name for p in command.params} for command in of_recipes)
    without = {
        name for name, command in cli.commands.items() if "as_json" not in {p.name for p in command.params}
    }
    assert without == {"mcp"}  # a server that speaks JSON by itself


@pytest.mark.system
def test_its_commands_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    block = PAGE[PAGE.index("```sh\n") + 6 :].partition("```")[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) == 6
    for words in commands:
        assert words[0] == "mechmarkov"
        main(words[1:])
        assert json.loads(capsys.readouterr().out), words


def test_it_is_short():
    assert len(PAGE.splitlines()) <= 60


COMMANDS = {  # and the keys of what each prints that the page names
    "probe --example walk --probes behaviour --out r": ("schema", "run", "probes", "claims", "skipped"),
    "ablate walk.pt --parts L0H0": ("loss", "rise", "interval", "unit"),
    "tokens walk.pt --tokens @": ("tokens", "law", "positions", "lens", "attention", "patch", "page"),
    "certify walk.pt": ("program", "tier", "worst_kl", "seen", "proof"),
    "show walk.pt": (),
    "list": (),
    "recipe mess3": ("recipe",),
    "recipe new --source chain": ("recipe",),
    "recipe": (),
    "recipe fields": (),
    "recipe schema": (),
    "probes": (),
    "train walk-k6-half --set steps=1 --set data.n_train=8 --out t": ("runs",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_one_json_object(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mechmarkov.example("walk").save("walk.pt")
    words = [" ".join("012345" * 16) if word == "@" else word for word in command.split()]
    main([*words, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data
    for key in COMMANDS[command]:
        assert key in data
        assert f'"{key}"' in PAGE
