"""Runs out of files: one file, a folder, the Hub, and a recording that is still being written."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mechmarkov.catalogue import example_path
from mechmarkov.runs import growth, schema
from mechmarkov.runs.run import Run
from mechmarkov.runs.stored import file_fields, folder_fields, place_of
from mechmarkov.safe import file as safe_file
from mechmarkov.safe import folder as shared_folder
from mechmarkov.safe.plain_data import RunFileError


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

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     example("walk").save(f"{folder}/run.pt")
        ...     run = load(folder)
        >>> run.source.title()
        'Circle walk on 6 states, p = 0.5'
    """
    path = place_of(path)
    if (path / shared_folder.RUN).exists():
        return Run(**folder_fields(path))
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


def load_file(path: str | os.PathLike[str]) -> Run:
    """Read one run file, without the checkpoints that wait next to it; `load` reads both.

    Raises:
        RunFileError: One line that begins with the path and names what is wrong.
    """
    return Run(**file_fields(path))


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
    """Refuse to put a run in the place of a file that is not one, such as the checkpoint it is made of.

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
    return load(example_path(name))
