"""Runs out of files: one file, a folder, the Hub, and a recording that is still being written."""

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from mechmarkov.catalogue import check_example
from mechmarkov.runs import growth, hub, schema
from mechmarkov.runs.run import Run
from mechmarkov.safe import file as safe_file
from mechmarkov.safe import folder as shared_folder
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.errors import path_of
from mechmarkov.utils.text import listed


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run: nothing in it is executed, and everything in it is checked.

    Args:
        path: A run file, a folder with one, a folder that `Run.save_folder` wrote, or `hf://owner/name` on
            the Hugging Face Hub.

    While a `Recorder` writes, or after it was killed, the checkpoints that wait in `run.pt.steps/` are read
    too.

    Raises:
        RunFileError: One line that begins with the path and names what is wrong.
        TypeError: What is not a path.
    """
    if isinstance(path, str) and path.startswith(hub.PREFIX):
        path = hub.fetch(path)
    path = path_of("path", path)
    if (Path(path) / shared_folder.RUN).exists():
        data = shared_folder.read(path)
        with safe_file.naming(Path(path)):
            return Run(**schema.parse(data))
    if Path(path).is_dir():
        with safe_file.naming(Path(path)):
            path = _only_run_file(path)
    # Checkpoints first: one that a recorder merges and removes meanwhile is in the file, which is read last.
    waiting: list[tuple[Path, Run]] = []
    for checkpoint in growth.waiting(path).values():
        try:
            waiting.append((checkpoint, load_file(checkpoint)))
        except RunFileError:
            if checkpoint.exists():
                raise
    kept = [] if waiting and not Path(path).exists() else [load_file(path)]
    held = int(kept[0].steps[-1]) if kept else -1
    for checkpoint, run in waiting:
        if int(run.steps[-1]) > held:  # else the file holds it: a merge was between, or was killed
            kept.append(run)
            _check_same_recording(run, kept[0], checkpoint)
    if len(kept) == 1:
        return kept[0]
    with safe_file.naming(growth.folder_of(path)):
        try:
            return join_recording(kept)
        except ValueError as error:
            raise RunFileError(str(error)) from None


def _only_run_file(folder: Path) -> Path:
    """The one run file of a folder, as `mechmarkov train --out` leaves it."""
    files = sorted(folder.glob("*.pt"))
    if len(files) == 1:
        return files[0]
    held = listed([file.name for file in files]) if files else "no run file"
    raise RunFileError(
        f"is a directory with {held}, expected a file, a directory with one run file (*.pt), or a folder "
        "that `save_folder` wrote"
    )


def load_file(path: str | os.PathLike[str]) -> Run:
    """Read one run file, without the checkpoints that wait next to it; `load` reads both.

    Raises:
        RunFileError: One line that begins with the path and names what is wrong.
    """
    data = safe_file.read(path)
    with safe_file.naming(Path(path)):
        fields = schema.parse(data)
    safe_file.verify(path)
    return Run(**safe_file.own_copy(fields))


def join_recording(runs: Sequence[Run]) -> Run:
    """Join the checkpoints of one recording, by step; `logit_difference` is the largest of theirs.

    Raises:
        ValueError: As of `Run.joined`.
    """
    whole = Run.joined(runs)
    largest = max(run.provenance.get("logit_difference", 0.0) for run in runs)
    return replace(whole, provenance={**whole.provenance, "logit_difference": largest})


def _check_same_recording(run: Run, first: Run, path: Path) -> None:
    """Refuse a checkpoint that lies next to a run file which another recording wrote."""
    ours, theirs = run.provenance.get("recording"), first.provenance.get("recording")
    if ours is None or ours != theirs:
        with safe_file.naming(path):
            raise RunFileError(
                f"provenance.recording is {ours!r}, but the run file next to it has {theirs!r}: "
                "remove the folder or restore its run file"
            )


def check_replaces_run(path: str | os.PathLike[str]) -> None:
    """Refuse to put a run in the place of a file that is none, such as the checkpoint it is made of.

    Raises:
        RunFileError: One line that begins with the path.
    """
    path = Path(path)
    if path.exists():
        try:
            schema.parse(safe_file.read(path))
        except RunFileError:
            with safe_file.naming(path):
                raise RunFileError(
                    "exists and is not a run, expected a new file or a run to replace"
                ) from None


def example(name: str = "walk") -> Run:
    """Load a bundled run: small, trained, ready to be probed. `mm.examples()` has their names.

    Raises:
        ValueError: If there is none of that name.

    Example:
        >>> example("walk").source.title()
        'Circle walk on 6 states, p = 0.5'
    """
    check_example(name)
    with resources.as_file(resources.files("mechmarkov.runs") / "examples" / f"{name}.pt") as path:
        return load(path)
