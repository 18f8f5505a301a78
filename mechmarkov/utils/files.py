"""Files that are written whole or not at all."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the folder of `path`, which replaces `path` if the block ends without an error.

    Its content is on the disk before the old file is replaced. A symbolic link stays one: its target is
    replaced.

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
        _sync(temporary)
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some systems cannot sync a folder
        _sync(target.parent)


def _sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
