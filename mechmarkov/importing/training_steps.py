"""Checkpoints as a trajectory: which files, and the training step of each."""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from mechmarkov.safe.file import printable_path as _name
from mechmarkov.safe.plain_data import RunFileError

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
MAX_FILES = 100_000


def checkpoints(arguments: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The checkpoints that files, folders and patterns name, in the order of the arguments.

    A folder with a `config.json` is one checkpoint (transformers' way); any other folder stands for the
    checkpoints in it.

    Raises:
        RunFileError: For a pattern or a folder without any.
    """
    found: list[Path] = []
    for argument in map(str, arguments):
        path = Path(argument)
        inside, why_empty = [path], ""
        if path.is_dir() and not _is_model(path):
            inside = [
                entry for entry in sorted(path.iterdir()) if entry.suffix in SUFFIXES or _is_model(entry)
            ]
            why_empty = f"holds no checkpoint: expected {', '.join(SUFFIXES)} files"
        elif not path.exists() and glob.has_magic(argument):
            inside, why_empty = [Path(name) for name in sorted(glob.iglob(argument))], "no file matches"
        if not inside:
            raise RunFileError(f"{_name(path)}: {why_empty}")
        found += inside
    if len(found) > MAX_FILES:
        raise RunFileError(f"{len(found)} files are given, expected at most {MAX_FILES}")
    return found


def steps_of(paths: Sequence[Path], stored: Sequence[int | None]) -> list[int]:
    """The training step of each checkpoint: the one that is stored in it.

    Where one of them holds none, it is the one number in which the paths differ.

    Raises:
        RunFileError: If the paths have no such number or differ in several, or two have the same step.

    Example:
        >>> steps_of([Path("seed3_step100.pt"), Path("seed3_step20.pt")], [None, None])
        [100, 20]
    """
    known = [step for step in stored if step is not None]
    steps = known if len(known) == len(paths) else [0] if len(paths) == 1 else _numbered(paths)
    for index, step in enumerate(steps):
        if step in steps[:index]:
            other = paths[steps.index(step)]
            raise RunFileError(f"{_name(paths[index])}: step {step} is also that of {_name(other)}")
    return steps


def _numbered(paths: Sequence[Path]) -> list[int]:
    numbers = [re.findall(r"[0-9]+", str(path.with_suffix(""))) for path in paths]
    if len({len(found) for found in numbers}) > 1:
        raise RunFileError(
            f"{_name(paths[0])} and others do not hold equally many numbers: which is the training step?"
        )
    columns = [[int(digits[:18]) for digits in column] for column in zip(*numbers, strict=True)]
    varying = [column for column in columns if len(set(column)) > 1]
    if len(varying) != 1:
        raise RunFileError(
            f"{_name(paths[0])} and others differ in {len(varying)} numbers, expected one, the training step"
        )
    return varying[0]


def _is_model(entry: Path) -> bool:
    return entry.is_dir() and (entry / "config.json").exists()
