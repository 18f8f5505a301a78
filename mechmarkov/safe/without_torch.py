"""Reading a file of plain values and tensors without torch, whose import takes longer than all of it.

What the pickle describes is checked as `mechmarkov.safe.file` does. Only an archive as torch.save writes it,
to the last bit of its directory and with right checksums, is then read. What torch makes of another is for
torch to say.
"""

import math
import mmap
import struct
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from mechmarkov.safe.file import (
    check_loaded,
    check_pickle,
    check_regular,
    naming,
    place_of,
    read_archive,
    refusing,
)
from mechmarkov.safe.folder import weights_by_torch
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import SAFETENSORS, FileTensor

ENTRY_BYTES = 46  # of the same in the directory
# What torch.save writes of itself, and by which torch.load reads the rest.
RECORDS = {"byteorder": b"little", "version": b"3\n", ".format_version": b"1", ".storage_alignment": b"64"}
IDENTITY = ".data/serialization_id"
# The same of every entry in the directory that it writes.
ENTRY = {
    "date_time": (1980, 0, 0, 0, 0, 0),
    **dict.fromkeys(("create_version", "create_system", "extract_version", "reserved", "volume"), 0),
    **dict.fromkeys(("compress_type", "internal_attr", "external_attr"), 0),
    **dict.fromkeys(("extra", "comment"), b""),
}
UNICODE, SIZES_BEHIND = 0x800, 0x8  # flags of an entry: of its name; where its sizes stand, if it has any
ARRAY_TYPES = {"torch.bfloat16": "uint16"}  # where numpy has another name


def read(path: Path, tensors_in: Collection[str]) -> dict[str, Any] | None:
    """Returns the dict in a file as `mechmarkov.safe.file.read` does, with a `FileTensor` for each tensor.

    Its checksums are right. It is None where torch is needed.

    Args:
        path: The file.
        tensors_in: The keys below which there may be tensors; for others torch is needed.

    Raises:
        RunFileError: As `mechmarkov.safe.file.read`.

    Example:
        >>> import tempfile, torch
        >>> from mechmarkov.safe.file import write
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/data.pt", {"a": torch.ones(2), "b": ["text", 1.5]})
        ...     data = read(Path(folder) / "data.pt", ["a"])
        >>> data["a"].tolist(), data["b"]
        ([1.0, 1.0], ['text', 1.5])
    """
    with naming(path), refusing("cannot be read", OSError):
        size = check_regular(path)
        pickled, sizes = read_archive(path, size)
        planned = check_pickle(pickled, sizes)
        if any(_holds_tensors(value) for key, value in planned.items() if key not in tensors_in):
            return None
        places = _places(path, sizes)
        if places is None:
            return None
        with open(path, "rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # open while an array shows it
        return check_loaded(_filled(planned, whole, places), size)


def weights(path: Path) -> dict[str, Any]:
    """Returns the tensors in a safetensors file, each as a `FileTensor`; torch reads other types of numbers.

    Raises:
        SafetensorError: It is not such a file.
    """
    from safetensors import deserialize

    parts = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    if not all(part["dtype"] in SAFETENSORS for part in parts.values()):
        return weights_by_torch(path)
    return {name: _of_bytes(SAFETENSORS[part["dtype"]], **part) for name, part in parts.items()}


def array_type(dtype: str) -> np.dtype:
    """Returns numpy's type of the numbers in a file.

    Example:
        >>> array_type("torch.int64"), array_type("torch.bool")
        (dtype('int64'), dtype('bool'))
    """
    return np.dtype(ARRAY_TYPES.get(dtype, dtype.removeprefix("torch.")))


def _places(path: Path, sizes: Collection[str]) -> dict[str, int] | None:
    """Returns where each storage begins; None where the archive is not as torch.save writes it."""
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
            records = {name: archive.read(entries[name]) for name in RECORDS}
            is_usual = records == RECORDS and archive.read(entries[IDENTITY]).isdigit()
            file.seek(archive.start_dir)
            if not (is_usual and _is_directory(file.read(), archive) and archive.testzip() is None):
                return None
            return {key: place_of(file, entries[f"data/{key}"]) for key in sizes}
    except Exception:  # zipfile raises many kinds on a broken file; torch says what is wrong
        return None


def _is_directory(content: bytes, archive: zipfile.ZipFile) -> bool:
    """Returns whether the directory, to the end of the file, is what torch.save writes for its entries."""
    entries, start = archive.infolist(), archive.start_dir
    n, end = len(entries), 0
    for entry in entries:
        if any(getattr(entry, key) != value for key, value in ENTRY.items()):
            return False
        name = entry.orig_filename.encode()
        is_same = content[end + 28 : end + 34] == struct.pack("<HHH", len(name), 0, 0)
        if not is_same or entry.flag_bits != (UNICODE | SIZES_BEHIND if entry.file_size else UNICODE):
            return False
        end += ENTRY_BYTES + len(name)
    ends = [
        struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x31E, 45, 0, 0, n, n, end, start),
        struct.pack("<4sIQI", b"PK\6\7", 0, start + end, 1),
        struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, n, n, end, start, 0),
    ]
    return content[end:] == b"".join(ends)


def _holds_tensors(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, TensorPlan) or any(map(_holds_tensors, items))


def _filled(value: Any, whole: mmap.mmap, places: dict[str, int]) -> Any:
    """The structure with a `FileTensor` for each plan."""
    if isinstance(value, TensorPlan):
        return FileTensor(value.dtype, _array(value, whole, places[value.key]))
    if isinstance(value, dict):
        return {key: _filled(item, whole, places) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, whole, places) for item in value]
    return value


def _array(plan: TensorPlan, whole: mmap.mmap, place: int) -> np.ndarray:
    kind = array_type(plan.dtype)
    if not math.prod(plan.shape):  # its offset and strides are not checked: nothing is there
        return np.empty(plan.shape, kind)
    strides = [
        step * kind.itemsize if size > 1 else 0 for step, size in zip(plan.stride, plan.shape, strict=True)
    ]
    return np.ndarray(plan.shape, kind, whole, place + plan.offset * kind.itemsize, strides)


def _of_bytes(kind: str, *, data: bytearray, shape: list[int], dtype: str) -> FileTensor:
    del dtype  # as safetensors calls it
    return FileTensor(kind, np.frombuffer(data, array_type(kind)).reshape(shape))
