"""Every command that takes a run takes a bundled one by its name, without a file."""

import json

import pytest

import mechmarkov as mm
from mechmarkov.cli import main

COMMANDS = {
    "show": [],
    "ablate": ["--parts", "L0H0", "--sequences", "16"],
    "tokens": ["--tokens", "0 1 2"],
    "certify": [],
    "verify": ["proof.json"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_needs_one_run(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, told in (
        ([], "RUN is missing: a run.pt file, or --example NAME"),
        (["run.pt", "--example", "walk"], "RUN and --example exclude each other"),
        (["--example", "walks"], "no bundled run is called 'walks'; there are walk, trap, induction"),
        (["walk"], "walk: cannot be read: No such file or directory: --example walk is bundled"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([command, *COMMANDS[command], *words])
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith(f"error: {told}")
    assert list(tmp_path.iterdir()) == []


def test_bundled_runs_are_shown_and_ablated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mm.example("trap").save("run.pt")
    for command in ("show", "ablate"):
        main([command, "run.pt", *COMMANDS[command], "--json"])
        main([command, "--example", "trap", *COMMANDS[command], "--json"])
        of_file, bundled = capsys.readouterr().out.splitlines()
        assert json.loads(of_file) == json.loads(bundled)


def test_a_bundled_certificate_names_its_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["certify", "--example", "trap"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "proof.json  (mechmarkov verify proof.json --example trap)"
    main(["verify", "proof.json", "--example", "trap"])
    assert capsys.readouterr().out.startswith("proof.json holds: ")
