"""What commands, objects and refusals say to do next."""

import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import mechmarkov as mm
from mechmarkov.cli import cli, main


@pytest.mark.parametrize("words", [[], ["recipe"]])
def test_help_has_whole_sentences(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(cli, [*words, "--help"]).output
    commands = shown[shown.index("Commands:") :]
    assert "..." not in commands
    if not words:
        assert re.findall(r"^  (\w+) ", commands, re.MULTILINE)[:3] == ["recipe", "train", "probe"]
        assert "mechmarkov recipe new --source chain > mine.toml" in commands


def test_train_ends_with_the_next_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["train", "walk-k6-half", "--set", "steps=1", "--set", "data.n_train=8", "--out", "of mine"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["of mine/run.pt", "  mechmarkov probe 'of mine' --steps all"]


def test_a_final_loss_has_its_limit_next_to_it(tmp_path, capsys):
    changes = ["--set", "steps=1", "--set", "data.batch=2", "--set", "model.n_ctx=8"]
    main(["train", "binary-p05-q08-tied", *changes, "--out", str(tmp_path / "a")])
    rate = mm.Binary(p=0.5, q=0.8).entropy_rate
    assert re.search(rf"^loss \S+ at step 0, entropy rate {rate:.4g}$", capsys.readouterr().out, re.MULTILINE)
    main(
        ["train", "walk-k6-half", "--set", "steps=1", "--set", "data.n_train=8", "--out", str(tmp_path / "b")]
    )
    assert "entropy rate" not in capsys.readouterr().out  # a loss of another scale


def test_digits_in_one_word_are_explained(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["tokens", "--example", "induction", "--tokens", "0120"])
    said = "error: --tokens is '0120', which is not a state, expected states with spaces between: '0 1 2'\n"
    assert capsys.readouterr().err == said
    assert list(tmp_path.iterdir()) == []


def test_one_sequence_is_told_its_call():
    with pytest.raises(ValueError, match=r"tokens=\[sequence\], or mm\.tokens\(run, sequence\)$"):
        mm.probe(mm.example("induction"), ["behaviour"], tokens=[0, 1, 2])


def test_a_sequence_shows_itself_in_a_notebook():
    shown = mm.tokens(mm.example("induction"), [0, 1, 2, 0])._repr_html_()
    assert "<td>1: 0.500, 0: 0.250, 2: 0.250</td>" in shown  # two counts and one for each
    assert shown.count("<tr") == 5  # a heading, and each position


def test_a_missing_word_shows_the_usage(capsys):
    with pytest.raises(SystemExit):
        main(["quiz"])
    said = "error: Missing argument 'FOLDER'. Usage: mechmarkov quiz [OPTIONS] FOLDER\n"
    assert capsys.readouterr().err == said


@pytest.mark.system
def test_a_quiz_leads_from_call_to_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["quiz", "quiz", "--models", "1"]
    for _ in range(2):
        main(words)
        *_, last = capsys.readouterr().out.splitlines()
        assert last.startswith("  mechmarkov quiz quiz ")
        words = last.split()[1:]
    main(words)
    assert "right wrong overclaimed" in capsys.readouterr().out


@pytest.mark.system
def test_an_interrupted_training_says_how_to_go_on(tmp_path):
    words = [
        "train",
        "binary-p05-q08-tied",
        "--set",
        "model.n_ctx=8",
        "--set",
        "steps=200000",
        "--out",
        "run",
    ]
    called = [sys.executable, "-m", "mechmarkov", *words]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins without one
    process = subprocess.Popen(called, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    signal.signal(signal.SIGINT, before)
    while process.poll() is None and not [*tmp_path.glob("run/*")]:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told = [line for line in process.communicate()[1].splitlines() if line]
    assert (process.returncode, told[-2:]) == (
        130,
        ["The same command goes on where this one stopped.", "interrupted"],
    )
