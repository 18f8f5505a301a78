"""Archives that are broken, of another kind or too large, and writing that loses nothing."""

import os
import socket
import subprocess
import sys
import textwrap
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from run_files import handmade, repack, saved
from safe_file_cases import refusal

from mechmarkov.runs import RunFileError
from mechmarkov.safe import file as safe_file


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    path = saved(tmp_path_factory.mktemp("good") / "run.pt", handmade())
    return path.read_bytes()


@pytest.mark.parametrize("part", [0, 2e-4, 0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.99, 0.9999])
def test_a_truncated_file_is_refused(tmp_path, good, part):
    path = tmp_path / "run.pt"
    path.write_bytes(good[: int(part * len(good))])
    message = refusal(path)
    assert ("is empty" if part == 0 else "written by torch.save" if part < 4e-4 else "truncated") in message


def test_a_compressed_bomb_is_refused_before_it_unfolds(tmp_path, limited_refusal):
    path = saved(tmp_path / "run.pt", {"a": 1})
    repack(path, {"data/0": bytes(200 << 20)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    assert "compressed" in limited_refusal("file", path, 64 << 20)


def test_sizes_beyond_the_file_are_refused(tmp_path, limited_refusal):
    path = saved(tmp_path / "run.pt", {"a": torch.zeros(3)})
    raw = path.read_bytes()
    at = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"run/data/0"))
    sizes = (1 << 30).to_bytes(4, "little") * 2
    path.write_bytes(raw[: at + 20] + sizes + raw[at + 28 :])
    assert "claims more data than the file is long" in limited_refusal("file", path, 64 << 20)


def archive(path: Path, *names: str, comment: bytes = b"") -> Path:
    with zipfile.ZipFile(path, "w") as zipped:
        for name in names:
            zipped.writestr(name, b"3\n" if name.endswith("version") else b"\x80\x02}.")
        zipped.comment = comment
    return path


def test_archives_of_other_kinds_are_refused(tmp_path):
    path = tmp_path / "run.pt"
    assert safe_file.read(archive(path, "run/data.pkl", "run/version")) == {}
    assert "2 top folders" in refusal(archive(path, "run/data.pkl", "other/version"))
    for name in ("..", ".", ""):
        assert f'a top folder called "{name}", expected a name' in refusal(archive(path, f"{name}/data.pkl"))
    assert "no data.pkl" in refusal(archive(path, "run/version"))
    assert "does not end as a zip archive" in refusal(archive(path, "run/data.pkl", comment=b"hidden"))
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive(path, "run/data.pkl", "run/data.pkl")
    assert "two entries of one name" in refusal(path)
    assert "torch.load" in refusal(archive(path, "run/data.pkl", "run/constants.pkl"))
    repack(archive(path, "run/data.pkl"), {"data.pkl": bytes(9 << 20)})
    assert "data.pkl of more than" in refusal(path)
    repack(archive(path, "run/data.pkl"), {f"data/{i:0300}": b"" for i in range(16000)})
    assert "zip directory of more than" in refusal(path)


def test_what_is_no_file_is_refused(tmp_path):
    assert refusal(tmp_path) == "is a directory, expected a file"
    assert refusal(tmp_path / "missing.pt") == "cannot be read: No such file or directory"
    assert refusal(Path("/dev/zero")) == "is not a regular file"
    os.mkfifo(tmp_path / "fifo")
    assert refusal(tmp_path / "fifo") == "is not a regular file"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert refusal(tmp_path / "socket") == "is not a regular file"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read: Too many levels" in refusal(tmp_path / "loop")
    with pytest.raises(RunFileError, match=r"cannot be read: .*embedded null"):
        safe_file.read("a\0b")


def test_a_link_to_a_file_is_read_and_written_through(tmp_path):
    real, link = tmp_path / "real.pt", tmp_path / "link.pt"
    link.symlink_to(real)
    safe_file.write(link, {"a": 1})
    assert link.is_symlink()
    assert safe_file.read(link) == safe_file.read(real) == {"a": 1}


# -- writing -----------------------------------------------------------------------------------------------


def test_a_refused_value_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.pt"
    safe_file.write(path, {"a": 1})
    before = path.read_bytes()
    with pytest.raises(RunFileError, match=r"run\.pt: b is a tuple, expected only"):
        safe_file.write(path, {"a": 2, "b": (1,)})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.pt"]


def test_places_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for path, words in {
        tmp_path / "folder": "cannot be written: it is a directory",
        tmp_path / "fifo": "cannot be written: it is not a regular file",
        tmp_path / "missing" / "run.pt": "cannot be written: its folder does not exist",
        Path("/dev/null"): "cannot be written: it is not a regular file",
        Path("/proc/run.pt"): "cannot be written: No such file",
    }.items():
        with pytest.raises(RunFileError, match=words):
            safe_file.write(path, {"a": 1})


FULL_DISK = """
    import os, resource, sys
    import torch
    from mechmarkov.runs import RunFileError
    from mechmarkov.safe import file as safe_file
    path, *rooms = sys.argv[1:]
    safe_file.write(path, {"a": 1})
    before = open(path, "rb").read()
    for room in rooms:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), resource.RLIM_INFINITY))
        try:
            safe_file.write(path, {"a": torch.zeros(30_000), "b": [0.5] * 1000})
        except RunFileError as error:
            print(error)
        assert open(path, "rb").read() == before
        assert os.listdir(os.path.dirname(path)) == ["run.pt"]
"""


@pytest.mark.system
def test_a_full_disk_leaves_the_old_file(tmp_path):
    path, rooms = tmp_path / "run.pt", ["0", "100", "5000", "60000", "125000"]
    program = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(path), *rooms]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path}: cannot be written: File too large\n" * len(rooms)


def test_a_file_has_the_rights_its_owner_asks_for(tmp_path):
    before = os.umask(0o027)
    try:
        safe_file.write(tmp_path / "run.pt", {"a": 1})
    finally:
        os.umask(before)
    assert (tmp_path / "run.pt").stat().st_mode & 0o777 == 0o640


def test_an_entry_that_is_as_long_compressed_as_not_is_compressed(tmp_path):
    path = tmp_path / "run.pt"
    archive(path, "run/data.pkl")
    lengths = ((n, zlib.compressobj(9, zlib.DEFLATED, -15)) for n in range(3, 40))
    (n, *_) = [n for n, deflate in lengths if len(deflate.compress(b"a" * n) + deflate.flush()) == n]
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        zipped.writestr("run/version", b"a" * n)
        assert zipped.filelist[-1].compress_size == n
    assert "compressed entries" in refusal(path)
