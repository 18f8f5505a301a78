"""Mistakes of a newcomer: one line with field, value, what was expected and a call that works."""

import json

import pytest

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.training.recipe import RecipeError

MISTAKES = {
    "train walk-k6-half --steps 100": "No such option '--steps'. Did you mean --set steps=VALUE?",
    "train walk-k6-half --lr .1": "No such option '--lr'. Did you mean --set optimiser.lr=VALUE?",
    "train walk-k6-half --layers 2": "No such option '--layers'. Did you mean --set model.n_layers=VALUE?",
    "train walk-k6-half steps=2": (
        "Got unexpected extra argument (steps=2). Usage: mechmarkov train [--set KEY=VALUE]… [OPTIONS] RECIPE"
    ),
    "train walk-k6-half --seeds 1,2": "--seeds is '1,2', expected an integer with 1<=x<=10000",
    "train walk-k6-half --seed 0-3": "--seed is '0-3', expected an integer",
    "train walk-k6-half.toml": "walk-k6-half.toml: No such file or directory, did you mean walk-k6-half?",
    "train walk": (
        "no shipped recipe is called 'walk', "
        "did you mean walk-k20-half or walk-k20-one or walk-k20-trap or walk-k6-biased?"
    ),
    "train mine.json": 'mine.json: is JSON, expected TOML, such as steps = 100 or name = "mine"',
    "train a/mine.json": 'a/mine.json: is JSON, expected TOML, such as steps = 100 or name = "mine"',
    "train bare.toml": (
        'bare.toml: Invalid value (at line 1, column 8), expected TOML, such as steps = 100 or name = "mine"'
    ),
    "walk-k6-half": "No such command 'walk-k6-half'. Did you mean mechmarkov train walk-k6-half?",
    "induction": "No such command 'induction'. Did you mean mechmarkov probe --example induction?",
    "help": (
        "No such command 'help'. There are recipe, train, probe, tokens, ablate, certify, verify, index, "
        "show, import, sweep, bench, quiz, list, probes, mcp."
    ),
    "train bear": "no shipped recipe is called 'bear', did you mean the file bare.toml?",
    "sweep bare": "no shipped sweep is called 'bare', did you mean the file bare.toml?",
    "train walk-k6-half --memory 2XB": "memory is '2XB', expected bytes, or a text such as '2GB'",
    "recipe --json new --source chain": (
        "--json stands before new, expected it behind: mechmarkov recipe new --json"
    ),
    "probe summary.json": (
        "summary.json: is what probes found, read by json.load; expected the run, a file run.pt"
    ),
    "verify a proof.json": "a is not a proof, which comes first: mechmarkov verify PROOF RUN",
    "show .": (
        ".: is a directory with no run file, expected a file, a directory with one run file (*.pt), or a "
        "folder that `save_folder` wrote; below it is a/run.pt"
    ),
    "show b": (
        "b: is a directory with no run file, expected a file, a directory with one run file (*.pt), or a "
        "folder that `save_folder` wrote; its summary.json is what probes found"
    ),
    "--example walk": "No such option '--example'. Usage: mechmarkov [OPTIONS] COMMAND [ARGS]...",
    "recipe new chain": (
        "Got unexpected extra argument (chain). Usage: mechmarkov recipe new --source KIND [OPTIONS]"
    ),
    "recipe new --source chain --layers two": "--layers is 'two', expected an integer with x>=1",
    "ablate L0H0 runs/run.pt": (
        "Missing option '--parts'. Usage: mechmarkov ablate [OPTIONS] --parts A,B RUN"
    ),
    "tokens runs/run.pt": (
        "Missing option '--tokens'. Usage: mechmarkov tokens [OPTIONS] --tokens '0 1 2' [RUN]"
    ),
    "sweep binary-phase --seeds 2": ("No such option '--seeds'. Usage: mechmarkov sweep [OPTIONS] SWEEP"),
    "probe --exmaple walk": "No such option '--exmaple'. Did you mean --example?",
    "probe --jobs 0": "--jobs is '0', expected an integer with 1<=x<=512",
    "probe --example wlak": (
        "no bundled run is called 'wlak'; there are walk, trap, induction, mamba, graph: did you mean walk?"
    ),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistyped_call_is_told_what_works(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for name in ("mine.json", "a/mine.json"):
        (tmp_path / name).write_text(json.dumps({"name": "mine"}), "utf-8")
    (tmp_path / "b").mkdir()
    for name in ("a/run.pt", "summary.json", "b/summary.json"):
        (tmp_path / name).write_text("{}", "utf-8")
    (tmp_path / "bare.toml").write_text("name = mine\n", "utf-8")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as left:
        main(words.split())
    told = capsys.readouterr()
    assert (left.value.code, told.out, told.err) == (2, "", f"error: {MISTAKES[words]}\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("what", ["", "fields", "schema"])
def test_all_of_recipes_comes_as_json(what, capsys):
    main(["recipe", *what.split(), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert list(told) == ["recipes"] if not what else {"$defs", "$ref"} <= told.keys()


def test_a_kept_run_hides_no_wrong_size(tmp_path):
    recipe = mm.load_recipe("walk-k6-half").replace(steps=1)
    mm.train(recipe, out=tmp_path)
    with pytest.raises(ValueError, match=r"^memory is '2XB', expected bytes"):
        mm.train(recipe, out=tmp_path, memory="2XB")


@pytest.mark.parametrize("tokens", ["0 1 2", [["a", "b"]], [[0, 1], [0]]])
def test_tokens_that_are_not_numbers_are_named(tokens):
    with pytest.raises(TypeError, match=r"^tokens is .*, expected sequences of one length, of states by num"):
        mm.probe(mm.example("induction"), ["behaviour"], tokens=tokens)


def test_a_shipped_name_is_not_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, call in {"walk": r"mm\.example\('walk'\)", "mess3": r"mm\.train\('mess3'\)"}.items():
        with pytest.raises(
            RunFileError, match=rf"^{name}: No such file or directory, did you mean {call}\?$"
        ):
            mm.load(name)
    mm.example("trap").save("walk")
    assert mm.load("walk").source == mm.example("trap").source


def test_help_has_an_example():
    for call in (mm.probe, mm.train, mm.load, mm.sweep, mm.import_run):
        assert ">>> " in str(call.__doc__), call


def test_a_misspelt_name_is_told_the_nearest():
    with pytest.raises(AttributeError, match=r"'trian': did you mean train\?$"):
        _ = mm.trian
    with pytest.raises(ValueError, match=r"certificate: did you mean attention\?$"):
        mm.probe(mm.example("walk"), ["atention"])
    with pytest.raises(ValueError, match=r": did you mean eap\?$|: did you mean eap or "):
        mm.bench.run(["eep"])
    with pytest.raises(ValueError, match=r": did you mean induction"):
        mm.bench.run(cases=["indcution"])


def test_a_kind_named_as_its_field_is_said_once():
    recipe = mm.load_recipe("tokens-lzw")
    with pytest.raises(RecipeError, match=r"^source\.tokeniser\.merges\.0 is 'ab', expected a list$"):
        recipe.with_set(['source.tokeniser={kind="merges",merges=["ab"]}'])
