"""The command line, in-process: what it prints, writes and refuses."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points

import huggingface_hub
import pytest
import torch
from distributions import install

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.probing.probe import load_probe
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.memory import is_out_of_memory

pytestmark = pytest.mark.usefixtures("few_nulls")
RECIPE = """
name = "tiny"
steps = 1
source = { kind = "circle", n_states = 3, p = 0.5 }
model = { kind = "decoder", n_layers = 1, n_heads = 1, d_model = 4, d_head = 4, n_ctx = 4, attn_only = true }
"""
PROBES = ["behaviour", "attention", "alignment", "induction", "ablation", "storage"]
PROBES += ["program", "belief", "graph", "dynamics", "symmetry", "landscape", "degeneracy", "certificate"]


def fails(capsys, *arguments):
    """Run a command that must end with exit code 2; return its one line."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    changes = ["--set", "steps=5", "--set", "checkpoints=[0,2,5]", "--set", "model.n_ctx=13"]
    main(["train", "walk-k6-half", *changes, "--out", str(folder)])
    return folder / "run.pt"


def test_train_writes_a_run_that_loads(trained):
    run = mm.load(trained)
    assert run.steps.tolist() == [0, 2, 5]
    assert [file.name for file in trained.parent.iterdir()] == ["run.pt"]


def test_train_seeds_as_one_stack(tmp_path, capsys):
    changes = ["--set", "steps=1", "--set", "checkpoints=[1]", "--seeds", "2"]
    main(["train", "walk-k6-half", *changes, "--out", str(tmp_path)])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["seed-0.pt", "seed-1.pt"]
    told = capsys.readouterr().out
    assert "seed-1.pt" in told
    assert re.search(r"seed 1\nloss -?\d", told)


def test_probe_writes_the_three_files(trained, tmp_path, capsys):
    main(["probe", str(trained), "--steps", "0,5", "--sequences", "16", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    written = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert written == ["report.html", "results.nc", "summary.json"]
    assert printed.strip().endswith("report.html")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text("utf-8"))
    assert summary["steps"] == [0, 5]
    assert list(summary["probes"]) == [
        name for name in PROBES if name not in ("belief", "graph", "degeneracy", "certificate")
    ]
    assert list(summary["skipped"]) == ["belief", "graph", "degeneracy", "certificate"]
    assert summary["failed"] == {}


def test_a_run_on_the_hub_is_shown_and_probed(tmp_path, capsys, monkeypatch):
    folder = mm.example("walk").save_folder(tmp_path / "walk")
    files = [{"rfilename": path.name} for path in folder.iterdir()]
    info = huggingface_hub.ModelInfo(id="owner/walk", siblings=files)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, name, revision, timeout: info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(folder))
    main(["show", "hf://owner/walk"])
    assert "Circle walk on 6 states" in capsys.readouterr().out
    main(["probe", "hf://owner/walk", "--probes", "attention", "--out", str(tmp_path / "out")])
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "mechmarkov probe hf://owner/walk --probes attention" in page


def test_probe_without_a_run_names_the_parent_head_and_the_kernel(tmp_path, capsys):
    main(["probe", "--probes", "behaviour,attention,alignment", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    scores = {name: probe["scores"] for name, probe in summary["probes"].items()}
    assert scores["attention"]["parent_head"]["value"] == "L0H0"
    assert scores["attention"]["parent_score"]["value"] > 0.999
    assert scores["alignment"]["kernel_cosine"]["value"] > 0.99
    assert scores["alignment"]["target"]["value"] == "sqrt P"
    assert scores["behaviour"]["nearest_predictor"]["value"] == "bigram"
    assert "L0H0 gives the previous token" in printed


def test_probe_of_the_trap_says_chance_and_flat(tmp_path, capsys):
    main(["probe", "--example", "trap", "--probes", "behaviour,attention", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    probes = json.loads((tmp_path / "summary.json").read_text("utf-8"))["probes"]
    scores = {name: probe["scores"] for name, probe in probes.items()}
    assert scores["attention"]["spread"]["value"] == 0
    flat = "attention is flat: no head and no lag stands out"
    assert scores["attention"]["parent_head"] == {"value": None, "unit": "", "reason": flat}
    assert scores["behaviour"]["accuracy"]["value"] == pytest.approx(1 / 6, abs=1e-12)
    assert "It is right as often as chance" in printed or "16.7%" in printed
    assert "Attention is exactly even" in printed


def test_show_and_probes(trained, capsys):
    main(["show", str(trained)])
    shown = capsys.readouterr().out
    assert "Circle walk on 6 states, p = 0.5" in shown
    assert "0, 2, 5 (3)" in shown
    main(["probes"])
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == PROBES


def test_what_has_a_name_is_listed(capsys):
    main(["list"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split(maxsplit=1)[0] for line in lines if line.startswith("  ")]
    kinds = [entry.name for entry in entry_points(group="mechmarkov.sources")]
    known = [mm.recipes(), mm.sweeps(), mm.examples(), sorted(kinds), mm.bench.registered(), mm.bench.CASES]
    assert listed == [name for names in known for name in names]


def test_show_tells_curves_of_any_shape_and_escapes_what_steers_a_terminal(trained, tmp_path, capsys):
    data = torch.load(trained, weights_only=True)
    data["metrics"]["red\x1b[31m"] = {"step": torch.tensor([5]), "value": torch.ones(1, 3)}
    data["provenance"]["note"] = "two\nlines"
    torch.save(data, tmp_path / "by-hand.pt")
    main(["show", str(tmp_path / "by-hand.pt")])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "red\\x1b[31m" in shown
    assert "values [3] at step 5" in shown
    assert "two\\nlines" in shown


def test_no_command_shows_the_help(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "\nCommands:\n" in capsys.readouterr().err


def test_a_failed_allocation_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 58, dtype=torch.uint8)
    assert is_out_of_memory(failed.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


def test_a_recipe_in_the_place_of_a_run(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("name = 'mine'\n", "utf-8")
    for command in (["probe"], ["show"], ["ablate", "--parts", "L0H0"], ["tokens", "--tokens", "0 1"]):
        assert fails(capsys, *command, str(path)) == (
            f"error: {path}: is a recipe, expected a run, so train it first: mechmarkov train {path}, then "
            "mechmarkov probe runs/mine"
        )
    line = fails(capsys, "probe", "walk-k6-half")
    assert line.endswith(": it is a recipe, so train it first: mechmarkov train walk-k6-half")
    with pytest.raises(
        RunFileError, match=r"^.*mine.toml: is a recipe, expected a run: mm.train\('.*mine.toml'"
    ):
        mm.load(path)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["probe", "missing.pt"], ["missing.pt"]),
        (["probe", "--steps", "x"], ["--steps", "'x'", "last, all"]),
        (["probe", "--steps", "7"], ["step is 7", "0, 1, 2", "50"]),
        (["probe", "--probes", "nope"], ["nope", "attention"]),
        (["probe", "--probes", ","], ["--probes"]),
        (["probe", "a.pt", "--example", "walk"], ["RUN", "--example"]),
        (["probe", "--example", "none"], ["none", "trap"]),
        (["probe", "--example", ""], ["''", "trap"]),
        (["train", "no-such-recipe"], ["no-such-recipe"]),
        (["train", "missing.toml"], ["missing.toml"]),
        (["train", "walk-k6-half", "--set", "optimizer.lr=1"], ["optimizer", "optimiser"]),
        (["train", "walk-k6-half", "--set", "source.p=2"], ["p", "2", "[0, 1]"]),
        (["train", "walk-k6-half", "--seed", "1", "--seeds", "2"], ["--seed", "--seeds"]),
        (["train", "walk-k6-half", "--seeds", "0"], ["--seeds", "0"]),
        (["train", "walk-k6-half", "--seeds", "100000000"], ["--seeds", "10000"]),
        (["train", "walk-k6-half", "--memory", "nan"], ["memory", "nan", "2GB"]),
        (["train", "walk-k6-half", "--memory", "x"], ["memory", "'x'", "2GB"]),
        (["probe", "--time-limit", "inf"], ["--time-limit", "inf", "finite number"]),
        (["sweep", "binary-phase", "--gpus-per-task", "nan"], ["--gpus-per-task", "nan", "finite number"]),
        (["probe", "--out", ""], ["--out", "folder"]),
        (["train", "walk-k6-half", "--device", "tpu"], ["tpu", "cuda"]),
        (["show", "."], ["directory"]),
        (["recipe", "../recipes/mess3"], ["no shipped recipe", "'../recipes/mess3'"]),
        (["recipe", "mess3", "mess3"], ["unexpected extra argument"]),
        (["recipe", "new"], ["--source", "circle", "switch"]),
        (["recipe", "nex"], ["'nex'", "did you mean new?"]),
        (["recipe", "new", "--source", "observed"], ["'observed'", "data", "states", "names"]),
        (["recipe", "new", "--source", "chain", "--layers", "0"], ["--layers", "0"]),
        (["recipe", "new", "--source", "chain", "--layers", "999"], ["model.n_layers", "999", "256"]),
        (["recipe", "new", "--source", "fruit_questions", "--context", "5"], ["model.n_ctx is 5", "16"]),
        (["nope"], ["nope"]),
        (["probe", "--nope"], ["--nope"]),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, names, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = fails(capsys, *arguments)
    for name in names:
        assert name in line
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_leaves_no_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "device is 'cuda'" in fails(capsys, "train", "walk-k6-half", "--device", "cuda")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_would_run_code_is_refused(capsys, tmp_path):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    torch.save({"format": "mechmarkov.run", "model": Evil()}, tmp_path / "evil.pt")
    assert "system" in fails(capsys, "probe", str(tmp_path / "evil.pt"), "--out", str(tmp_path / "out"))
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


def test_out_that_is_a_file_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("mine", "utf-8")
    assert "expected a folder" in fails(capsys, "probe", "--out", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text("utf-8") == "mine"


def without_torch(site, *arguments):
    """What a command prints in a process of its own that then holds nothing heavy."""
    code = (
        f"import sys\nsys.path.insert(0, {str(site)!r})\nfrom mechmarkov.cli import main\n"
        f"try:\n    main({list(arguments)})\nexcept SystemExit:\n    pass\n"
        "heavy = ('torch', 'transformer_lens', 'xarray', 'plotly', 'pydantic', 'numpy')\n"
        "print([module for module in heavy if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *printed, heavy = done.stdout.strip().splitlines()
    assert heavy == "[]"
    return printed


def test_help_loads_neither_torch_nor_transformer_lens(tmp_path):
    assert any("Probe RUN" in line for line in without_torch(tmp_path, "--help"))


def test_the_list_of_probes_loads_no_probe_ours_or_anybodys(tmp_path):
    questions = {
        "aaa": 'import torch\nprobe = Probe("aaa", "Is it " "positional?", "-")',
        "bbb": 'import torch\nprobe: Probe = Probe(cites="-", question="Is it\\x1b named?", name="bbb")',
        "ccc": "import torch\nprobe = build()",
    }
    package = tmp_path / "weather_probes"
    package.mkdir()
    (package / "__init__.py").write_text("import torch\n", "utf-8")
    for name, source in questions.items():
        (package / f"{name}.py").write_text(source, "utf-8")
    entries = "".join(f"{name} = weather_probes.{name}:probe\n" for name in [*questions, "ddd"])
    install(tmp_path, "weather", "mechmarkov.probes", entries.replace("weather_probes.ddd", "missing"))
    listed = without_torch(tmp_path, "probes")
    asked = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in listed}
    assert list(asked) == [*PROBES, "aaa", "bbb", "ccc", "ddd"]
    assert {name: asked[name] for name in PROBES} == {name: load_probe(name).question for name in PROBES}
    assert asked["aaa"] == "Is it positional?"
    assert asked["bbb"] == r"Is it\x1b named?"
    assert asked["ccc"] == "no question in the source of weather_probes.ccc"
    assert asked["ddd"] == "no question in the source of missing"


def test_where_no_report_can_be_written_nothing_is_probed(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mechmarkov.probe_run.probe", lambda *_, **__: pytest.fail("probed"))
    (tmp_path / "report.html").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    line = fails(capsys, "probe", str(trained), "--out", str(tmp_path))
    assert "report.html is a folder, expected the name of a file" in line
    assert ".tmp" not in line
    line = fails(capsys, "probe", str(trained), "--out", str(tmp_path / "dangling"))
    assert "dangling: a link to" in line


def test_files_named_by_dots_stay_in_their_folders(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "...pt").write_bytes(trained.read_bytes())
    (tmp_path / "other.pt").write_bytes(trained.read_bytes())
    main(["probe", "...pt", "other.pt", "--probes", "attention", "--sequences", "4", "--out", "out/both"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["both"]
    both = tmp_path / "out" / "both"
    assert sorted(path.name for path in both.iterdir()) == ["other", "report.html", "run"]
    (tmp_path / "...toml").write_text(RECIPE, "utf-8")
    main(["train", "...toml"])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["recipe"]


@pytest.mark.usefixtures("few_nulls")
def test_names_with_dots_are_told_apart_and_results_of_earlier_calls_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("p0.5", "p0.7"):
        mm.example("trap").save_folder(tmp_path / name)
    main(["probe", "p0.5", "p0.7", "--probes", "attention", "--sequences", "4", "--out", "out"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["p0.5", "p0.7", "report.html"]
    capsys.readouterr()
    main(["probe", "p0.5", "p0.7", "--probes", "attention", "--sequences", "4", "--out", "out"])
    assert "earlier" not in capsys.readouterr().err
    main(["probe", "p0.5", "--probes", "attention", "--sequences", "4", "--out", "out"])
    assert "results of earlier calls are still there: out/p0.5 and out/p0.7\n" in capsys.readouterr().err
    main(["probe", "p0.5", "p0.7", "--probes", "attention", "--sequences", "4", "--out", "out"])
    assert "results of earlier calls are still there: out\n" in capsys.readouterr().err  # of p0.5 alone


def test_a_folder_with_one_run_file_is_that_run(tmp_path, capsys):
    folder = tmp_path / "walk"
    folder.mkdir()
    line = fails(capsys, "show", str(folder))
    assert line.endswith(
        "is a directory with no run file, expected a file, a directory with one run file (*.pt), or a folder "
        "that `save_folder` wrote"
    )
    mm.example("trap").save(folder / "seed-1.pt")
    main(["show", str(folder)])
    assert mm.example("trap").title() in capsys.readouterr().out
    mm.example("trap").save(folder / "seed-2.pt")
    assert "is a directory with seed-1.pt and seed-2.pt, expected" in fails(capsys, "show", str(folder))


def test_each_run_of_a_folder_is_probed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for seed in (10, 2):
        mm.example("trap").save(f"runs/seed-{seed}.pt")
    main(["probe", "runs", "--probes", "attention", "--sequences", "4", "--out", "out", "--json"])
    assert list(json.loads(capsys.readouterr().out)["runs"]) == ["seed-2", "seed-10"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "seed-10", "seed-2"]


def test_a_probe_may_take_so_long_and_no_longer(trained, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["probe", str(trained), "--probes", "attention", "--time-limit", "1e-6", "--out", str(tmp_path)])
    assert end.value.code == 1
    assert "attention: failed: TimeoutError: took longer than the limit of 1e-06 s" in capsys.readouterr().err
    assert "TimeoutError" in (tmp_path / "report.html").read_text("utf-8")
