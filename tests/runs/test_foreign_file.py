"""Checkpoints of other programs: their limits, numbers, masks, byte orders and checksums."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from run_files import repack, saved, text
from safe_file_cases import message_of
from safetensors.torch import save_file

from mechmarkov.safe.foreign_file import ForeignFile, plain_config
from mechmarkov.safe.foreign_file import read as read_foreign
from mechmarkov.safe.pickle_scan import TensorPlan


def plan(room: int, key: str = "0", shape: tuple[int, ...] = (1,), dtype=torch.float32) -> TensorPlan:
    return TensorPlan(str(dtype), key, shape, (1,), 0, room)


def of_storages(tmp_path: Path, *rooms: int, item: int = 4) -> ForeignFile:
    """A file whose storages are only claimed: reading one says that it is not there."""
    return ForeignFile(tmp_path / "gone.pt", {}, {str(key): room * item for key, room in enumerate(rooms)})


def test_weights_take_a_quarter_of_a_gigabyte_at_most(tmp_path):
    room = 2**28 // 4
    at_limit = {"a": plan(room), "same": plan(room)}
    assert message_of(of_storages(tmp_path, room).tensors, at_limit).startswith("is damaged: No such file")
    message = message_of(of_storages(tmp_path, room + 1).tensors, {"a": plan(room + 1)})
    assert message == "its weights take 268435460 bytes, expected at most 268435456: a toy model"
    both = {"a": plan(room), "b": plan(1, "1")}
    assert message_of(of_storages(tmp_path, room, 1).tensors, both) == message


def test_training_steps_are_a_hundred_thousand_at_most(tmp_path):
    def message(count, room):
        file = of_storages(tmp_path, room, item=8)
        return message_of(file.integers, plan(room, shape=(count,), dtype=torch.int64))

    assert message(100_000, 100_000).startswith("is damaged: No such file")
    words = "holds a tensor of torch.int64 [100001], expected a few integers"
    assert message(100_001, 100_001) == words
    assert message(1, 2**25).startswith("is damaged: No such file")
    assert message(1, 2**25 + 1) == "holds a tensor of integers that is part of a far larger one"


def test_a_mask_may_be_of_integers_and_infinite(tmp_path):
    data = {"mask": torch.tensor([0, -7]), "open": torch.tensor([0.0, -torch.inf])}
    file = read_foreign(saved(tmp_path / "model.pt", data))
    tensors = file.tensors(file.content, masks=["mask", "open"])
    assert [value.tolist() for value in tensors.values()] == [[0.0, -7.0], [0.0, -torch.inf]]
    assert {value.dtype for value in tensors.values()} == {torch.float32}
    said = message_of(file.tensors, file.content, ["open"])
    assert said == '"mask" is a tensor of torch.int64, expected floating point'
    assert message_of(file.tensors, file.content, ["mask"]) == '"open" holds NaN or infinite values'


def test_a_config_has_a_thousand_entries_at_most():
    def config(count):
        return {f"a{i}": i for i in range(count)}

    assert plain_config(config(1000), "config") == config(1000)
    words = "config has 1001 entries, expected at most 1000"
    assert message_of(plain_config, config(1001), "config") == words
    assert plain_config({"a": config(1000), "b": (1,) * 1000}, "config")["b"] == [1] * 1000
    longer = {"a": config(1001), "b": (1,) * 1001}
    assert plain_config(longer, "config") == {"a": "a nested dict", "b": "a nested tuple"}


def test_a_loose_config_tells_what_it_leaves_out():
    value = {"a": {1}, 2: "b", "c": [{3}], "d": None}
    assert plain_config(value, "config", is_loose=True) == {"a": "a set", "c": "a nested list", "d": None}
    assert message_of(plain_config, {"a": {1}}, "config") == "config.a is a set, expected a plain value"
    assert message_of(plain_config, {2: 1}, "config") == "config has a key that is an int, expected names"
    assert message_of(plain_config, [], "config") == "config is a list, expected a dict of plain values"


SIZES = {"f": "248", "i": "1248", "u": "1248", "b": "1"}
NUMBERS = [f"{kind}{size}" for kind, sizes in SIZES.items() for size in sizes]


@pytest.mark.parametrize("code", NUMBERS)
def test_numpy_numbers_are_read(tmp_path, code):
    value = np.frombuffer(b"\x01" * np.dtype(code).itemsize, code)[0]
    file = read_foreign(saved(tmp_path / "model.pt", {"a": value}))
    assert file.content == {"a": value.item()}
    assert type(file.content["a"]) is type(value.item())


def test_numbers_of_another_byte_order_are_refused(tmp_path):
    path = saved(tmp_path / "model.pt", {"a": np.float64(0.5)})
    repack(path, {"data.pkl": lambda old: old.replace(text("<"), text(">"))})
    assert message_of(read_foreign, path) == "it holds numpy numbers of another byte order"
    path = saved(tmp_path / "model.pt", {"a": torch.ones(2)})
    repack(path, {"byteorder": b"big"})
    file = read_foreign(path)
    assert message_of(file.tensors, file.content) == "was written on a machine of another byte order"


def test_a_changed_bit_is_told_by_its_checksum(tmp_path):
    values = torch.arange(1.0, 9.0)
    path = saved(tmp_path / "model.pt", {"a": values})
    raw = bytearray(path.read_bytes())
    raw[raw.index(values.numpy().tobytes())] ^= 1
    path.write_bytes(raw)
    file = read_foreign(path)
    assert message_of(file.tensors, file.content) == 'is damaged: wrong checksum of "model/data/0"'


def safetensors_file(path: Path, header: bytes, data: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_safetensors_are_told_by_their_beginning(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    named = safetensors_file(tmp_path / "weights.bin", header, struct.pack("<f", 0.5))
    file = read_foreign(named)
    assert (file.is_safetensors, file.tensors(file.content)["a"].tolist()) == (True, [0.5])
    assert read_foreign(safetensors_file(tmp_path / "none.bin", b"{}")).content == {}
    claims_more = named.read_bytes()[:8] + header[:-1]
    named.write_bytes(claims_more)
    assert "is not a file written by torch.save" in message_of(read_foreign, named)


def test_safetensors_of_every_type_are_planned(tmp_path):
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    kinds += [torch.int16, torch.int8, torch.uint8, torch.bool]
    tensors = {str(kind): torch.ones(2, 3).to(kind) for kind in kinds}
    save_file(tensors, tmp_path / "w.safetensors", {"a": "b"})
    file = read_foreign(tmp_path / "w.safetensors")
    assert {name: one.dtype for name, one in file.content.items()} == {str(kind): str(kind) for kind in kinds}
    read = {(one.shape, one.stride, one.offset, one.room) for one in file.content.values()}
    assert read == {((2, 3), (3, 1), 0, 6)}
    assert file.sizes == {str(kind): 6 * kind.itemsize for kind in kinds}
    assert (file.notes, file.types["torch.bfloat16"]) == ({"a": "b"}, "BF16")


@pytest.mark.parametrize("name", ["torch FloatStorage", "numpy dtype", "_codecs encode"])
def test_a_call_of_nothing_makes_nothing(tmp_path, name):
    path = saved(tmp_path / "model.pt", {"a": 1})
    module, attribute = name.split()
    repack(path, {"data.pkl": b"\x80\x02}" + text("a") + f"c{module}\n{attribute}\n)Rs.".encode()})
    assert "its pickle is damaged" in message_of(read_foreign, path)


@pytest.mark.parametrize(("name", "made"), [("Counter", {}), ("defaultdict", {}), ("OrderedDict", {})])
def test_an_empty_mapping_is_a_dict(tmp_path, name, made):
    path = saved(tmp_path / "model.pt", {"a": 1})
    repack(path, {"data.pkl": b"\x80\x02}" + text("a") + f"ccollections\n{name}\n)Rs.".encode()})
    assert read_foreign(path).content == {"a": made}
