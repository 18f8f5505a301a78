"""Folders that training code writes: a model in a file or in parts, its config, and what lies next to it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mechmarkov.safe import foreign_file
from mechmarkov.safe.file import check_regular
from mechmarkov.safe.foreign_file import ForeignFile
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import RunFileError, readable
from mechmarkov.utils.text import NAME_CHARACTERS, printable

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # as `save_pretrained` calls them
CONFIG = "config.json"
STATE = "trainer_state.json"  # of transformers' Trainer
PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(\.[a-z]+)")
MAX_JSON_BYTES = 1 << 20
MAX_STATE_BYTES = 1 << 26  # it holds the whole log
MAX_PARTS = 64
INFINITY = {"__float__": "Infinity"}  # JSON has none: transformers writes a dict for it


@dataclass(frozen=True)
class Parts:
    """A model in several files, read as one.

    Attributes:
        content: Every tensor by its name.
        owners: The file of each, by the identity of its plan.
        notes: Texts of safetensors; they are those of the first part.
    """

    content: dict[str, Any]
    owners: Mapping[int, ForeignFile]
    notes: Mapping[str, str]

    def tensors(
        self, plans: Mapping[str, TensorPlan], masks: frozenset[str] = frozenset()
    ) -> dict[str, Tensor]:
        """Read tensors, each from the file that it is in.

        Args:
            plans: Those of `content`, by names of the caller's.
            masks: Those of the names that may hold truth values, integers and infinities.
        """
        by_file: dict[int, dict[str, TensorPlan]] = {}
        for name, plan in plans.items():
            by_file.setdefault(id(self.owners[id(plan)]), {})[name] = plan
        read: dict[str, Tensor] = {}
        for some in by_file.values():
            read |= self.owners[id(next(iter(some.values())))].tensors(some, masks)
        return {name: read[name] for name in plans}

    def integers(self, plan: TensorPlan) -> list[int]:
        """Read the integers in a tensor of `content`."""
        return self.owners[id(plan)].integers(plan)


def is_model(folder: Path) -> bool:
    """Returns whether a folder holds one model, by the names of `save_pretrained` and of accelerate."""
    return any((folder / name).exists() or _parts(folder, name) for name in WEIGHTS)


def open_model(folder: Path) -> ForeignFile | Parts:
    """Open the weights in a folder, in one file or several; no tensor is read yet.

    Raises:
        RunFileError: There are none, or some parts of them are missing; and as of `foreign_file.read`.
    """
    for name in WEIGHTS:
        if (folder / name).exists():
            return foreign_file.read(folder / name)
        if parts := _parts(folder, name):
            return _together(folder, parts)
    raise RunFileError(f"holds neither {' nor '.join(WEIGHTS)}: model.save_pretrained(folder) writes one")


def _parts(folder: Path, name: str) -> list[str]:
    """The files that a model of this name is in, by its index, or else by their own names."""
    index = folder / f"{name}.index.json"
    if index.exists():
        weight_map = _json(index, MAX_STATE_BYTES).get("weight_map")
        files = set(weight_map.values()) if type(weight_map) is dict else set()
        if not files or not all(type(file) is str and Path(file).name == file for file in files):
            raise RunFileError(f"{index.name} names no files of this folder as its weight_map")
        return sorted(files)
    stem, _, suffix = name.rpartition(".")
    return sorted(path.name for path in folder.glob(f"{stem}-*-of-*.{suffix}") if PART.fullmatch(path.name))


def _together(folder: Path, names: list[str]) -> Parts:
    if len(names) > MAX_PARTS:
        raise RunFileError(f"holds its weights in {len(names)} files, expected at most {MAX_PARTS}")
    numbered = [PART.fullmatch(name) for name in names]
    for match in numbered:
        if match is not None and int(match[3]) != len(names):
            raise RunFileError(f"holds {len(names)} of the {int(match[3])} files of its weights")
    content: dict[str, Any] = {}
    owners: dict[int, ForeignFile] = {}
    notes: Mapping[str, str] = {}
    for name in names:
        if not (folder / name).exists():
            raise RunFileError(f"has no {printable(name, NAME_CHARACTERS)}, a part of its weights")
        file = foreign_file.read(folder / name)
        if type(file.content) is not dict or not all(type(x) is TensorPlan for x in file.content.values()):
            raise RunFileError(f"{name} holds more than tensors, expected a part of a state dict")
        for weight, plan in file.content.items():
            if weight in content:
                raise RunFileError(f"has the weight {readable(str(weight))} in two files")
            content[weight] = plan
            owners[id(plan)] = file
        notes = notes or file.notes
    return Parts(content, owners, notes)


def beside(folder: Path) -> dict[str, Any]:
    """Returns what lies next to weights, by its name: a config and the state of a training, if there.

    Raises:
        RunFileError: One is not JSON, or the config holds anything but plain values.
    """
    contents: dict[str, Any] = {}
    if (folder / CONFIG).exists():
        contents[CONFIG] = foreign_file.plain_config(_json(folder / CONFIG, MAX_JSON_BYTES), CONFIG)
    if (folder / STATE).exists():
        contents[STATE] = _json(folder / STATE, MAX_STATE_BYTES)
    return contents


def _json(path: Path, most: int) -> dict[str, Any]:
    if check_regular(path) > most:
        raise RunFileError(f"{path.name} has more than {most} bytes")
    try:
        data = json.loads(path.read_bytes(), object_hook=lambda x: math.inf if x == INFINITY else x)
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{path.name} is not JSON: {printable(str(error), 100)}") from error
    if type(data) is not dict:
        raise RunFileError(f"{path.name} is a {type(data).__name__}, expected an object")
    return data
