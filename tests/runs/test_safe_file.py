"""Plain values in, the same plain values out, and nothing else ever comes in."""

import builtins
import math
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import Call, handmade, legacy_pickle, memory_limit, repack, saved, storage_of, text, touch

from mechmarkov.runs import RunFileError, safe_file
from mechmarkov.runs.plain import DTYPES

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
tensors = st.builds(
    lambda dtype, shape, seed: torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(
        dtype
    ),
    st.sampled_from(list(DTYPES)),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 1000),
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), texts, tensors)
plain = st.dictionaries(
    texts,
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def same(a: object, b: object) -> bool:
    """Equal in type and value, bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def refusal(path: Path) -> str:
    """The message of a refusal: one printable line that begins with the path."""
    with pytest.raises(RunFileError) as caught:
        safe_file.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")


@given(plain)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("plain") / "data.pt"
    safe_file.write(path, data)
    assert same(safe_file.read(path), data)
    assert same(torch.load(path, weights_only=True), data)
    safe_file.verify(path)


@given(plain)
@settings(max_examples=40, deadline=None)
def test_what_torch_saves_is_read(tmp_path_factory, data):
    path = saved(tmp_path_factory.mktemp("plain") / "data.pt", data)
    assert same(safe_file.read(path), data)


def test_views_shared_and_strided_tensors_are_read_and_written_apart(tmp_path):
    base = torch.arange(24.0).view(4, 6)
    row = [0.5, 0.5]
    data = {
        "a": base,
        "same": base,
        "column": base[:, 1],
        "t": base.T,
        "half": base[::2, 1::2],
        "P": [row, row],
    }
    data["gradient"] = torch.ones(2, requires_grad=True) * 3
    for path in (saved(tmp_path / "torch.pt", data), tmp_path / "ours.pt"):
        if path.name == "ours.pt":
            safe_file.write(path, data)
        read = safe_file.read(path)
        assert all(torch.equal(read[key], data[key]) for key in data if key != "P")
        assert read["P"] == [row, row]
    assert len({read[key].data_ptr() for key in ("a", "same")}) == 2
    assert all(read[key].is_contiguous() and not read[key].requires_grad for key in data if key != "P")


def test_reading_copies_nothing(tmp_path):
    """The tensors are windows into the file: what is written there later shows in them."""
    values = torch.arange(100.0)
    path = saved(tmp_path / "run.pt", {"a": values})
    read = safe_file.read(path)["a"]
    at = path.read_bytes().index(values.numpy().tobytes())
    with open(path, "r+b") as file:
        file.seek(at)
        file.write((2 * values).numpy().tobytes())
    assert torch.equal(read, 2 * values)


FOREIGN = {
    "tuple": ((1, 2), "is a tuple"),
    "set": ({1, 2}, "is a set"),
    "bytes": (b"abc", "is bytes"),
    "bytearray": (bytearray(b"abc"), "is a bytearray"),
    "complex": (1j, "is a complex number"),
    "numpy number": (np.float64(0.5), "is a numpy"),
    "numpy array": (np.zeros(3), "is a numpy"),
    "OrderedDict": (OrderedDict(a=1), "is an OrderedDict"),
    "Counter": (Counter("aab"), "refers to collections.Counter"),
    "Parameter": (torch.nn.Parameter(torch.zeros(3)), "is a Parameter"),
    "sparse": (torch.eye(3).to_sparse(), "is a sparse tensor"),
    "csr": (torch.eye(3).to_sparse_coo(), "is a sparse tensor"),
    "complex tensor": (torch.zeros(3, dtype=torch.complex64), "is a complex tensor"),
    "meta tensor": (torch.zeros(3, device="meta"), "_rebuild_meta_tensor_no_storage"),
    "expanded": (torch.zeros(1).expand(5), "elements overlap"),
    "overlapping": (torch.arange(9.0).as_strided((3, 3), (2, 1)), "elements overlap"),
    "float8": (torch.zeros(3, dtype=torch.float8_e4m3fn), "_rebuild_tensor"),
    "dtype": (torch.float32, "refers to torch.float32"),
    "size": (torch.Size([1]), "refers to torch.Size"),
    "device": (torch.device("cpu"), "refers to torch.device"),
    "path": (Path("/x"), "refers to pathlib"),
    "large integer": (2**64, "integer of 65 bits"),
    "lone surrogate": ("\ud800", "not valid unicode"),
    "module": (torch.nn.Linear(2, 2), "refers to torch.nn.modules.linear.Linear"),
    "function": (len, "refers to __builtin__.len"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_not_plain_is_named_by_its_place(tmp_path, case):
    value, words = FOREIGN[case]
    data = {"states": {"embed.W_E": [0.5, value]}}
    message = refusal(saved(tmp_path / "run.pt", data))
    assert message.startswith('states["embed.W_E"][1]')
    assert words in message
    with pytest.raises(RunFileError, match=r'states\["embed.W_E"\]\[1\] (is|refers|reaches)'):
        safe_file.write(tmp_path / "written.pt", data)
    assert os.listdir(tmp_path) == ["run.pt"]


def test_a_quantised_tensor_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="quantiz"):
        quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    assert refusal(saved(tmp_path / "run.pt", {"a": quantised})).startswith("a is a quantised tensor")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({1: 2}, "it has a key that is an int"),
        ({"a": {(1, 2): 3}}, "a has a key that is a tuple"),
        ({"a\nb": {None: 1}}, '"a\\nb" has a key that is None'),
        ({"a": {"\ud800": 1}}, "a key of a is not valid unicode"),
        ([1, 2], "its content is a list, expected a dict"),
        (torch.zeros(3), "expected a dict"),
        (OrderedDict(a=1), "its content is an OrderedDict, expected a dict"),
    ],
)
def test_keys_are_strings_and_the_whole_is_a_dict(tmp_path, data, words):
    assert words in refusal(saved(tmp_path / "run.pt", data))


def test_keys_are_checked_before_writing(tmp_path):
    with pytest.raises(RunFileError, match="a has a key that is an int, expected str keys"):
        safe_file.write(tmp_path / "run.pt", {"a": {1: 2}})
    assert os.listdir(tmp_path) == []


def test_depth_is_bounded_and_a_structure_that_holds_itself_ends(tmp_path):
    deep: list = []
    for _ in range(50):
        deep = [deep]
    assert "nested deeper" in refusal(saved(tmp_path / "deep.pt", {"a": deep}))
    loop: dict = {}
    loop["a"] = loop
    assert "nested deeper" in refusal(saved(tmp_path / "loop.pt", loop))
    with pytest.raises(RunFileError, match="nested deeper"):
        safe_file.write(tmp_path / "written.pt", loop)
    # Ten lists of ten times the one before, all shared: small in the file, 10^10 values to walk.
    laughs: list = []
    for _ in range(10):
        laughs = [laughs] * 10
    assert "holds more than" in refusal(saved(tmp_path / "laughs.pt", {"a": laughs}))


# -- code --------------------------------------------------------------------------------------------------


def payloads(marker: Path) -> dict[str, object]:
    return {
        "plain": {"a": touch(marker)},
        "nested": {"a": [{"b": [1, [touch(marker)]]}]},
        "key": {touch(marker): 1},
        "whole": touch(marker),
        "eval": {"a": Call(builtins.eval, f"open({str(marker)!r}, 'w')")},
        "state": {"a": Call(OrderedDict, [("a", touch(marker))])},
        "run": {**handmade(), "provenance": {"x": touch(marker)}},
        "in a tensor": {"a": Call(torch._utils._rebuild_tensor_v2, touch(marker), 0, (1,), (1,), False, {})},
        "hooks": {
            "a": Call(
                torch._utils._rebuild_tensor_v2,
                storage_of(torch.zeros(3)),
                0,
                (3,),
                (1,),
                False,
                OrderedDict(a=touch(marker)),
            )
        },
    }


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
        (b"\x80\x02}" + b"]" * 600_000 + b".", "more than 500000 instructions"),
    ],
)
def test_a_broken_pickle_is_refused(tmp_path, pickled, words):
    path = saved(tmp_path / "run.pt", {"a": 1})
    assert words in refusal(repack(path, {"data.pkl": pickled}))


# -- tensors -----------------------------------------------------------------------------------------------


def rebuilt(storage: object, offset: object, shape: object, stride: object, hooks: object = None) -> Call:
    hooks = OrderedDict() if hooks is None else hooks
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, stride, False, hooks)


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
def test_a_tensor_must_lie_in_its_storage(tmp_path, offset, shape, stride, words):
    call = rebuilt(storage_of(torch.arange(12.0)), offset, shape, stride)
    path = saved(tmp_path / "run.pt", {"a": call})
    with memory_limit(64 << 20):
        assert words in refusal(path)


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


# -- the archive -------------------------------------------------------------------------------------------


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


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_refused_or_read_as_it_was(tmp_path_factory, good, data):
    """Bits flipped, pieces cut out or doubled: what is read is right, or there is one line."""
    path = tmp_path_factory.mktemp("damaged") / "run.pt"
    broken = bytearray(good)
    at = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "double", "zero"]))
    length = data.draw(st.integers(1, 64))
    if kind == "flip":
        broken[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del broken[at : at + length]
    elif kind == "double":
        broken[at:at] = broken[at : at + length]
    else:
        broken[at : at + length] = bytes(len(broken[at : at + length]))
    path.write_bytes(broken)
    refused, read = "", None
    try:
        read = safe_file.read(path)
        safe_file.verify(path)
    except RunFileError as error:
        refused = str(error)
    assert refused.isprintable()
    assert refused.startswith(f"{path}: ") if refused else same(read, handmade())


def test_a_flipped_bit_among_the_weights_is_found(tmp_path, good):
    path = tmp_path / "run.pt"
    weights = handmade()["states"]["embed.W_E"].numpy().tobytes()
    at = good.index(weights)
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    safe_file.read(path)
    with pytest.raises(RunFileError, match=r"is damaged: wrong checksum of \"run/data/"):
        safe_file.verify(path)


def test_a_compressed_bomb_is_refused_before_it_unfolds(tmp_path):
    path = saved(tmp_path / "run.pt", {"a": 1})
    repack(path, {"data/0": bytes(200 << 20)}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    with memory_limit(64 << 20):
        assert "compressed" in refusal(path)


def test_sizes_beyond_the_file_are_refused(tmp_path):
    path = saved(tmp_path / "run.pt", {"a": torch.zeros(3)})
    raw = path.read_bytes()
    at = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"run/data/0"))
    sizes = (1 << 30).to_bytes(4, "little") * 2
    path.write_bytes(raw[: at + 20] + sizes + raw[at + 28 :])
    with memory_limit(64 << 20):
        assert "claims more data than the file is long" in refusal(path)


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
    with pytest.raises(RunFileError, match="cannot be read: embedded null byte"):
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
    import resource, sys
    import torch
    from mechmarkov.runs import RunFileError, safe_file
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        safe_file.write(sys.argv[1], {"a": torch.zeros(30_000), "b": [0.5] * 1000})
    except RunFileError as error:
        print(error)
"""


@pytest.mark.parametrize("room", [0, 100, 5_000, 60_000, 125_000])
def test_a_full_disk_leaves_the_old_file(tmp_path, room):
    path = tmp_path / "run.pt"
    safe_file.write(path, {"a": 1})
    before = path.read_bytes()
    program = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(path), str(room)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}: cannot be written: File too large\n"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.pt"]


def test_a_file_has_the_rights_its_owner_asks_for(tmp_path):
    before = os.umask(0o027)
    try:
        safe_file.write(tmp_path / "run.pt", {"a": 1})
    finally:
        os.umask(before)
    assert (tmp_path / "run.pt").stat().st_mode & 0o777 == 0o640
