"""What stands where a command would write is kept, and what is wrong is said before the work."""

import re

import pytest
import torch

import mechmarkov as mm
from mechmarkov import quiz
from mechmarkov.cli import main
from mechmarkov.quiz.sheet import check_place

RUN = mm.example("walk")


def said(arguments, capsys):
    """The line of a command that is refused."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("name", ["run.pt", "mine.toml", "other.json"])
def test_a_proof_replaces_no_other_file(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RUN.save("run.pt")
    (tmp_path / "mine.toml").write_text("name = 'mine'", "utf-8")
    (tmp_path / "other.json").write_text('{"format": "mine"}', "utf-8")
    before = (tmp_path / name).read_bytes()
    line = said(["certify", "run.pt", "--program", "parent", "--out", name], capsys)
    assert line == f"error: {name}: exists and is not a proof, expected a new file or a proof to replace"
    assert (tmp_path / name).read_bytes() == before


def test_a_proof_replaces_proofs_and_empty_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RUN.save("run.pt")
    (tmp_path / "proof.json").touch()
    for _ in range(2):
        main(["certify", "run.pt", "--program", "parent", "--out", "proof.json"])
    main(["verify", "proof.json", "run.pt"])


def test_another_quiz_is_refused_before_models(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "quiz"
    main(["quiz", str(folder), "--models", "1"])
    check_place(folder, "public", 1)
    monkeypatch.setattr(quiz, "hidden_models", lambda *_: pytest.fail("models were made"))
    for options in (["--models", "1", "--key", "mine"], ["--models", "2"]):
        line = said(["quiz", str(folder), *options], capsys)
        assert re.match("error: .* holds the quiz of another key or of more or fewer models: choose", line)


LINES = {
    "a key that is no text": (
        ["quiz", "q", "--key", "\udcff"],
        r"key is '\\udcff', expected a text of 1 to 200",
    ),
    "a state of 5000 digits": (
        ["tokens", "run.pt", "--tokens", "0" * 5000],
        "expected states: 0, 1, 2, 3, 4, 5$",
    ),
    "a position of 40 digits": (
        ["ablate", "run.pt", "--parts", "L0H0", "--positions", "9" * 40],
        "positions is .*, expected -97 to 96 for 97 tokens$",
    ),
    "too few seconds": (["certify", "run.pt", "--seconds", "1e-300"], "expected seconds from 1e-12 to 1e8$"),
    "too many seeds": (
        ["sweep", "sweep.toml"],
        r"seeds is 10000001, expected how many, or a list of .*, at most \d+$",
    ),
    "matrices that overflow": (
        ["train", "recipe.toml"],
        r"entry of size 1e\+308, expected numbers up to 1e\+100$",
    ),
    "two columns of a name": (
        ["import", "x.pt", "--source", "same.csv"],
        "same.csv: the table has several columns called a, expected a name for each$",
    ),
}
FILES = {
    "sweep.toml": 'name = "a"\nrecipe = "walk-k6-half"\nseeds = 10000001\n',
    "recipe.toml": """name = "a"
        steps = 1
        source = { kind = "generalised_hidden_markov", matrices = [[[1e308]], [[1e308]]] }
        model = { kind = "decoder", n_layers = 1, d_model = 4, d_head = 4, n_ctx = 4 }
    """,
    "same.csv": "a,a\nb,c\n",
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_has_field_and_expectation(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RUN.save("run.pt")
    for file, content in FILES.items():
        (tmp_path / file).write_text(content, "utf-8")
    arguments, words = LINES[name]
    assert re.search(words, said(arguments, capsys))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["run.pt", *FILES])


def test_a_loss_of_several_numbers_is_left_out(tmp_path):
    metrics = {"loss": {"step": torch.arange(3), "value": torch.zeros(3, 2)}}
    assert mm.runs.training_curve.training_curve(metrics) is None


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["index", "\0"], "'FOLDER'"),
        (["train", "walk-k6-half", "--out", "a\0b"], "'--out'"),
        (["mcp", "--root", "\0"], "'--root'"),
    ],
)
def test_a_path_with_a_null_character_is_named(arguments, name, capsys):
    assert re.search(f"{name}: '.*' has a null character, expected a path", said(arguments, capsys))


@pytest.mark.parametrize("arguments", [["quiz", ""], ["train", "walk-k6-half", "--out", ""]])
def test_an_empty_path_is_not_the_current_folder(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "it is empty, expected a path: the current folder is `.`" in said(arguments, capsys)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", ["train", "certify", "tokens", "ablate", "import", "quiz", "bench"])
def test_help_shows_no_range_without_ends(command, capsys):
    main([command, "--help"])
    assert "None" not in capsys.readouterr().out
