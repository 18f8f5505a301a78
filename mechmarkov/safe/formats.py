"""Files and folders that other programs write and that are not read: what each is, and the call that helps.

They are told by how they begin or by what lies in them; nothing in them is followed.
"""

import re
from collections.abc import Callable, Collection
from pathlib import Path

from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import printable

HEAD_BYTES = 512
OLDER_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number, pickled; until torch 1.6
PICKLE = re.compile(rb"\x80[\x02-\x05]|\(dp0|\(lp0|ccollections")
MSGPACK = re.compile(rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9.)[\w/]", re.DOTALL)
TAR_AT = 257
RENAMED = "and it needs HookedTransformer's names"
UNPACK = "unpack it first, and give what is in it"

# By a file's first bytes: what it is and what to do, {} standing for its path and {new} for one beside it.
BEGINNINGS: dict[bytes, str] = {
    OLDER_TORCH: "is of torch.save's older format: in Python, torch.save(torch.load({}), {new})",
    b"\x89HDF\r\n\x1a\n": "is HDF5 (Keras, h5py): write its arrays as torch.save({{name: tensor, …}}, {new}), "
    + RENAMED,
    b"\x93NUMPY": "is one numpy array, expected all weights: torch.save({{name: tensor, …}}, {new})",
    b"GGUF": "is GGUF (llama.cpp): give the model that it was made from",
    b"version https://git-lfs": "is a pointer of Git LFS and not the file itself: git lfs pull",
    b"\x1f\x8b": f"is compressed by gzip: {UNPACK}",
    b"\x28\xb5\x2f\xfd": f"is compressed by zstd: {UNPACK}",
    b"\xfd7zXZ": f"is compressed by xz: {UNPACK}",
    b"BZh": f"is compressed by bzip2: {UNPACK}",
}
WEB_PAGE = re.compile(rb"\s*<(!doctype|html)", re.IGNORECASE)
SUFFIXES = {
    ".onnx": "is ONNX, a graph: give the state dict of the model that it was exported from",
    ".index": "is of TensorFlow: write its variables as torch.save({{name: tensor, …}}, {new}), " + RENAMED,
    ".json": "is JSON, expected the weights: give the folder of both",
}
A_PICKLE = (
    "is a pickle that torch.save did not write, and reading one runs what is in it: if you trust it, in Python, "
    "torch.save(pickle.load(open({}, 'rb')), {new})"
)
OF_FLAX = (
    "is msgpack (flax): in Python, torch.save({{k: torch.tensor(x) for k, x in flax.traverse_util.flatten_dict("
    "flax.serialization.msgpack_restore(open({}, 'rb').read()), sep='.').items()}}, {new}), " + RENAMED
)
# A zip archive by the end of a name in it.
ARCHIVES: dict[str, str] = {
    ".npy": "is numpy's .npz: in Python, "
    "torch.save({{k: torch.tensor(x) for k, x in numpy.load({}).items()}}, {new})",
    "model.weights.h5": "is of Keras: write its arrays as torch.save({{name: tensor, …}}, {new}), " + RENAMED,
    "constants.pkl": "is TorchScript: in Python, torch.save(torch.jit.load({}).state_dict(), {new})",
    "archive_format": "is of torch.export: in Python, torch.save(torch.export.load({}).state_dict, {new})",
}
# A folder by a name in it.
FOLDERS: dict[str, str] = {
    "_CHECKPOINT_METADATA": "is of orbax (JAX): in Python, torch.save({{k: torch.tensor(numpy.asarray(x)) for k, x in "
    "flax.traverse_util.flatten_dict(orbax.checkpoint.PyTreeCheckpointer().restore({}), sep='.').items()}}, {new}), "
    + RENAMED,
    ".metadata": "is of torch.distributed.checkpoint: in Python, "
    "torch.distributed.checkpoint.format_utils.dcp_to_torch_save({}, {new})",
    "saved_model.pb": "is a SavedModel of TensorFlow: write its variables as "
    "torch.save({{name: tensor, …}}, {new}), " + RENAMED,
    "zero_to_fp32.py": "is of DeepSpeed: run its zero_to_fp32.py, which writes one file",
    "adapter_config.json": "is an adapter (PEFT) and not the whole model: in Python, "
    "model.merge_and_unload().save_pretrained({new})",
}


def check_known(path: Path, head: bytes, size: int) -> None:
    """Refuse a file of another program that begins in a way of its own.

    Raises:
        RunFileError: Saying what it is and what to do.
    """
    if size == 0:
        raise RunFileError("is empty")
    advice = next((text for begin, text in BEGINNINGS.items() if head.startswith(begin)), None)
    if advice is None and WEB_PAGE.match(head):
        advice = "is a web page, expected the file that it leads to: download that"
    if advice is None and PICKLE.match(head):
        advice = A_PICKLE
    if advice is None and (path.suffix == ".msgpack" or MSGPACK.match(head)):
        advice = OF_FLAX
    if advice is None and head[TAR_AT : TAR_AT + 5] == b"ustar":
        advice = f"is a tar archive: {UNPACK}"
    if advice is None and not head.startswith(b"PK\x03\x04"):
        advice = SUFFIXES.get(path.suffix)
    if advice is not None:
        raise RunFileError(_with_paths(advice, path))


def check_archive(path: Path, names: Collection[str]) -> None:
    """Refuse a zip archive of another program, by the names in it.

    Raises:
        RunFileError: Saying what it is and what to do.
    """
    for end, advice in ARCHIVES.items():
        if any(name.endswith(end) for name in names):
            raise RunFileError(_with_paths(advice, path))


def check_folder(path: Path, has: Callable[[str], bool]) -> None:
    """Refuse a folder of another program, by a name in it.

    Raises:
        RunFileError: Saying what it is and what to do.
    """
    for name, advice in FOLDERS.items():
        if has(name):
            raise RunFileError(_with_paths(advice, path))


def beside(path: Path) -> str:
    """A new file beside one, or beside a folder, as Python writes its path."""
    return quoted_path(path.with_name(f"{path.stem}-new.pt"))


def quoted_path(path: Path) -> str:
    """A path in a call that a message shows."""
    return repr(printable(str(path), 200))


def _with_paths(advice: str, path: Path) -> str:
    return advice.format(quoted_path(path), new=beside(path))
