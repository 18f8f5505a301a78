"""Checkpoints as a trajectory: which files and folders, and the training step of each."""

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mechmarkov.importing.files import folders
from mechmarkov.importing.files.folders import Parts
from mechmarkov.safe import formats
from mechmarkov.safe.file import naming
from mechmarkov.safe.file import printable_path as _name
from mechmarkov.safe.foreign_file import ForeignFile
from mechmarkov.safe.pickle_scan import TensorPlan
from mechmarkov.safe.plain_data import INTEGERS, RunFileError
from mechmarkov.utils.text import listed

MAX_STEP = 1 << 62
STEPS = (
    "global_step", "iter_num", "step", "iteration", "iter", "itr", "it", "step_count", "iter_count",
    "training_step", "train_step", "current_step", "current_iter", "cur_step", "n_step", "n_iter", "n_steps",
    "num_steps", "steps", "iterations", "step_num", "optimizer_step", "update", "num_updates", "n_updates",
)  # fmt: skip
EPOCH = "epoch"  # counts where nothing else does
STEPS_OF_HISTORY = tuple(f"{name}s" for name in (*STEPS, EPOCH))
# Dicts next to the weights that may hold the step.
STATES = ("trainer_state", "trainer", "state", "meta", "metadata", "info", "progress")


SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
MAX_FILES = 100_000
MAX_DEPTH = 4  # of folders in a folder
MAX_NAMED = 12  # in a note
# What training code writes next to a model: optimisers, random states, data of nanoGPT.
COMPANIONS = re.compile(
    r"(optim\w*|sched\w*|lr_sched\w*|scaler\w*|rng_state\w*|random_state\w*|sampler\w*|training_args"
    r"|custom_checkpoint\w*|dataloader\w*)\.[a-z]+|(train|val|valid|test)\.bin|.*_optim_states\.pt"
)
# A folder named by its step, as those of transformers' Trainer, of accelerate, of litgpt and of orbax.
BY_STEP = re.compile(r"(?:(checkpoint|ckpt|global_step|step|epoch|iter)[-_=]?)?([0-9]{1,15})", re.I)
TIMES = (
    "step", "steps", "iter", "iters", "itr", "iteration", "iterations", "global_step", "checkpoint", "ckpt",
)  # fmt: skip
EPOCHS = ("epoch", "epochs", "ep")
NUMBER = re.compile(r"([A-Za-z]*)[-_= ]*([0-9]+)")


def step_of(around: Iterable[Mapping[Any, Any]], file: ForeignFile | Parts) -> tuple[int | None, str]:
    """Find the training step that the dicts around a model say.

    Args:
        around: The dicts that its weights lie in, from inside out.
        file: The file, which reads a step that is a tensor.

    Returns:
        The step and the name it stands under, of which "epoch" counts last; None and "" where none says one.
    """
    dicts: list[Mapping[Any, Any]] = []
    for one in around:
        dicts += [one, *(one[name] for name in STATES if type(one.get(name)) is dict)]
    for names in (STEPS, (EPOCH,)):
        for one in dicts:
            for name in names:
                if (step := _number(one.get(name), file)) is not None:
                    return step, name
    return None, ""


def steps_of_history(
    around: Iterable[Mapping[Any, Any]], length: int, file: ForeignFile | Parts
) -> tuple[tuple[int, ...] | None, str]:
    """Find the training steps that a list next to several checkpoints says, one for each.

    Args:
        around: The dicts that the checkpoints lie in, from inside out.
        length: How many checkpoints there are.
        file: The file, which reads steps that are tensors.

    Returns:
        The steps and the name they stand under; None and "" where no list says them.
    """
    for one in around:
        for name in (*STEPS_OF_HISTORY, *STEPS, EPOCH):
            value: Any = one.get(name)
            if type(value) is TensorPlan and value.dtype in INTEGERS and value.shape == (length,):
                value = file.integers(value)
            if isinstance(value, list | tuple) and len(value) == length:
                steps = [_number(item, file) for item in value]
                if None not in steps:
                    return tuple(step for step in steps if step is not None), name
    return None, ""


def _number(value: Any, file: ForeignFile | Parts) -> int | None:
    if type(value) is TensorPlan and value.dtype in INTEGERS and value.shape in ((), (1,)):
        (value,) = file.integers(value)
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is str and value.isascii() and value.isdecimal():  # safetensors keeps texts only
        value = int(value[:19])
    return value if type(value) is int and 0 <= value < MAX_STEP else None


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints that are meant.

    Attributes:
        paths: The paths of files and folders, in the order of the arguments.
        notes: What the user should know of it, a line each.
        steps: The steps of folders that are named by them.
    """

    paths: list[Path]
    notes: tuple[str, ...] = ()
    steps: Mapping[Path, int] = field(default_factory=dict)

    def __add__(self, other: "Checkpoints") -> "Checkpoints":
        """Both, each note once."""
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        return Checkpoints([*self.paths, *other.paths], notes, {**self.steps, **other.steps})


def checkpoints(arguments: Sequence[str | os.PathLike[str]]) -> Checkpoints:
    """Find the checkpoints that files, folders and patterns name; `~` is the home folder.

    A folder of one model (`model.safetensors` or `pytorch_model.bin`, in one piece or in parts) is one
    checkpoint. Where folders named by a step lie in a folder, they are its checkpoints, whatever lies next to
    them. Any other folder stands for the checkpoint files in it, or for the one folder inside that has some.

    Raises:
        RunFileError: For a pattern or a folder without any, and for a folder of several trainings.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (0, 100):
        ...         _ = (Path(folder) / f"step{step}.pt").write_bytes(b"")
        ...     [path.name for path in checkpoints([folder]).paths]
        ['step0.pt', 'step100.pt']
    """
    chosen = Checkpoints([])
    for argument in map(str, arguments):
        path = Path(os.path.expanduser(argument))
        if path.is_dir():
            chosen += _inside(path)
        elif not path.exists() and glob.has_magic(argument):
            chosen += _matching(path)
        else:
            chosen += Checkpoints([path])
    if not chosen.paths:
        raise RunFileError('no file is given, expected at least one, such as ["ckpt.pt"]')
    if len(chosen.paths) > MAX_FILES:
        raise RunFileError(f"{len(chosen.paths)} files are given, expected at most {MAX_FILES}")
    return chosen


def _matching(pattern: Path) -> Checkpoints:
    """Returns what a pattern stands for; a folder that it matches stands for what is in it."""
    matching = [Path(name) for name in sorted(glob.iglob(str(pattern)))]
    if not matching:
        raise RunFileError(f"{_name(pattern)}: no file matches")
    paths = [path for path in matching if path.is_dir()] + _files(matching) or matching
    by_step = {path: one for path in paths if (one := _of_step(path)) is not None}
    matched = _by_step(by_step)
    for path in paths:
        if path not in by_step:
            matched += _inside(path) if path.is_dir() else Checkpoints([path])
    return matched


def _inside(folder: Path, depth: int = 0) -> Checkpoints:
    """The checkpoints that a folder stands for.

    Raises:
        RunFileError: It has none, or those of several trainings.
    """
    entries = sorted(folder.iterdir())
    by_step = {path: one for path in entries if (one := _of_step(path)) is not None}
    if by_step:
        return _by_step(by_step) + Checkpoints(
            [], _left_out(folder, entries, [path.name for path in by_step])
        )
    if folders.is_model(folder):
        return Checkpoints([folder])
    with naming(folder):
        formats.check_folder(folder)
    if files := _files(entries):
        return Checkpoints(files)
    runs = [path for path in entries if path.is_dir() and depth < MAX_DEPTH and _holds_any(path, depth + 1)]
    if len(runs) > 1:
        names = listed([_name(run) for run in runs[:MAX_NAMED]])
        raise RunFileError(
            f"{_name(folder)}: {len(runs)} folders in it hold checkpoints: give one, of {names}"
        )
    if not runs:
        if files := [path for path in entries if path.suffix in formats.FOREIGN_SUFFIXES]:
            return Checkpoints(files[:1])  # reading it says what it is
        raise RunFileError(f"{_name(folder)}: holds no checkpoint: expected {', '.join(SUFFIXES)} files")
    return _inside(runs[0], depth + 1)


def _of_step(path: Path) -> Path | None:
    """The one checkpoint in a folder that is named by its step.

    Raises:
        RunFileError: There are several.
    """
    if not BY_STEP.fullmatch(path.name) or not path.is_dir():
        return None
    if folders.is_model(path):
        return path
    with naming(path):
        formats.check_folder(path)
    files = _files(sorted(path.iterdir()))
    if len(files) > 1:
        pattern = path.parent / "*" / files[0].name
        names = listed([file.name for file in files[:MAX_NAMED]])
        raise RunFileError(f"{_name(path)}: holds {names}: say which, such as '{_name(pattern)}'")
    return files[0] if files else None


def _by_step(files: Mapping[Path, Path]) -> Checkpoints:
    """The checkpoints of folders that are named by their steps.

    Raises:
        RunFileError: Some are named by epochs and some by steps.
    """
    matches = {path: match for path in files if (match := BY_STEP.fullmatch(path.name)) is not None}
    words = {(match[1] or "").lower() for match in matches.values()}
    if words & {*EPOCHS} and words - {*EPOCHS}:
        names = listed([_name(path) for path in [*files][:MAX_NAMED]])
        raise RunFileError(f"{names} count epochs and steps: give those of one kind")
    steps = {files[path]: int(match[2]) for path, match in matches.items()}
    return Checkpoints([*files.values()], (), steps)


def _left_out(folder: Path, entries: Sequence[Path], names: list[str]) -> tuple[str, ...]:
    """Returns what is said of a folder whose checkpoints are in folders with these names."""
    if len(names) > MAX_NAMED:
        names = [*names[: MAX_NAMED - 1], f"{len(names) - MAX_NAMED + 1} more"]
    notes = [f"checkpoints of {_name(folder)}: {listed(names)}"]
    if beside := [path.name for path in _files(entries)]:
        notes.append(f"left out next to them: {listed(beside[:MAX_NAMED])}")
        if final := [folder / name for name in folders.WEIGHTS if (folder / name).exists()]:
            notes[-1] += f": {_name(final[0])} gives the model in it"
    return tuple(notes)


def _files(entries: Sequence[Path]) -> list[Path]:
    """The checkpoints among files, by their names; those without a suffix where no file has one."""
    files = [path for path in entries if not path.is_dir() and not COMPANIONS.fullmatch(path.name)]
    named = [path for path in files if path.suffix in SUFFIXES or path.name.endswith((".pth.tar", ".pt.tar"))]
    return named or [path for path in files if not path.suffix and _is_archive(path)]


def _is_archive(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _holds_any(folder: Path, depth: int) -> bool:
    entries = list(folder.iterdir())
    if folders.is_model(folder) or _files(entries):
        return True
    inner = (path for path in entries if path.is_dir())
    return depth < MAX_DEPTH and any(_holds_any(path, depth + 1) for path in inner)


def steps_of(paths: Sequence[Path], stored: Sequence[int | None]) -> list[int | None]:
    """Tell the training step of each checkpoint: the one that is stored in it, or else by its name.

    Where one of them holds none, it is the one number in which the paths differ, or that of their steps where
    they differ in steps and epochs. Of a single path it is the number after a word for a step.

    Args:
        paths: The files.
        stored: The step that each holds, or None.

    Returns:
        A step for each; None where nothing tells.

    Raises:
        RunFileError: If several paths have no such number or differ in several.

    Example:
        >>> steps_of([Path("seed3_step100.pt"), Path("seed3_step20.pt")], [None, None])
        [100, 20]
        >>> steps_of([Path("checkpoint-500")], [None]), steps_of([Path("model2.pt")], [None])
        ([500], [None])
    """
    known = [step for step in stored if step is not None]
    if len(known) == len(paths):
        return [*known]
    if len(paths) == 1:
        return [_named_step(paths[0])]
    return [*_numbered(paths)]


def _named_step(path: Path) -> int | None:
    for name in (
        path.name.removesuffix(path.suffix) if path.suffix in SUFFIXES else path.name,
        path.parent.name,
    ):
        numbers = {word.lower(): int(digits[:18]) for word, digits in NUMBER.findall(name)}
        for word in (*TIMES, *EPOCHS):
            if word in numbers:
                return numbers[word]
    return None


def _numbered(paths: Sequence[Path]) -> list[int]:
    numbers = [
        NUMBER.findall(str(path.with_suffix("") if path.suffix in SUFFIXES else path)) for path in paths
    ]
    if len({len(numbers_in_name) for numbers_in_name in numbers}) > 1:
        raise RunFileError(
            f"{_name(paths[0])} and others do not hold equally many numbers: give those whose number is "
            f"the training step, in a pattern such as '{_name(paths[0].parent / '*[0-9]')}{paths[0].suffix}'"
        )
    columns = list(zip(*numbers, strict=True))
    varying = [column for column in columns if len({int(digits[:18]) for _, digits in column}) > 1]
    words = [{word.lower() for word, _ in column} for column in varying]
    if any(one & {*EPOCHS} and one - {*EPOCHS} for one in words):
        raise RunFileError(f"{_name(paths[0])} and others count epochs and steps: give those of one kind")
    if len(varying) > 1 and all(one <= {*TIMES, *EPOCHS} for one in words):
        of_steps = [column for column, one in zip(varying, words, strict=True) if one <= {*TIMES}]
        varying = of_steps if len(of_steps) == 1 else varying
    if len(varying) != 1:
        raise RunFileError(
            f"{_name(paths[0])} and others differ in {len(varying)} numbers, expected one, the training step"
        )
    return [int(digits[:18]) for _, digits in varying[0]]
