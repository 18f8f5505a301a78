"""Files and folders that other programs write and that are not read: what each is, and the call that helps.

They are told by how they begin or by what lies in them; nothing in them is followed.
"""

import re
from collections.abc import Collection
from pathlib import Path

from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import printable

HEAD_BYTES = 512
OLDER_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number, pickled; until torch 1.6
PICKLE = re.compile(rb"\x80[\x02-\x05]|\(dp0|\(lp0|ccollections")
MSGPACK = re.compile(rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9.)[\w/]", re.DOTALL)
TAR_AT = 257
WEB_PAGE = re.compile(rb"\s*<(!doctype|html)", re.IGNORECASE)

SAVE_PLAIN = "torch.save({'model': model.state_dict(), 'step': step}, 'new.pt')"
# What is done with each: {path} is where it is and {new} a file next to it, as Python writes them.
NAMED = ", and the arrays need names that are known here"
ARRAYS = "write its arrays as torch.save({{name: tensor, …}}, {new})" + NAMED
TREE = "torch.save({{k: torch.tensor(numpy.asarray(x)) for k, x in flax.traverse_util.flatten_dict("
OF_TREE = ", sep='.').items()}}, {new})" + NAMED
UNPACK = "unpack it first, and give what is in it"

# By a file's first bytes.
BEGINNINGS = {
    OLDER_TORCH: "is of torch.save's older format: in Python, torch.save(torch.load({path}), {new})",
    b"\x89HDF\r\n\x1a\n": f"is HDF5 (Keras, h5py): {ARRAYS}",
    b"\x93NUMPY": "is one numpy array, expected all weights: torch.save({{name: tensor, …}}, {new})",
    b"GGUF": "is GGUF (llama.cpp): give the model that it was made from",
    b"version https://git-lfs": "is a pointer of Git LFS and not the file itself: git lfs pull",
    b"\x1f\x8b": f"is compressed by gzip: {UNPACK}",
    b"\x28\xb5\x2f\xfd": f"is compressed by zstd: {UNPACK}",
    b"\xfd7zXZ": f"is compressed by xz: {UNPACK}",
    b"BZh": f"is compressed by bzip2: {UNPACK}",
}
A_WEB_PAGE = "is a web page, expected the file that it leads to: download that"
A_TAR = f"is a tar archive: {UNPACK}"
A_PICKLE = (
    "is a pickle that torch.save did not write, and reading one runs what is in it: if you trust it, in "
    "Python, torch.save(pickle.loads(pathlib.Path({path}).read_bytes()), {new})"
)
OF_FLAX = (
    f"is msgpack (flax): in Python, {TREE}"
    f"flax.serialization.msgpack_restore(pathlib.Path({{path}}).read_bytes()){OF_TREE}"
)
# By the end of its name, where its beginning says nothing.
SUFFIXES = {
    ".onnx": "is ONNX, a graph: give the state dict of the model that it was exported from",
    ".index": f"is of TensorFlow: {ARRAYS}",
    ".json": "is JSON, expected the weights: give the folder of both",
}
# Those of files that a folder may hold in place of a checkpoint.
FOREIGN_SUFFIXES = (
    ".npz", ".npy", ".h5", ".hdf5", ".keras", ".msgpack", ".onnx", ".gguf", ".pkl", ".pickle", ".joblib",
    ".index", ".gz", ".zst", ".tar", ".zip", ".pt2",
)  # fmt: skip
# A zip archive by the end of a name in it.
ARCHIVES = {
    ".npy": "is numpy's .npz: in Python, "
    "torch.save({{k: torch.tensor(x) for k, x in numpy.load({path}).items()}}, {new})",
    "model.weights.h5": f"is of Keras: {ARRAYS}",
    "constants.pkl": "is TorchScript: in Python, torch.save(torch.jit.load({path}).state_dict(), {new})",
    "archive_format": "is of torch.export: in Python, "
    "torch.save(torch.export.load({path}).state_dict, {new})",
}
# A folder by a name in it.
FOLDERS = {
    "_METADATA": f"is of orbax (JAX): in Python, {TREE}"
    f"orbax.checkpoint.PyTreeCheckpointer().restore({{absolute}}){OF_TREE}",
    ".metadata": "is of torch.distributed.checkpoint: in Python, "
    "torch.distributed.checkpoint.format_utils.dcp_to_torch_save({path}, {new})",
    "saved_model.pb": f"is a SavedModel of TensorFlow: {ARRAYS}",
    "zero_to_fp32.py": "is of DeepSpeed: its zero_to_fp32.py writes one file, and that is read",
    "adapter_config.json": "is an adapter (PEFT) and not the whole model: in Python, "
    "model.merge_and_unload().save_pretrained({new})",
}


def check_known(path: Path, head: bytes, size: int) -> None:
    """Refuse a file of another program that begins in a way of its own.

    Args:
        path: The file, which the message names.
        head: Its first 512 bytes.
        size: How many bytes it has.

    Raises:
        RunFileError: Saying what it is and what to do.

    Example:
        >>> check_known(Path("model.npy"), b"GGUF" + bytes(8), 12)
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: is GGUF (llama.cpp): give the model that it was made from
    """
    if size == 0:
        raise RunFileError(f"is empty: where the model is, {SAVE_PLAIN}")
    advice = next((text for begin, text in BEGINNINGS.items() if head.startswith(begin)), None)
    if advice is None and WEB_PAGE.match(head):
        advice = A_WEB_PAGE
    if advice is None and PICKLE.match(head):
        advice = A_PICKLE
    if advice is None and (path.suffix == ".msgpack" or MSGPACK.match(head)):
        advice = OF_FLAX
    if advice is None and head[TAR_AT : TAR_AT + 5] == b"ustar":
        advice = A_TAR
    if advice is None and not head.startswith(b"PK\x03\x04"):
        advice = SUFFIXES.get(path.suffix)
    if advice is not None:
        raise RunFileError(_with_paths(advice, path))
    if not head.startswith(b"PK\x03\x04"):
        raise RunFileError(f"is not a file written by torch.save: where the model is, {SAVE_PLAIN}")


def check_archive(path: Path, names: Collection[str]) -> None:
    """Refuse a zip archive of another program, by the names in it.

    Raises:
        RunFileError: Saying what it is and what to do.

    Example:
        >>> check_archive(Path("model.zip"), ["a/data.pkl", "a/version"])
    """
    for end, advice in ARCHIVES.items():
        if any(name.endswith(end) for name in names):
            raise RunFileError(_with_paths(advice, path))
    if not any(name.endswith("/data.pkl") for name in names):
        raise RunFileError(f"is an archive, but not one of torch.save: where the model is, {SAVE_PLAIN}")


def check_folder(path: Path) -> None:
    """Refuse a folder of another program, by a name in it.

    Raises:
        RunFileError: Saying what it is and what to do.
    """
    inner = path / "default"  # where orbax' manager puts what is saved
    place = inner if (inner / "_METADATA").exists() else path
    for name, advice in FOLDERS.items():
        if (place / name).exists():
            raise RunFileError(_with_paths(advice, place))


def _with_paths(advice: str, path: Path) -> str:
    new = path.with_name(f"{path.stem}-new.pt")
    return advice.format(path=_quoted(path), new=_quoted(new), absolute=_quoted(path.absolute()))


def _quoted(path: Path) -> str:
    return repr(printable(str(path), 200))
