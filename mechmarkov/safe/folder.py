"""A folder of plain values and tensors to share: `run.json`, `weights.safetensors`, nothing executable.

`run.json` holds all but the tensors, and the hash of the file that holds these. A tensor's name there is the
path of its keys, as a JSON list.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mechmarkov.safe.file import check_regular, naming, own_copy, refusing
from mechmarkov.safe.json_file import read_json
from mechmarkov.safe.plain_data import RunFileError, check_loaded_tensor, check_plain, describe
from mechmarkov.utils.files import clear_leftovers, temporary_prefix
from mechmarkov.utils.lazy_torch import Tensor, is_tensor
from mechmarkov.utils.text import is_utf8, quoted

RUN, WEIGHTS, CARD, PICTURE = "run.json", "weights.safetensors", "README.md", "curve.svg"
# What huggingface_hub adds to a repository and to a copy of one.
KNOWN = {RUN, WEIGHTS, CARD, PICTURE, ".gitattributes", ".cache", ".huggingface"}
HASH = "weights_sha256"


def write(folder: str | os.PathLike[str], data: dict[str, Any], pages: Mapping[str, str]) -> Path:
    """Write a new folder with a dict of plain values and tensors, whole or not at all.

    Args:
        folder: A folder that is not there yet.
        data: What `run.json` and `weights.safetensors` are to hold.
        pages: Further texts, by their files' names.

    Returns:
        The folder.

    Raises:
        RunFileError: One line that begins with the path, for a value that may not be stored, a folder that is
            there already or a place that cannot be written.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as place:
        ...     made = write(f"{place}/run", {"a": torch.ones(2), "b": 1}, {})
        ...     sorted(path.name for path in made.iterdir()), read(made)
        (['run.json', 'weights.safetensors'], {'b': 1, 'a': tensor([1., 1.])})
    """
    from safetensors.torch import save  # with numpy's and torch's bridges, only for this

    folder = Path(folder)
    with naming(folder):
        check_plain(data, check_loaded_tensor)
        if folder.exists():
            raise RunFileError("exists, expected a new folder")
        tensors: dict[str, Tensor] = {}
        content = {"data": _without_tensors(data, (), tensors)}
        with (
            refusing("cannot be written", (OSError, ValueError)),
            tempfile.TemporaryDirectory(
                prefix=temporary_prefix(folder.name),
                suffix=".tmp",
                dir=folder.parent,
                ignore_cleanup_errors=True,
            ) as temporary,
        ):
            clear_leftovers(folder.parent)
            made = Path(temporary) / "run"
            made.mkdir()
            (made / WEIGHTS).write_bytes(save(own_copy(tensors)))
            content[HASH] = _sha256(made / WEIGHTS)
            (made / RUN).write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
            for name, text in pages.items():
                (made / name).write_text(text, encoding="utf-8")
            made.chmod(0o755)
            os.rename(made, folder)
    return folder


def weights_by_torch(path: Path) -> dict[str, Any]:
    """Returns the tensors in a safetensors file.

    Raises:
        SafetensorError: It is not such a file.
    """
    from safetensors.torch import load, load_file

    # No name but one in UTF-8 is opened by safetensors itself.
    return load_file(path) if is_utf8(str(path)) else load(path.read_bytes())


def read(
    folder: str | os.PathLike[str], weights: Callable[[Path], dict[str, Any]] = weights_by_torch
) -> dict[str, Any]:
    """Returns the dict in a folder that `write` wrote.

    Args:
        folder: The folder.
        weights: What reads the tensors of a file, by name.

    Raises:
        RunFileError: One line that begins with the path: a file that does not belong, one that is missing or
            damaged, or weights that are not those that were written.
    """
    from safetensors import SafetensorError

    folder = Path(folder)
    with naming(folder):
        for name in sorted(os.listdir(folder)):
            if name not in KNOWN:
                raise RunFileError(
                    f"holds {quoted(name)}, expected only {RUN}, {WEIGHTS}, {CARD} and {PICTURE}"
                )
    content = read_json(folder / RUN)
    with naming(folder / RUN):
        if type(content) is not dict:
            raise RunFileError(f"is {describe(content)}, expected a dict")
        if set(content) != {"data", HASH} or type(content["data"]) is not dict:
            raise RunFileError(
                f"has the keys {', '.join(map(quoted, sorted(content)))}, expected data and {HASH}"
            )
    with naming(folder / WEIGHTS):
        check_regular(folder / WEIGHTS)
        if _sha256(folder / WEIGHTS) != content[HASH]:
            raise RunFileError(f"is not the file that was written: its SHA-256 is not {HASH} of {RUN}")
        data: dict[str, Any] = content["data"]
        with refusing("is not a safetensors file", (SafetensorError, OSError, KeyError, ValueError)):
            tensors = weights(folder / WEIGHTS)
        for name, tensor in tensors.items():
            _put(data, name, tensor)
        check_plain(data, check_loaded_tensor)
    return data


def _without_tensors(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, Mapping):
        return value
    plain = {}
    for key, item in value.items():
        if is_tensor(item):
            tensors[json.dumps([*path, key])] = item
        else:
            plain[key] = _without_tensors(item, (*path, key), tensors)
    return plain


def _put(data: dict[str, Any], name: str, tensor: Tensor) -> None:
    try:
        *path, key = json.loads(name)
        place = data
        for step in path:
            place = place[step]
        known = type(place) is not dict or type(key) is not str or key in place
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        known = True
    if known:
        raise RunFileError(f"holds a tensor {quoted(name)}, expected the keys of a place in {RUN}")
    place[key] = tensor


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
