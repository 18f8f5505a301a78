"""Files made to do harm, given to the commands that read them: a line, exit code 2, 1 s, 300 MB, no more."""

import json
import os
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from golden_files import FOREIGN, golden
from jobs import Said, in_a_process
from run_files import Call, handmade, repack, saved, storage_of, touch
from watch import BYTES, COMPUTING, SECONDS

pytestmark = pytest.mark.system

GIANT = 1 << 40  # bytes of a file with nothing in it
SOURCE = '{"kind": "circle", "n_states": 5, "p": 0.3}'


def nanogpt() -> dict:
    return golden("nanogpt_bias.pt")


def changed(folder: Path, name: str, value: object) -> Path:
    """A nanoGPT checkpoint with one weight replaced."""
    data = nanogpt()
    data["model"][name] = value
    return saved(folder / "bad.pt", data)


def weight() -> torch.Tensor:
    return nanogpt()["model"]["transformer.wte.weight"]


def strided(folder: Path, stride: tuple[int, ...], offset: int = 0) -> Path:
    call = Call(
        torch._utils._rebuild_tensor_v2, storage_of(torch.zeros(5 * 8)), offset, (5, 8), stride, False, {}
    )
    return changed(folder, "transformer.wte.weight", call)


def quantised(folder: Path) -> Path:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return changed(
            folder, "transformer.wte.weight", torch.quantize_per_tensor(weight(), 0.1, 0, torch.qint8)
        )


def zip_bomb(folder: Path) -> Path:
    path = saved(folder / "bad.pt", nanogpt())
    return repack(path, {"data/0": bytes(256 << 20)}, zipfile.ZIP_DEFLATED)


def overlapping_bomb(folder: Path) -> Path:
    """Many directory entries that are all the same compressed megabyte."""
    path = folder / "bad.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(8 << 20))
        first = archive.filelist[0]
        for index in range(5000):
            entry = zipfile.ZipInfo(f"a/data/{index}")
            for field in ("compress_type", "CRC", "compress_size", "file_size", "header_offset"):
                setattr(entry, field, getattr(first, field))
            archive.filelist.append(entry)
    return path


def sparse_giant(folder: Path) -> Path:
    path = saved(folder / "bad.pt", nanogpt())
    os.truncate(path, GIANT)
    return path


def sparse_archive(folder: Path) -> Path:
    """A well-formed end of an archive behind a terabyte of nothing."""
    path = folder / "bad.pt"
    path.write_bytes(b"PK\x03\x04")
    os.truncate(path, GIANT)
    with open(path, "ab") as file:
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 46, 0xFFFFFFFF, 0))
    return path


def link_to(target: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "bad.pt"
        path.symlink_to(target)
        return path

    return make


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "bad.pt")
    return folder / "bad.pt"


def loop(folder: Path) -> Path:
    (folder / "bad.pt").symlink_to("bad.pt")
    return folder / "bad.pt"


def many_tensors(folder: Path) -> Path:
    """One storage under a hundred thousand names."""
    big = torch.zeros(1 << 20)
    return saved(folder / "bad.pt", {"model": {f"w{i}": big for i in range(20_000)}})


def deep(folder: Path) -> Path:
    path = saved(folder / "bad.pt", {"a": 1})
    return repack(path, {"data.pkl": b"\x80\x02" + b"]" * 400_000 + b"a" * 399_999 + b"."})


def long_number(folder: Path) -> Path:
    """An integer of a million bytes, which takes minutes to be printed."""
    path = saved(folder / "bad.pt", {"a": 1})
    number = b"\x8b" + struct.pack("<i", 1_000_000) + b"\x7f" * 1_000_000
    return repack(path, {"data.pkl": b"\x80\x02}X\x01\x00\x00\x00a" + number + b"s."})


def safetensors_header(size: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "bad.safetensors"
        path.write_bytes(struct.pack("<Q", size) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}')
        os.truncate(path, GIANT)
        return path

    return make


def safetensors_shape(folder: Path) -> Path:
    path = folder / "bad.safetensors"
    header = json.dumps({"wte.weight": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(4))
    return path


def gpt2_folder(change: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "model"
        path.mkdir()
        for name in ("config.json", "pytorch_model.bin"):
            (path / name).write_bytes((FOREIGN / "gpt2_bin" / name).read_bytes())
        change(path)
        return path

    return make


def endless_config(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").symlink_to("/dev/zero")


def giant_config(path: Path) -> None:
    os.truncate(path / "config.json", GIANT)


def nested_config(path: Path) -> None:
    (path / "config.json").write_text("[" * 900_000, "utf-8")


def endless_weights(path: Path) -> None:
    (path / "pytorch_model.bin").unlink()
    (path / "pytorch_model.bin").symlink_to("/dev/zero")


def evil_names(folder: Path) -> Path:
    data = nanogpt()
    data["model"] |= {"../../../../tmp/evil": torch.zeros(1), "\x1b]0;evil\x07": torch.zeros(1)}
    return saved(folder / "bad.pt", data)


def evil_prefix(folder: Path) -> Path:
    return saved(folder / "bad.pt", {"module." * 100_000 + str(i): torch.zeros(1) for i in range(3)})


def evil_code(folder: Path) -> Path:
    return changed(folder, "transformer.wte.weight", touch(folder / "ran"))


HOSTILE = {
    "zip bomb": zip_bomb,
    "zip bomb of one piece under many names": overlapping_bomb,
    "sparse terabyte": sparse_giant,
    "sparse terabyte with an archive's end": sparse_archive,
    "link to /dev/zero": link_to("/dev/zero"),
    "link to /dev/full": link_to("/dev/full"),
    "link to /proc/self/mem": link_to("/proc/self/mem"),
    "link to itself": loop,
    "link to nothing": link_to("nothing"),
    "pipe": fifo,
    "code": evil_code,
    "complex tensor": lambda folder: changed(folder, "transformer.wte.weight", weight() * 1j),
    "quantised tensor": quantised,
    "sparse tensor": lambda folder: changed(folder, "transformer.wte.weight", weight().to_sparse()),
    "meta tensor": lambda folder: changed(folder, "transformer.wte.weight", weight().to("meta")),
    "integers": lambda folder: changed(folder, "transformer.wte.weight", weight().long()),
    "expanded tensor": lambda folder: changed(
        folder, "transformer.wte.weight", torch.zeros(1, 1).expand(5, 8)
    ),
    "overlapping rows": lambda folder: strided(folder, (4, 1)),
    "stride of zero": lambda folder: strided(folder, (0, 1)),
    "negative stride": lambda folder: strided(folder, (-8, 1), offset=32),
    "beyond its storage": lambda folder: strided(folder, (8, 1), offset=1),
    "one storage under many names": many_tensors,
    "lists in lists without end": deep,
    "integer of a million bytes": long_number,
    "paths and escapes as names": evil_names,
    "endless prefixes": evil_prefix,
    "safetensors with a giant header": safetensors_header(1 << 39),
    "safetensors, sparse terabyte": safetensors_header(53),
    "safetensors with a giant shape": safetensors_shape,
    "config.json is /dev/zero": gpt2_folder(endless_config),
    "config.json of a terabyte": gpt2_folder(giant_config),
    "config.json nested without end": gpt2_folder(nested_config),
    "weights are /dev/zero": gpt2_folder(endless_weights),
}


ELSEWHERE = ("safetensors", "config", "weights")  # only an import reads those


def run_of(folder: Path, **changes: object) -> Path:
    return saved(folder / "bad.pt", {**handmade(), **changes})


def toml(text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "bad.toml"
        path.write_text(text, "utf-8")
        return path

    return make


def toml_link(folder: Path) -> Path:
    (folder / "bad.toml").symlink_to("/dev/zero")
    return folder / "bad.toml"


def toml_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "bad.toml")
    return folder / "bad.toml"


def toml_giant(folder: Path) -> Path:
    (folder / "bad.toml").write_text("a = 1", "utf-8")
    os.truncate(folder / "bad.toml", GIANT)
    return folder / "bad.toml"


TEXTS = {
    "a link to /dev/zero": toml_link,
    "a pipe": toml_pipe,
    "a sparse terabyte": toml_giant,
    "lists in lists without end": toml("a = " + "[" * 100_000),
    "tables in tables without end": toml("a = " + "{a = " * 50_000),
    "a key of a hundred thousand parts": toml(".".join("a" * 100_000) + " = 1"),
    "an integer of a hundred thousand digits": toml("steps = " + "9" * 100_000),
    "escapes": toml('name = "\\u001b[31m"\n"\\u202e" = 1'),
    "a million tables": toml("[[a]]\n" * 150_000),
    "another recipe's device": toml('name = "x"\nrecipe = "/dev/zero"\ngrid = { "source.p" = [0.1] }'),
}


@pytest.fixture
def refuse(tmp_path, record_property):
    """The one line of a command that must refuse what it is given, and leave nothing behind."""

    def line(*arguments: str) -> str:
        done = refused(tmp_path, arguments)
        record_property(COMPUTING, done.seconds)
        return done.said

    return line


def refused(folder: Path, arguments: tuple[str, ...]) -> Said:
    before = sorted(folder.rglob("*"))
    done = in_a_process(arguments)
    assert done.code == 2, done.said
    assert len(done.said.splitlines()) == 1
    assert done.said.startswith("error: ")
    assert done.said.strip().isprintable()
    assert len(done.said) < 1200
    assert sorted(folder.rglob("*")) == before
    assert done.seconds < SECONDS
    assert done.grown < BYTES
    return done


@pytest.mark.parametrize("name", HOSTILE)
def test_import_refuses(tmp_path, refuse, name):
    path = HOSTILE[name](tmp_path)
    options = ("--set", "act_fn=gelu", "--out", str(tmp_path / "run.pt"))
    refuse("import", str(path), "--source", SOURCE, *options)


@pytest.mark.parametrize("name", [name for name in HOSTILE if not name.startswith(ELSEWHERE)])
def test_probe_refuses(tmp_path, refuse, name):
    path = HOSTILE[name](tmp_path)
    refuse("probe", str(path), "--out", str(tmp_path / "report"))


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize("name", TEXTS)
def test_recipes_and_sweeps_are_refused(tmp_path, refuse, command, name):
    path = TEXTS[name](tmp_path)
    refuse(command, str(path), "--out", str(tmp_path / "out"))


NO_FILES = ("a\0b", "x" * 5000, "/proc/self/mem", "/dev/stdin", "\udcff\udcfe.pt", "/", "", "~", "[")
NO_FILES += ("\u202e.pt",)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        *product(("import", "probe", "show", "train", "sweep"), NO_FILES),
        *product(("probe", "show", "train", "sweep"), "*"),  # to `import` it is a pattern
    ],
)
def test_paths_that_are_none(tmp_path, refuse, command, path):
    options = ("--source", SOURCE) if command == "import" else ()
    out = () if command == "show" else ("--out", str(tmp_path / "out"))
    refuse(command, path, *options, *out)


def test_a_run_that_asks_for_more_than_there_is(tmp_path, refuse):
    """Configs of a few bytes that describe models without end."""
    model = handmade()["model"]
    for change in (
        {"n_layers": 10**6},
        {"n_ctx": 10**12},
        {"d_model": 2**62},
        {"d_mlp": 10**9, "attn_only": False},
    ):
        path = run_of(tmp_path, model=model | change)
        refuse("probe", str(path), "--out", str(tmp_path / "report"))


def test_the_process_that_refuses_is_measured(tmp_path):
    """What is called refused here would not be, if it took long or filled memory."""
    began = time.process_time()
    done = in_a_process(("--version",))
    assert done.code == 0
    assert "mechmarkov" in done.said
    assert time.process_time() - began < 60
    assert sys.maxsize > done.grown >= 0
