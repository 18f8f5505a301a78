"""`mechmarkov show` tells of every kind of run without torch, and says what it says with torch."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from run_files import handmade, saved

import mechmarkov as mm
from mechmarkov.cli import cli
from mechmarkov.models.config import DecoderConfig
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.runs import stored
from mechmarkov.runs.description import describe
from mechmarkov.runs.run import Run
from mechmarkov.safe import without_torch
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.sources.base.registry import GROUP, load_source
from mechmarkov.utils.plugins import registered

ONE_BY_ONE = """
import sys
from mechmarkov.cli import main
for name in sys.argv[1:]:
    code = 0
    try:
        main(["show", name])
    except SystemExit as end:
        code = end.code
    print(f"{name}: {code}, {'torch' in sys.modules}")
"""
MIXERS = {
    "attention": {},
    "mamba": {"d_state": 4},
    "mamba1": {"d_state": 4, "d_head": 1, "n_heads": 8},
    "lstm": {},
    "mlp": {},
}
NUMBERS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


def shown(folder: Path, *names: str) -> tuple[str, str]:
    """The output of `show` for each name, in one process that must not import torch; and its errors."""
    command = [sys.executable, "-c", ONE_BY_ONE, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def a_source(kind: str) -> mm.sources.Source:
    if kind == "observed":
        return mm.Observed("aabbab" * 40)
    return load_source(kind)(**load_source(kind).example)


def a_run(source: mm.sources.Source, **shape: object) -> Run:
    length = 5 if source.length is None else source.length - 1
    fields = {"n_layers": 1, "d_model": 8, "d_head": 4, "n_ctx": length, "attn_only": True} | shape
    return Run.from_model(HookedDecoder(DecoderConfig(**fields, d_vocab=source.n_states)), source=source)


def assert_told(path: Path) -> None:
    """A file tells the same of itself with torch and without it."""
    run, read = mm.load(path), stored.read(path)
    assert type(run.steps) is torch.Tensor
    assert type(read.steps) is not torch.Tensor
    assert (describe(read), read.contents()) == (describe(run), run.contents())


def test_every_source_is_told_without_torch(tmp_path):
    kinds = registered(GROUP)
    for kind in kinds:
        a_run(a_source(kind)).save(tmp_path / f"{kind}.pt")
        assert_told(tmp_path / f"{kind}.pt")
    printed, errors = shown(tmp_path, *(f"{kind}.pt" for kind in kinds))
    assert errors == ""
    for kind in kinds:
        told, end, printed = printed.partition(f"{kind}.pt: 0, False\n")
        assert end, printed
        assert " ".join(a_source(kind).title().split())[:60] in told


def test_every_mixer_is_told_without_torch(tmp_path):
    for mixer, shape in MIXERS.items():
        a_run(mm.Binary(p=0.5, q=0.8), mixer=mixer, **shape).save(tmp_path / f"{mixer}.pt")
        assert_told(tmp_path / f"{mixer}.pt")
    printed, errors = shown(tmp_path, *(f"{mixer}.pt" for mixer in MIXERS))
    assert errors == ""
    assert all(f"{mixer}.pt: 0, False\n" in printed for mixer in MIXERS)


def test_bundled_runs_and_folders_are_told_without_torch(tmp_path):
    run, places = mm.example("walk"), []
    for name in mm.examples():
        mm.example(name).save(tmp_path / f"{name}.pt")
        places.append(f"{name}.pt")
    run.save_folder(tmp_path / "shared")
    (tmp_path / "one").mkdir()
    run.save(tmp_path / "one" / "any.pt")
    printed, errors = shown(tmp_path, *places, "shared", "one")
    assert errors == ""
    for name in (*places, "shared", "one"):
        told, end, printed = printed.partition(f"{name}: 0, False\n")
        assert end, printed
        here = CliRunner().invoke(cli, ["show", str(tmp_path / name)])
        assert told == here.output
    assert run.title() in told


def test_metrics_of_all_numbers_are_told(tmp_path):
    data = torch.load(Path(stored.__file__).parent / "examples" / "walk.pt", weights_only=True)
    steps = torch.tensor([0, 5])
    for dtype in NUMBERS:
        for shape in ((2,), (2, 3)):
            value = (torch.arange(6)[: 2 * shape[-1] if len(shape) > 1 else 2] * 1.7).to(dtype).view(shape)
            metrics = {"m": {"step": steps, "value": value}, "m_error": {"step": steps, "value": value}}
            torch.save(data | {"metrics": metrics}, tmp_path / "run.pt")
            assert_told(tmp_path / "run.pt")


FAULTS = {
    "is truncated or damaged": lambda whole: whole[:-5],
    "is not a file written by torch.save": lambda whole: b"not " + whole,
    "is empty": lambda _: b"",
}
CONTENTS = {
    'format is "other", expected "mechmarkov.run"': {"format": "other"},
    "version is 2, this mechmarkov reads up to 1": {"version": 2},
    "seed is a str, expected an integer": {"seed": "0"},
    "steps is a tensor of torch.float32, expected torch.int64": {"steps": torch.ones(2)},
    "steps is not ascending from 0 up": {"steps": torch.tensor([3, 1])},
    "steps has shape [], expected [n]": {"steps": torch.tensor(1)},
    'states["embed.W_E"] holds NaN or infinite values at step 50': {"states": "NaN"},
}


def test_faults_of_a_run_are_told_without_torch(tmp_path):
    data = handmade()
    whole = saved(tmp_path / "whole.pt", data).read_bytes()
    spoiled = {name: value.clone() for name, value in data["states"].items()}
    spoiled["embed.W_E"][-1, 0, 0] = torch.nan
    for number, fault in enumerate(FAULTS.values()):
        (tmp_path / f"{number}.pt").write_bytes(fault(whole))
    for number, fields in enumerate(CONTENTS.values(), len(FAULTS)):
        changed = {"states": spoiled} if "states" in fields else fields
        torch.save(data | changed, tmp_path / f"{number}.pt")
    names = [f"{number}.pt" for number in range(len(FAULTS) + len(CONTENTS))]
    printed, errors = shown(tmp_path, *names)
    assert printed.splitlines() == [f"{name}: 2, False" for name in names]
    for line, fault in zip(errors.splitlines(), (*FAULTS, *CONTENTS), strict=True):
        assert fault in line


def rewritten(path: Path, changes: dict[str, bytes]) -> None:
    """Write an archive anew, as torch writes one, with other records."""
    with zipfile.ZipFile(path) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, record in (records | changes).items():
        if name not in ("version", ".data/serialization_id"):  # the writer's own
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()


def told(read, path: Path) -> str:
    """A reader's words about a file: about the run, or what is wrong with it."""
    try:
        run = read(path)
    except RunFileError as error:
        return str(error)
    return str((describe(run), run.contents()))


def test_an_archive_written_anew_is_read(tmp_path):
    path = saved(tmp_path / "run.pt", handmade())
    rewritten(path, {})
    assert without_torch.read(path, stored.TENSORS_IN) is not None


@pytest.mark.parametrize("record", ["byteorder", ".format_version", ".storage_alignment"])
@pytest.mark.parametrize("value", [b"", b"big", b"9"])
def test_torch_reads_records_of_other_writers(tmp_path, record, value):
    path = saved(tmp_path / "run.pt", handmade())
    rewritten(path, {record: value})
    assert without_torch.read(path, stored.TENSORS_IN) is None
    assert told(stored.read, path) == told(mm.load, path)


def test_tensors_elsewhere_are_for_torch(tmp_path):
    path, data = tmp_path / "run.pt", handmade()
    for key in ("seed", "source", "provenance"):
        place = torch.ones(2) if key == "seed" else data[key] | {"P": torch.eye(2)}
        torch.save(data | {key: place}, path)
        assert without_torch.read(path, stored.TENSORS_IN) is None
        assert told(stored.read, path) == told(mm.load, path)


def test_every_damaged_directory_is_for_torch(tmp_path):
    """One bit of each byte behind the last record, and of each record's header, name and checksum."""
    path = saved(tmp_path / "run.pt", handmade())
    whole = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        places = [*range(archive.start_dir, len(whole))]
        for entry in archive.infolist():
            places += range(entry.header_offset, entry.header_offset + 30 + len(entry.filename))
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            read = without_torch.read(path, stored.TENSORS_IN)
        except RunFileError:
            continue  # told before tensors are read, by the code that both share
        if read is not None:
            assert place < archive.start_dir
            assert told(stored.read, path) == told(mm.load, path)
