"""Datasets kept on disk: what fresh models measured, for the next run of the same kind.

A file is named by a hash of all that decides its content: data and tensors that the caller names, and the
code of the library. A change of any of them is another file, so that none is out of date. Files are written
whole or not at all. Two processes at once write the same. A file that cannot be read is measured again. The
folder is safe to delete at any time.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import xarray as xr
from torch import Tensor

from mechmarkov.utils.extras import CAN_COMPILE
from mechmarkov.utils.files import replacing

# A folder for the files instead of the user's cache directory, or "off" for none.
VARIABLE = "MECHMARKOV_CACHE"

HEADER = "header"  # the member of a file that holds names, axes and attributes as JSON

UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile)


def folder() -> Path | None:
    """The folder of the files; None where `MECHMARKOV_CACHE` is "off", and for a user without a home."""
    setting = os.environ.get(VARIABLE)
    if setting == "off":
        return None
    if setting:
        return Path(setting)
    usual = Path(platformdirs.user_cache_dir("mechmarkov"))
    return usual if usual.is_absolute() else None


@cache
def code() -> str:
    """A hash of the library's own code, with the versions of what computes for it."""
    digest = hashlib.sha256()
    probes = find_spec("mechmarkov.probes")  # also where nothing has imported them yet
    places = [Path(__file__).parents[1], *(probes.submodule_search_locations or () if probes else ())]
    for root in sorted({Path(place).resolve() for place in places}):
        for path in sorted(root.rglob("*.py")):
            digest.update(path.read_bytes())
    computes = ["torch", "numpy", "scipy", "xarray", *(["numba", "llvmlite"] if CAN_COMPILE else [])]
    versions = [version(name) for name in computes]
    return digest.hexdigest() + "".join(versions)


def name_of(decides: Any, tensors: dict[str, Tensor]) -> str:
    """A file's name: the hash of what decides its content, plain data and tensors, and of the library's code.

    Example:
        >>> name_of(["attention"], {}) == name_of(["attention"], {}) != name_of(["induction"], {})
        True
    """
    digest = hashlib.sha256(json.dumps([code(), decides], sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return f"{digest.hexdigest()}.npz"


def kept(name: str, measure: Callable[[], xr.Dataset]) -> xr.Dataset:
    """The dataset of a file in `folder()`; measured, and written for the next time, where it cannot be read.

    Args:
        name: The file's name, from `name_of`.
        measure: Makes the dataset.
    """
    place = folder()
    if place is None:
        return measure()
    with suppress(*UNREADABLE):
        return read(place / name)
    data = measure()
    with suppress(*UNREADABLE):  # a full or read-only disk: it is measured again the next time
        place.mkdir(parents=True, exist_ok=True)
        with replacing(place / name) as temporary:
            write(temporary, data)
            if not read(temporary).identical(data):
                raise ValueError("the dataset does not read back as it was")
    return data


def write(path: Path, data: xr.Dataset) -> None:
    """Write a dataset as arrays of numbers and texts, and a header: nothing in it is ever executed.

    Args:
        path: The file, as of `np.savez`.
        data: The dataset; its attributes are what JSON can hold.
    """
    header = {
        "attributes": data.attrs,
        "variables": [
            [name, list(variable.dims), variable.attrs, name in data.coords, variable.dtype.kind]
            for name, variable in data.variables.items()
        ],
    }
    arrays = [variable.values for variable in data.variables.values()]
    members: dict[str, Any] = {HEADER: np.array(json.dumps(header))}
    members |= {f"v{i}": x.astype(str) if x.dtype.kind in "OT" else x for i, x in enumerate(arrays)}
    with path.open("wb") as file:
        np.savez(file, **members)


def read(path: Path) -> xr.Dataset:
    """Read the dataset of a file that `write` wrote.

    Raises:
        OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile: It is not there,
            or not one that `write` wrote.
    """
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        header = json.loads(str(file[HEADER]))
        variables: dict[bool, dict[str, Any]] = {True: {}, False: {}}
        for i, (name, dims, attributes, is_coordinate, kind) in enumerate(header["variables"]):
            values = file[f"v{i}"]
            values = values.astype(object) if kind == "O" else values
            variables[is_coordinate][name] = xr.Variable(dims, values, attributes)
    return xr.Dataset(variables[False], variables[True], header["attributes"])
