"""Reading and writing files of plain values and tensors: nothing executed, nothing half-written.

The format is `torch.save`'s zip archive. A file is checked from the outside in: that it is a regular file,
its zip directory, what its pickle would build, and only then `torch.load(weights_only=True)`, memory-mapped,
so that a file that lies about its size costs no memory.
"""

import contextlib
import io
import math
import os
import stat
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mechmarkov.safe.pickle_scan import TensorPlan, check_plan, scan
from mechmarkov.safe.plain_data import ITEM_BYTES, FileTensor, RunFileError, check_loaded_tensor, check_plain
from mechmarkov.utils.files import replacing
from mechmarkov.utils.lazy_torch import Tensor, is_tensor, torch
from mechmarkov.utils.text import is_utf8, printable, quoted, reason

MAX_PICKLE_BYTES = 8 << 20
MAX_DIRECTORY_BYTES = 4 << 20
MAX_EXPANSION = 4  # memory of the tensors over the size of the file
END_OF_ARCHIVE = b"PK\x05\x06"
END_BYTES = 22
LOCAL_HEADER_BYTES = 30  # of an entry, before its name and its extra field


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the dict in a file of plain values and tensors; nothing in the file is executed.

    Tensors are memory-mapped: take an `own_copy` of what is to be kept.

    Raises:
        RunFileError: One line that begins with the path, for a file that is missing, damaged, or holds
            anything but str-keyed dicts of None, bool, int, float, str, list, dict and dense tensors.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/data.pt", {"a": torch.ones(2), "b": ["text", 1.5]})
        ...     own_copy(read(f"{folder}/data.pt"))
        {'a': tensor([1., 1.]), 'b': ['text', 1.5]}
    """
    path = Path(path)
    with naming(path), refusing("cannot be read", OSError):
        size = check_regular(path)
        check_pickle(*read_archive(path, size))
        return check_loaded(load_weights_only(path), size)


def load_weights_only(path: Path) -> Any:
    """Read a file by `torch.load`, which refuses by itself to import or call anything that a file names.

    Raises:
        RunFileError: If torch cannot read the file.
    """
    # Its warnings concern writers of other formats; whatever matters is checked before and after.
    with refusing("cannot be read by torch.load"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_utf8(str(path)):
            return torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        with open(path, "rb") as file:  # torch opens no other name itself
            return torch.load(file, weights_only=True, map_location="cpu")


def check_loaded(data: Any, file_bytes: int) -> dict[str, Any]:
    """Check the content that torch made of a file, as zipfile and torch may have read it differently.

    Args:
        data: What `load_weights_only` returned, or the same with a `FileTensor` for each tensor.
        file_bytes: The size of the file.

    Raises:
        RunFileError: For a value that is not plain, and for tensors that take over four times the file's
            size.
    """
    total = 0

    def check_tensor(tensor: Tensor | FileTensor, where: str) -> None:
        nonlocal total
        check_loaded_tensor(tensor, where)
        total += math.prod(tensor.shape) * ITEM_BYTES[str(tensor.dtype)]
        if total > MAX_EXPANSION * file_bytes:
            raise RunFileError(f"its tensors share memory and would take over {MAX_EXPANSION} times the file")

    check_plain(data, check_tensor)
    return data


def verify(path: str | os.PathLike[str]) -> None:
    """Compare the data of a file that `read` accepted with the archive's checksums.

    This reads the whole file, which `read` does not: call it once the shapes make sense.

    Raises:
        RunFileError: If a bit is not what was written.
    """
    path = Path(path)
    with naming(path):
        with refusing("is damaged"), zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise RunFileError(f"is damaged: wrong checksum of {quoted(damaged)}")


def to_bytes(data: dict[str, Any]) -> bytes:
    """Returns the content of the file that `write` writes.

    Raises:
        RunFileError: One line, for a value that may not be stored.
    """
    check_plain(data, check_loaded_tensor)
    content = io.BytesIO()
    torch.save(own_copy(data), content)
    return content.getvalue()


def write(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    """Write a dict of plain values and tensors; an existing file is replaced whole or not at all.

    Tensors are stored on the CPU, contiguous and without gradients, whatever they are in `data`.

    Raises:
        RunFileError: One line that begins with the path, for a value that may not be stored (named by its
            key path) or a place that cannot be written; a file that was there is then untouched.
    """
    path = Path(path)
    with naming(path):
        check_plain(data, check_loaded_tensor)
        _check_target(Path(os.path.realpath(path)))
        try:
            with replacing(path) as temporary, open(temporary, "xb") as file:
                torch.save(own_copy(data), file)
        except (OSError, RuntimeError) as error:
            # torch.save reports a full disk as a RuntimeError while it handles the OSError.
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            raise RunFileError(f"cannot be written: {_reason(cause)}") from error


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path in front of the message of a `RunFileError` in the block.

    Example:
        >>> with naming(Path("run.pt")):
        ...     raise RunFileError("is empty")
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: run.pt: is empty
    """
    try:
        yield
    except RunFileError as error:
        raise RunFileError(f"{printable_path(path)}: {error}") from error.__cause__


def printable_path(path: Path) -> str:
    """Returns a path as part of a one-line message: without control characters, 200 characters at most."""
    return printable(str(path), 200)


@contextlib.contextmanager
def refusing(what: str, kinds: type[Exception] | tuple[type[Exception], ...] = Exception) -> Iterator[None]:
    """Turn an error in the block into a `RunFileError` that says what failed and why.

    Args:
        what: The beginning of the message.
        kinds: The kinds of errors; by default any, as zipfile and torch raise many kinds on a broken
            file, and document few.

    Example:
        >>> with refusing("is damaged", ValueError):
        ...     int("x")
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: is damaged: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except RunFileError:
        raise
    except kinds as error:
        raise RunFileError(f"{what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return printable(reason(error), 150)


def check_regular(path: Path) -> int:
    """Returns the size in bytes of a regular file (or of one behind a link).

    Raises:
        RunFileError: It cannot be read, is a directory, or neither of the two.
    """
    with refusing("cannot be read", (OSError, ValueError)):
        status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise RunFileError("is a directory, expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise RunFileError("is not a regular file")
    return status.st_size


def read_archive(
    path: Path, size: int, check_names: Callable[[Collection[str]], None] | None = None
) -> tuple[bytes, dict[str, int]]:
    """Returns the pickle of a `torch.save` archive and each storage's size in bytes, by its name.

    The directory is checked. The pickle is neither run nor judged: give both results to `check_pickle`.

    Args:
        path: The file.
        size: Its exact length in bytes, `path.stat().st_size`.
        check_names: Is given the names in the archive, and raises to refuse it.

    Raises:
        RunFileError: If it cannot be read, or is not a whole, uncompressed archive of torch.save.
    """
    with refusing("cannot be read", OSError):
        file = open(path, "rb")  # noqa: SIM115 - an error on opening is not damage
    with file:
        if file.read(4) != b"PK\x03\x04":
            raise RunFileError("is not a file written by torch.save" if size else "is empty")
        _check_end(file, size)
        with refusing("is damaged"), zipfile.ZipFile(file) as archive:
            if check_names is not None:
                check_names(archive.namelist())
            return _check_directory(archive, size)


def _check_end(file: BinaryIO, size: int) -> None:
    """The archive must end where the file does, and its directory must be of a sensible size."""
    file.seek(max(0, size - END_BYTES))
    tail = file.read(END_BYTES)
    if not tail.startswith(END_OF_ARCHIVE) or tail[-2:] != b"\0\0":
        raise RunFileError("is truncated or damaged: it does not end as a zip archive does")
    if int.from_bytes(tail[12:16], "little") > MAX_DIRECTORY_BYTES:
        raise RunFileError(f"has a zip directory of more than {MAX_DIRECTORY_BYTES} bytes")


def _check_directory(archive: zipfile.ZipFile, size: int) -> tuple[bytes, dict[str, int]]:
    entries = archive.infolist()
    folders = {entry.filename.partition("/")[0] for entry in entries}
    if len(folders) != 1:
        raise RunFileError(
            f"has {len(folders)} top folders in its archive, expected one, as torch.save writes"
        )
    if folders & {"", ".", ".."}:
        raise RunFileError(f"has a top folder called {quoted(folders.pop())}, expected a name")
    if len({entry.filename for entry in entries}) != len(entries):
        raise RunFileError("holds two entries of one name")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise RunFileError("holds compressed entries, expected them stored, as torch.save writes them")
    if sum(entry.file_size for entry in entries) > size:
        raise RunFileError("claims more data than the file is long")
    by_name = {entry.filename.partition("/")[2]: entry for entry in entries}
    if "data.pkl" not in by_name:
        raise RunFileError("holds no data.pkl, expected a file written by torch.save")
    if by_name["data.pkl"].file_size > MAX_PICKLE_BYTES:
        raise RunFileError(f"has a data.pkl of more than {MAX_PICKLE_BYTES} bytes")
    sizes = {
        name.removeprefix("data/"): entry.file_size
        for name, entry in by_name.items()
        if name.startswith("data/")
    }
    return archive.read(by_name["data.pkl"]), sizes


def place_of(archive: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Returns where the bytes of an entry that is not compressed begin: behind its name and extra field."""
    archive.seek(entry.header_offset)
    head = archive.read(LOCAL_HEADER_BYTES)
    lengths = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    return entry.header_offset + LOCAL_HEADER_BYTES + sum(lengths)


def check_pickle(pickled: bytes, sizes: dict[str, int]) -> Any:
    """Refuse a pickle that describes anything but plain values and tensors that the archive holds.

    Args:
        pickled: The pickle, which is followed without building anything.
        sizes: The bytes of each storage in the archive, by its name; `read_archive` returns both.

    Returns:
        What the pickle describes, with a `TensorPlan` for each tensor.

    Raises:
        RunFileError: Naming the value, or the import or call that the pickle asks for.

    Example:
        >>> import os, pickle
        >>> check_pickle(pickle.dumps({"a": os.getcwd}, protocol=2), {})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: a refers to posix.getcwd, ...
    """
    planned, foreign = scan(pickled)
    try:
        check_plain(planned, lambda plan, where: check_plan(plan, where, sizes), TensorPlan)
    except RunFileError as error:
        # What was named first says most: a call inside an OrderedDict, rather than the OrderedDict.
        if foreign is None or foreign.verb in str(error):
            raise
        raise RunFileError(f"something in it {foreign.verb}") from error
    if foreign is not None:
        raise RunFileError(f"something in it {foreign.verb}, hidden among its values")
    return planned


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise RunFileError("cannot be written: its folder does not exist")
    if target.is_dir():
        raise RunFileError("cannot be written: it is a directory")
    if target.exists() and not target.is_file():
        raise RunFileError("cannot be written: it is not a regular file")


def own_copy(value: Any) -> Any:
    """Copy plain values and tensors; the copies are on the CPU, without gradients, in memory of their own.

    Before saving, because `torch.save` stores a view with the whole of what it views; after loading, because
    `read` leaves tensors memory-mapped.
    """
    if is_tensor(value):
        return value.detach().to("cpu").resolve_neg().clone(memory_format=torch.contiguous_format)
    if isinstance(value, dict):
        return {key: own_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [own_copy(item) for item in value]
    return value
