"""Files that are written whole or not at all."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write to: it takes the place of `path` if the block ends well, else it goes.

    It is on the disk before the old file is replaced. A symbolic link stays one: what it points
    to is replaced.

    Raises:
        OSError: If the folder cannot be written; the old file is then untouched.

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
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = target.parent / f".{target.name[:100]}.{secrets.token_hex(6)}.tmp"
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
