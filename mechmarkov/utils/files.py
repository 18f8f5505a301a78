"""Files that are written whole or not at all."""

import contextlib
import errno
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# What stands next to a file until that is whole: ".run.pt.<machine>-<process>-<random>.tmp".
TEMPORARY = re.compile(r"\..+\.(?:([0-9a-f]{8})-(\d+)-[a-z0-9_]{8}|[0-9a-f]{12})\.tmp")
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # said without the name of the file
A_DAY = 86400.0  # after which nobody is still writing
_cleared: set[str] = set()


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path`, which replaces `path` if the block ends without an error.

    Its content is on the disk before the old file is replaced. A symbolic link stays one: its target is
    replaced.

    Raises:
        OSError: If the folder cannot be written, or a device, a pipe or a folder has that name; what is there
            is then untouched.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> note = Path(folder.name) / "note.txt"
        >>> with replacing(note) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> note.read_text(), len(list(note.parent.iterdir()))
        ('whole', 1)
        >>> folder.cleanup()
    """
    target = Path(os.path.realpath(path))
    _check_replaceable(path)
    temporary = target.parent / f"{temporary_prefix(target.name)}{secrets.token_hex(4)}.tmp"
    if str(target.parent) not in _cleared:  # once: a sweep writes thousands of files into one folder
        clear_leftovers(target.parent)
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
    except OSError as error:
        if error.filename is not None or error.errno not in NO_ROOM:
            raise
        raise OSError(error.errno, error.strerror, str(Path(path).parent)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some systems cannot sync a folder
        _sync(target.parent)


def _check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse a folder, and a device or a pipe, which a file would take the place of for everybody."""
    if os.path.isdir(path):
        raise IsADirectoryError(f"{os.fspath(path)} is a folder, expected the name of a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(
            f"{os.fspath(path)} is a device, a pipe or a socket, expected the name of a file"
        )


def temporary_prefix(name: str) -> str:
    """Returns how the name of something temporary begins that will be called so: it says whose it is.

    Example:
        >>> temporary_prefix("run.pt").startswith(".run.pt.")
        True
    """
    return f".{name[:100]}.{_machine()}-{os.getpid()}-"


def clear_leftovers(folder: Path) -> None:
    """Remove from a folder what killed processes were writing: those of this machine, or a day ago."""
    _cleared.add(str(folder))
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = TEMPORARY.fullmatch(entry.name)
            if match is not None and _is_left(match, entry):
                with contextlib.suppress(OSError):
                    remove = shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink
                    remove(entry.path)


def _is_left(match: re.Match[str], entry: os.DirEntry[str]) -> bool:
    machine, process = match.groups()
    if machine == _machine() and process is not None and not _is_alive(int(process)):
        return True
    with contextlib.suppress(OSError):
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > A_DAY
    return False


@cache
def _machine() -> str:
    """A hash of what gives processes their numbers: the machine or, of several containers, this one."""
    numbers = ""
    with contextlib.suppress(OSError):  # of Linux
        numbers = os.readlink("/proc/self/ns/pid")
    return f"{zlib.crc32(f'{platform.node()} {numbers}'.encode()):08x}"


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # there asking would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def check_writable(*paths: str | os.PathLike[str]) -> None:
    """Refuse now, before the work, a file that could not be written after it; nothing is left behind.

    Raises:
        OSError: A path is a folder, or its folder cannot be made or written.
    """
    for path in map(Path, paths):
        _check_replaceable(path)
        if path.is_symlink() and not os.path.isdir(os.path.dirname(os.path.realpath(path))):
            aim = os.readlink(path)
            raise FileNotFoundError(errno.ENOENT, f"a link to {aim}, whose folder does not exist", str(path))
        for folder in (path.parent, *path.parent.parents):
            if folder.is_symlink() and not folder.exists():
                aim = os.readlink(folder)
                raise FileNotFoundError(errno.ENOENT, f"a link to {aim}, which does not exist", str(folder))
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "a file, expected a folder", str(folder))
        made = _make(path.parent)
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                clear_leftovers(path.parent)
        except OSError as error:  # it names a temporary file, of which nobody knows
            raise type(error)(error.errno, error.strerror, str(path)) from None
        finally:
            _remove_empty(made)


@contextlib.contextmanager
def made_folder(folder: Path, error: type[Exception]) -> Iterator[None]:
    """A folder for results; where the block fails, what was made for it and is empty goes again.

    Raises:
        Exception: Of the given class, in one line, where it cannot be made.
    """
    try:
        made = _make(folder)
    except OSError as why:
        raise error(f"{folder}: {why.strerror}, expected a folder for results") from None
    clear_leftovers(folder)
    try:
        yield
    except BaseException:  # an interruption too
        _remove_empty(made)
        raise


def _make(folder: Path) -> list[Path]:
    """Make a folder and those that it is in; returns those that were not there, the innermost first."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        _remove_empty(made)
        raise
    return made


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
