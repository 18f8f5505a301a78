"""A run as a folder to share: the same run again, and nothing that does not belong."""

import json
import os
import socket
import sys
from xml.etree import ElementTree

import huggingface_hub
import numpy as np
import pytest
import torch
from run_files import assert_same
from safetensors.torch import load_file, save_file

import mechmarkov as mm
from mechmarkov.cli import main
from mechmarkov.runs import RunFileError


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    run = mm.example("walk")
    folder = tmp_path_factory.mktemp("hub") / "walk"
    return run, run.save_folder(folder, mm.probe(run, ["attention"]))


def copy_of(folder, tmp_path):
    made = tmp_path / "copy"
    made.mkdir()
    for file in folder.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    return made


def test_the_same_run_comes_back(shared):
    run, folder = shared
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "run.json", "weights.safetensors"]
    assert_same(mm.load(folder), run)
    assert [path.name for path in folder.parent.iterdir()] == ["walk"]


def test_the_card_says_what_was_found(shared):
    run, folder = shared
    card = (folder / "README.md").read_text("utf-8")
    assert card.startswith("---\nlibrary_name: mechmarkov\n")
    assert run.title() in card
    result = mm.probe(run, ["attention"])["attention"]
    assert result.verdict in card
    assert f"| parent_score | {result.scores['parent_score'].value:.4g} | probability |" in card


def test_the_card_has_the_learning_curve(tmp_path):
    run = mm.example("induction")
    result = mm.probe(run, ["behaviour"], steps="all", sequences=16)
    folder = run.save_folder(tmp_path / "induction", result)
    assert "](curve.svg)" in (folder / "README.md").read_text("utf-8")
    assert_same(mm.load(folder), run)
    picture = ElementTree.fromstring((folder / "curve.svg").read_text("utf-8"))
    tag = "{http://www.w3.org/2000/svg}"
    points = [tuple(map(float, p.split(","))) for p in picture.find(f"{tag}polyline").get("points").split()]
    data = result["behaviour"].data
    assert len(points) == data.sizes["step"]
    # Higher in the picture (a smaller y) is a larger loss, in proportion.
    height, loss = -np.array(points)[:, 1], data["loss"].values
    assert np.corrcoef(height, loss)[0, 1] == pytest.approx(1, abs=1e-3)
    assert (np.diff(np.array(points)[:, 0]) > 0).all()
    words = [text.text for text in picture.iter(f"{tag}text")]
    assert f"step {data['step'].values[-1]}" in words
    assert any(word.startswith("in-context bigram ") for word in words)
    rows = sorted(float(text.get("y")) for text in picture.iter(f"{tag}text") if text.get("x") == "568.0")
    assert min(np.diff(rows)) >= 13.9  # no name covers another
    assert not {child.tag.removeprefix(tag) for child in picture.iter()} - {
        "svg", "rect", "polyline", "circle", "line", "text",
    }  # fmt: skip


def test_from_the_hub_by_its_address(shared, monkeypatch):
    """The Hub's two calls answer from the folder: there is no network in the tests."""
    run, folder = shared
    asked = []
    files = [path.name for path in folder.iterdir()] + [".gitattributes"]

    def info(*_, **__):
        return huggingface_hub.ModelInfo(id="owner/walk", siblings=[{"rfilename": name} for name in files])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **given: asked.append((name, given)) or folder
    )
    assert_same(mm.load("hf://owner/walk@v1"), run)
    patterns = ["run.json", "weights.safetensors"]
    assert asked == [("owner/walk", {"revision": "v1", "allow_patterns": patterns})]
    files.append("setup.py")
    with pytest.raises(
        RunFileError, match=r'^hf://owner/walk holds "setup.py", expected only a run\'s files$'
    ):
        mm.load("hf://owner/walk")
    with pytest.raises(RunFileError, match=r"^path is '?hf://walk'?, expected hf://owner/name or hf://"):
        mm.load("hf://walk")


_connected: list[tuple[str, int]] = []  # where this process has tried to connect to


def _note_connections(event, arguments):
    if event == "socket.connect":
        _connected.append(arguments[1])


@pytest.fixture
def direct(monkeypatch):
    """No proxy stands between, also not for a client that an earlier test made."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


@pytest.mark.usefixtures("direct")
def test_without_a_network_it_is_one_line_and_one_try(monkeypatch):
    sys.addaudithook(_note_connections)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: whoever calls is refused, and nobody else has it
        address = taken.getsockname()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{address[1]}")
        for _ in range(2):  # in a process' first call its library asks for a list of its own as well
            _connected.clear()
            with pytest.raises(
                RunFileError, match=r"^hf://owner/walk cannot be had: .*[Cc]onnection refused"
            ):
                mm.load("hf://owner/walk")
    assert _connected.count(address) == 1


def test_what_is_pushed_is_what_is_loaded(shared, monkeypatch, tmp_path):
    run, _ = shared
    made = []

    def upload(_, repo_id, folder_path, commit_message):
        assert commit_message
        made.append((repo_id, copy_of(folder_path, tmp_path)))

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **given: made.append(given))
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert run.push_to_hub("owner/walk", private=True) == "hf://owner/walk"
    assert made[0] == {"private": True, "exist_ok": True}
    assert made[1][0] == "owner/walk"
    assert_same(mm.load(made[1][1]), run)
    assert 'mm.load("hf://owner/walk")' in (made[1][1] / "README.md").read_text("utf-8")
    with pytest.raises(RunFileError, match=r"^name is 'my walk', expected owner/name$"):
        run.push_to_hub("my walk")

    def refuse(*_, **__):
        raise OSError("401:\nyou are not logged in")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", refuse)
    told = r"^hf://owner/walk cannot be written: 401: you are not logged in$"
    with pytest.raises(RunFileError, match=told):
        run.push_to_hub("owner/walk")


def hashed(folder):
    """Write the hash of the weights that are there: whoever changes them can do so too."""
    import hashlib

    content = json.loads((folder / "run.json").read_text("utf-8"))
    content["weights_sha256"] = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    (folder / "run.json").write_text(json.dumps(content), "utf-8")


def with_tensor(name, value):
    def change(folder):
        tensors = load_file(folder / "weights.safetensors")
        save_file(tensors | {name: value}, folder / "weights.safetensors")
        hashed(folder)

    return change


def with_json(**change):
    def apply(folder):
        content = json.loads((folder / "run.json").read_text("utf-8"))
        content["data"] |= change
        (folder / "run.json").write_text(json.dumps(content), "utf-8")

    return apply


def with_text(text):
    return lambda folder: (folder / "run.json").write_text(text, "utf-8")


def with_number(text):
    """A number that Python would not write, in the provenance."""

    def change(folder):
        with_json(provenance={"wall_seconds": "here"})(folder)
        content = (folder / "run.json").read_text("utf-8")
        (folder / "run.json").write_text(content.replace('"here"', text), "utf-8")

    return change


def flip(folder):
    data = bytearray((folder / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(bytes(data))


def no_safetensors(folder):
    (folder / "weights.safetensors").write_bytes(b"not one")
    hashed(folder)


CHANGES = [
    (
        lambda f: (f / "model.py").write_text("import os", "utf-8"),
        r'holds "model.py", expected only run.json, weights',
    ),
    (flip, r"weights.safetensors: is not the file that was written: its SHA-256"),
    (no_safetensors, "weights.safetensors: is not a safetensors file"),
    (lambda f: (f / "weights.safetensors").unlink(), "weights.safetensors: cannot be read"),
    (with_text("{"), "run.json: is not JSON"),
    (with_text("[" * 100_000), "run.json: is not JSON"),
    (with_text('{"data": {}, "data": {}}'), "run.json: key 'data' is given twice, expected once"),
    (with_text("{}"), "run.json: has the keys , expected data and weights_sha256"),
    *(
        (with_number(text), f"run.json: holds '{text}', expected finite numbers")
        for text in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
    ),
    (with_json(seed="one"), "seed is a str, expected an integer or None"),
    (with_json(format="x"), 'format is "x", expected "mechmarkov.run"'),
    (with_tensor("[]", torch.zeros(1)), 'holds a tensor "\\[\\]", expected the keys of a place in run.json'),
    (with_tensor('["seed"]', torch.zeros(1)), "holds a tensor .*seed.*, expected the keys of a place"),
    (
        with_tensor('["nowhere", "x"]', torch.zeros(1)),
        "holds a tensor .*nowhere.*, expected the keys of a place",
    ),
    (with_tensor('["states", "x"]', torch.zeros(1)), r'states\["x"\] is unknown'),
    (with_tensor('["states", "embed.W_E"]', torch.zeros(1, 1, 1)), r'states\["embed.W_E"\] has shape'),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=range(len(CHANGES)))
def test_a_folder_that_was_changed_is_refused_in_one_line(shared, tmp_path, change, message):
    folder = copy_of(shared[1], tmp_path)
    change(folder)
    with pytest.raises(RunFileError, match=message) as error:
        mm.load(folder)
    assert str(error.value).startswith(str(folder))
    assert "\n" not in str(error.value)


def test_a_shared_folder_is_not_imported_again(shared, tmp_path, capsys):
    folder, source = shared[1], json.dumps(shared[0].source.model_dump(mode="json"))
    for given in (folder, folder / "run.json", folder / "weights.safetensors"):
        with pytest.raises(SystemExit) as end:
            main(["import", str(given), "--source", source, "--out", str(tmp_path / "run.pt")])
        said = "is in a folder that `save_folder` wrote, a run already: probe that folder as it is"
        (line,) = capsys.readouterr().err.splitlines()
        assert (end.value.code, line.endswith(said), str(folder) in line) == (2, True, True)
    assert not any(tmp_path.iterdir())


def test_what_is_no_result_is_said_so_and_nothing_is_written(shared, tmp_path):
    for other in ("report", shared[0]):
        with pytest.raises(TypeError, match=r"^result is .+, expected what mm.probe returned$"):
            shared[0].save_folder(tmp_path / "walk", other)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(shared, tmp_path):
    (tmp_path / "note").write_text("mine", "utf-8")
    with pytest.raises(RunFileError, match=r"exists, expected a new folder$"):
        shared[0].save_folder(tmp_path)
    with pytest.raises(RunFileError, match="cannot be written"):
        shared[0].save_folder(tmp_path / "none" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
