"""No code runs, and no tensor reaches beyond what is in the file."""

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from run_files import legacy_pickle, rebuilt, repack, saved, storage_of, text, touch
from safe_file_cases import payloads, refusal

from mechmarkov.safe import file as safe_file


@pytest.mark.parametrize("case", payloads(Path("x")))
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_no_code_runs(tmp_path, case, legacy):
    marker, path = tmp_path / "marker", tmp_path / "run.pt"
    payload = payloads(marker)[case]
    if legacy:
        torch.save(payload, path, _use_new_zipfile_serialization=False)
        assert "is not a file written by torch.save" in refusal(path)
    else:
        words = {"eval": "refers to __builtin__.eval", "hooks": "carries hooks"}
        assert words.get(case, f"refers to {os.name}.system") in refusal(saved(path, payload))
    assert not marker.exists()


def test_the_payload_does_run_where_nobody_looks(tmp_path):
    marker = tmp_path / "marker"
    path = saved(tmp_path / "run.pt", {"a": touch(marker)})
    torch.load(path, weights_only=False)
    assert marker.exists()
    marker.unlink()
    assert "is not a file written by torch.save" in refusal(legacy_pickle(path, {"a": touch(marker)}))
    assert not marker.exists()


def test_a_forbidden_name_that_is_overwritten_is_still_found(tmp_path):
    path = saved(tmp_path / "run.pt", {"a": 1})
    pickled = b"\x80\x02}" + text("a") + b"cposix\nsystem\ns" + text("a") + b"Ns."
    repack(path, {"data.pkl": pickled})
    assert pickle.loads(pickled) == {"a": None}
    assert refusal(path) == "something in it refers to posix.system, hidden among its values"


@pytest.mark.parametrize(
    "name",
    [
        "torch._utils _rebuild_device_tensor_from_numpy",
        "torch._utils _rebuild_wrapper_subclass",
        "torch._tensor _rebuild_from_type_v2",
        "torch.serialization _get_layout",
        "torch load",
        "torch.storage UntypedStorage",
        "os system",
        "__builtin__ getattr",
        "collections Counter",
        "a\x1b[31m b",
    ],
)
def test_names_that_torch_would_take_are_refused_too(tmp_path, name):
    path = saved(tmp_path / "run.pt", {"a": 1})
    module, attribute = name.rsplit(" ", 1)
    repack(path, {"data.pkl": b"\x80\x02}" + text("a") + f"c{module}\n{attribute}\n)Rs.".encode()})
    message = refusal(path)
    assert message.startswith("a refers to")
    assert attribute in message


@pytest.mark.parametrize(
    ("pickled", "words"),
    [
        (b"", "damaged"),
        (b"\x80\x02}", "damaged"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02}}.", "damaged"),
        (b"\x80\x02}" + text("a") + b"h\x07s.", "damaged"),
        (b"\x80\x02}(t.", "damaged"),
        (b"\x80\x02}(tR.", "damaged"),
        (b"\x80\x02]}Rs.", "damaged"),
        (b"\x80\x02}X\xff\xff\xff\x7fa.", "damaged"),
        (b"\x80\x02}c\xff\xfe\nx\ns.", "damaged"),
        (b"\x80\x02}]]s.", "damaged"),
        (b"\x80\x02}" + text("a") + b"Nb.", "instruction BUILD"),
        (b"\x80\x02}" + text("a") + b")\x81s.", "instruction NEWOBJ"),
        (b"\x80\x02}0.", "instruction POP"),
        (b"\x80\x02}" + text("a") + b"\x82\x01s.", "instruction EXT1"),
        (b"\x80\x02(iposix\nsystem\n.", "instruction INST"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "instruction SHORT_BINUNICODE"),
        (b"\x80\x02}" + text("a") + b"Pabc\ns.", "instruction PERSID"),
        (b"\x80\x02}" + text("a") + b"\x8b\xff\xff\xff\x7f1s.", "damaged"),
        (b"\x80\x02}" + b"]" * 600_000 + b".", "more than 10000 unfinished values"),
        (b"\x80\x02]" + b"]a" * 300_000 + b".", "more than 250000 instructions"),
    ],
)
def test_a_broken_pickle_is_refused(tmp_path, pickled, words):
    path = saved(tmp_path / "run.pt", {"a": 1})
    assert words in refusal(repack(path, {"data.pkl": pickled}))


# -- tensors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "shape", "stride", "words"),
    [
        (0, (10**9,), (1,), "a reaches outside its storage (1000000000 of 12 elements)"),
        (0, (10**9,), (0,), "a is a tensor whose elements overlap"),
        (10, (3,), (1,), "a reaches outside its storage (13 of 12 elements)"),
        (-1, (3,), (1,), "not a tensor"),
        (5, (3,), (-1,), "not a tensor"),
        (0, (-3,), (1,), "not a tensor"),
        (0, (3, 2), (1,), "not a tensor"),
        (0, (2**62,), (1,), "larger than any memory"),
        (0, (2, 3), (1, 1), "elements overlap"),
        (0, (2.0,), (1,), "damaged"),
        (0, (True,), (1,), "damaged"),
        (0, [2], [1], "damaged"),
    ],
)
def test_a_tensor_must_lie_in_its_storage(tmp_path, limited_refusal, offset, shape, stride, words):
    call = rebuilt(storage_of(torch.arange(12.0)), offset, shape, stride)
    path = saved(tmp_path / "run.pt", {"a": call})
    assert words in limited_refusal("file", path, 64 << 20)


def test_an_ordinary_tensor_made_the_same_way_is_read(tmp_path):
    call = rebuilt(storage_of(torch.arange(12.0)), 1, (2, 3), (6, 2))
    read = safe_file.read(saved(tmp_path / "run.pt", {"a": call}))
    assert read["a"].tolist() == [[1, 3, 5], [7, 9, 11]]


def test_hooks_are_refused(tmp_path):
    call = rebuilt(storage_of(torch.zeros(3)), 0, (3,), (1,), OrderedDict(a=1))
    assert "carries hooks" in refusal(saved(tmp_path / "run.pt", {"a": call}))


def number(value: int) -> bytes:
    return b"J" + value.to_bytes(4, "little", signed=True)


@pytest.mark.parametrize("claimed", [0, 2, 4, 2**31 - 1, -3])
def test_a_storage_that_claims_another_size_is_refused(tmp_path, claimed):
    path = saved(tmp_path / "run.pt", {"a": torch.zeros(3)})
    honest = text("cpu") + b"q\x06K\x03t"
    repack(path, {"data.pkl": lambda pickled: pickled.replace(honest, text("cpu") + number(claimed) + b"t")})
    assert ("damaged" if claimed < 0 else f"12 bytes of data, expected {4 * claimed}") in refusal(path)


@pytest.mark.parametrize(
    ("honest", "other"),
    [(text("storage"), text("savings")), (b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n")],
    ids=["another tag", "another kind"],
)
def test_only_a_storage_is_taken_for_one(tmp_path, honest, other):
    path = saved(tmp_path / "run.pt", {"a": torch.zeros(3)})
    repack(path, {"data.pkl": lambda pickled: pickled.replace(honest, other)})
    assert "damaged" in refusal(path)


def test_a_storage_that_is_not_there_is_refused(tmp_path):
    path = saved(tmp_path / "run.pt", {"a": torch.zeros(3)})
    assert refusal(repack(path, {"data/0": None})) == "a has no data in the file"


def test_one_storage_under_many_names_is_refused_where_it_would_fill_memory(tmp_path):
    big = torch.zeros(1000, 1000)
    assert len(safe_file.read(saved(tmp_path / "few.pt", {str(i): big for i in range(3)}))) == 3
    message = refusal(saved(tmp_path / "many.pt", {str(i): big for i in range(50)}))
    assert "share memory" in message


@pytest.mark.parametrize("tag", ["cuda:0", "cuda:7", "mps", "xla:1", "nonsense"])
def test_a_file_saved_on_a_gpu_is_read_on_the_cpu(tmp_path, tag):
    values = torch.arange(5.0)
    path = saved(tmp_path / "run.pt", {"a": values})
    repack(path, {"data.pkl": lambda pickled: pickled.replace(text("cpu"), text(tag))})
    if tag.startswith("cuda") and not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(path, weights_only=True)
    read = safe_file.read(path)["a"]
    assert read.device.type == "cpu"
    assert torch.equal(read, values)
