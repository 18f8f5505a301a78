"""Where the checkpoints of a growing run file are kept: each in a file of its own until they are merged.

A file that holds n checkpoints cannot take one more without being written again. Writing it at every
checkpoint would write n² of them. So a checkpoint goes into `run.pt.steps/`, and `run.pt` is written again
only when as many wait there as it holds: 3 n checkpoints are written in all.
"""

import contextlib
import os
import re
from pathlib import Path

CHECKPOINT = re.compile(r"step-(\d{1,18})\.pt")


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Returns the folder next to a run file that holds the checkpoints that are not merged into it yet.

    Example:
        >>> folder_of("out/run.pt").as_posix()
        'out/run.pt.steps'
    """
    path = Path(path)
    return path.parent / f"{path.name}.steps"


def checkpoint_path(path: str | os.PathLike[str], step: int) -> Path:
    """Returns the file next to a run file in which the checkpoint of one training step waits.

    Example:
        >>> checkpoint_path("run.pt", 64).as_posix()
        'run.pt.steps/step-64.pt'
    """
    return folder_of(path) / f"step-{step}.pt"


def waiting(path: str | os.PathLike[str]) -> dict[int, Path]:
    """Returns the files of checkpoints that wait next to a run file, by their steps, ascending.

    Example:
        >>> waiting("no-such-run.pt")
        {}
    """
    try:
        names = os.listdir(folder_of(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = {int(match[1]): folder_of(path) / name for name in names if (match := CHECKPOINT.fullmatch(name))}
    return dict(sorted(found.items()))


def remove(path: str | os.PathLike[str]) -> None:
    """Remove the checkpoints that wait next to a run file, which holds them, and their empty folder."""
    for checkpoint in waiting(path).values():
        checkpoint.unlink()
    with contextlib.suppress(OSError):
        folder_of(path).rmdir()
