"""Reading a file of plain values and tensors without torch, whose import takes longer than all of it.

The checks are those of `mechmarkov.safe.file`. What the pickle describes is checked before anything is read,
and so is where each tensor lies. A `FileTensor` then shows that part of the file.
"""

import math
import mmap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from mechmarkov.safe.file import check_loaded, check_pickle, check_regular, naming, read_archive, refusing
from mechmarkov.safe.file import read as read_by_torch
from mechmarkov.safe.folder import weights_by_torch
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import SAFETENSORS, FileTensor

LOCAL_HEADER_BYTES = 30  # of a zip archive's entry, before its name and its extra field
# Records by which torch reads the others.
AS_WRITTEN = {"byteorder": b"little", "version": b"3\n"}
ARRAY_TYPES = {"torch.bfloat16": "uint16"}  # where numpy has another name


def read(path: Path) -> dict[str, Any]:
    """Returns the dict in a file as `mechmarkov.safe.file.read` does, with a `FileTensor` for each tensor.

    An archive that torch may read in another way is given to torch.

    Raises:
        RunFileError: As `mechmarkov.safe.file.read`.

    Example:
        >>> import tempfile, torch
        >>> from mechmarkov.safe.file import write
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/data.pt", {"a": torch.ones(2), "b": ["text", 1.5]})
        ...     data = read(Path(folder) / "data.pt")
        >>> data["a"].tolist(), data["b"]
        ([1.0, 1.0], ['text', 1.5])
    """
    with naming(path), refusing("cannot be read", OSError):
        size = check_regular(path)
        pickled, sizes = read_archive(path, size)
        planned = check_pickle(pickled, sizes)
        places = _places(path, sizes, size)
        if places is not None:
            with open(path, "rb") as file:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # open while an array shows it
            return check_loaded(_filled(planned, whole, places), size)
    return read_by_torch(path)


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


def _places(path: Path, sizes: dict[str, int], size: int) -> dict[str, int] | None:
    """Returns where each storage begins in the file; None where that is for torch to say."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        for name, content in AS_WRITTEN.items():
            try:
                if archive.read(entries[name]) != content:
                    return None
            except (KeyError, zipfile.BadZipFile):
                return None
        places = {}
        for key in sizes:
            start = entries[f"data/{key}"].header_offset
            file.seek(start)
            head = file.read(LOCAL_HEADER_BYTES)
            lengths = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
            places[key] = start + LOCAL_HEADER_BYTES + sum(lengths)
            if places[key] + sizes[key] > size:
                return None
    return places


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


def _of_bytes(kind: str, *, data: bytes, shape: list[int], dtype: str) -> FileTensor:
    del dtype  # as safetensors calls it
    return FileTensor(kind, np.frombuffer(data, array_type(kind)).reshape(shape))
