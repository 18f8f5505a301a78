"""A folder for results has one owner at a time: a lock that says whose it is and ends with its process."""

import json
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import printable

try:
    import fcntl
except ImportError:  # Windows: there nobody is told of another
    fcntl = None  # type: ignore[assignment]

NAME = ".lock.tmp"  # hidden and temporary, as all that a killed process leaves
MOST_BYTES = 1000  # of what it says
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
_ours: set[str] = set()  # a lock is the process's: its threads, and calls within a call, are told apart here


@contextmanager
def owned(folder: Path, error: type[Exception]) -> Iterator[None]:
    """Hold a folder for results during the block, in which nobody else then writes.

    The system lets go of the lock when its process ends, however that comes about: what is left of a killed
    one is taken over, and removed in the end.

    Args:
        folder: The folder, which exists.
        error: The class of the error.

    Raises:
        Exception: Of the given class, in one line: another process, or this one elsewhere, is the owner, or
            the folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name, owned(Path(name), RuntimeError):
        ...     with owned(Path(name), RuntimeError):  # doctest: +ELLIPSIS
        ...         pass
        Traceback (most recent call last):
        RuntimeError: ... is in use by process ...
    """
    place = os.path.realpath(folder)
    if fcntl is None:
        yield
        return
    if place in _ours:
        raise error(f"{folder} {_in_use({'process': os.getpid(), 'host': platform.node()})}")
    try:
        descriptor = _locked(folder / NAME)
    except OSError as why:
        if os.path.lexists(lock := folder / NAME):
            raise error(f"{lock}: {why.strerror}, expected a lock of mechmarkov, a file: delete it") from None
        raise error(f"{folder}: {why.strerror}, expected a folder for results") from None
    if isinstance(descriptor, dict):
        raise error(f"{folder} {_in_use(descriptor)}")
    _ours.add(place)
    try:
        yield
    finally:
        _ours.discard(place)
        with suppress(OSError):  # while it is locked: the next one makes a file of its own
            (folder / NAME).unlink()
        os.close(descriptor)


def clear_lock(folder: Path) -> None:
    """Remove what a killed owner left, where nobody is one."""
    if (folder / NAME).exists():
        with suppress(RunFileError), owned(folder, RunFileError):
            pass


def _locked(path: Path) -> int | dict[str, object]:
    """The open and locked file, which now says who we are, or what it says of its owner.

    A link is not followed: what it leads to would be overwritten.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | NO_LINK, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            said = os.read(descriptor, MOST_BYTES)
            os.close(descriptor)
            return _said(said)
        except OSError as why:
            warnings.warn(f"{path.parent}: two at once are not noticed here ({why.strerror})", stacklevel=4)
            return descriptor
        if _is_there(path, descriptor):
            break
        os.close(descriptor)  # its owner removed it between our opening and locking it
    os.truncate(descriptor, 0)
    os.write(descriptor, json.dumps({"process": os.getpid(), "host": platform.node()}).encode())
    return descriptor


def _is_there(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _said(content: bytes) -> dict[str, object]:
    with suppress(ValueError, RecursionError):
        found = json.loads(content)
        if isinstance(found, dict):
            return found
    return {}


def _in_use(owner: dict[str, object]) -> str:
    who = "another process"
    if "process" in owner:
        who = printable(f"process {owner['process']} on {owner.get('host') or 'this machine'}", 200)
    return f"is in use by {who}: wait until that has ended, or choose another folder"
