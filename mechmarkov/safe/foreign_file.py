"""Reading checkpoints that other programs wrote: first their structure, then the tensors that are wanted.

The checks are those of `safe.file`: the archive from the outside in, and a pickle that is scanned, never
executed. Beyond plain values, such files hold ordered dicts, parameters, tuples, namespaces, numpy numbers
and torch's dtypes and devices, which become plain values, as do objects of classes that nobody here knows and
that keep plain values only: a dataclass of settings. Arrays of numpy, complex tensors, paths, sets and dates
are passed over. No unpickler runs: tensors are made from their storage's bytes.
"""

import math
import zipfile
import zlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from mechmarkov.safe import formats
from mechmarkov.safe.file import check_regular, place_of, read_archive, refusing
from mechmarkov.safe.pickle_scan import ORDERED_DICT, REBUILD, Known, Machine, TensorPlan, check_plan, scan
from mechmarkov.safe.plain_data import (
    FLOATS,
    INTEGERS,
    ITEM_BYTES,
    SAFETENSORS,
    Foreign,
    RunFileError,
    describe,
)
from mechmarkov.utils.text import NAME_CHARACTERS, printable, quoted

MAX_WEIGHT_BYTES = 1 << 28  # hundreds of times any model this library is for
MAX_CONFIG_ENTRIES = 1000
PLAIN_TYPES = {bool, int, float, str, type(None)}
PARAMETER = "torch._utils _rebuild_parameter"
SCALARS = ("numpy.core.multiarray scalar", "numpy._core.multiarray scalar")
NUMPY_DTYPE = "numpy dtype"
NUMPY_NUMBERS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
MAX_NUMBER_BYTES = 16
MAX_INTEGERS = 100_000  # of a tensor of training steps
NAMESPACES = {"argparse Namespace", "types SimpleNamespace"}  # read as dicts
ARRAYS = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
PATHS = {f"pathlib{inner} {kind}" for inner in ("", "._local") for kind in ("PosixPath", "WindowsPath")}
COUNTER, DEFAULT_DICT = "collections Counter", "collections defaultdict"  # read as dicts
COMPLEX = {"torch ComplexFloatStorage", "torch ComplexDoubleStorage"}  # of tables of rotations
# Nobody asks for their values: of these only the kind is known, and none is made.
PASSED_OVER = {
    *ARRAYS, *PATHS, *COMPLEX, "numpy ndarray", "torch Size",
    "datetime date", "datetime datetime", "datetime timedelta",
    *(f"__builtin__ {kind}" for kind in ("set", "frozenset", "complex", "bytearray", "xrange", "slice")),
}  # fmt: skip
FACTORIES = {f"__builtin__ {kind}" for kind in ("dict", "list", "int", "float")}  # of default dicts
DEVICE = "torch device"
ENCODE = "_codecs encode"
LENS = "transformer_lens"  # its configs hold more than plain values
GIT_LFS = b"version https://git-lfs"
# Looked up once: asking torch for a name that a file gives could import something.
DTYPE_NAMES = {
    f"torch {name}": str(value) for name, value in vars(torch).items() if type(value) is torch.dtype
}
DTYPES = {name: getattr(torch, name.removeprefix("torch.")) for name in ITEM_BYTES}
KNOWN = {
    PARAMETER, *SCALARS, NUMPY_DTYPE, DEVICE, ENCODE, COUNTER, DEFAULT_DICT,
    *NAMESPACES, *PASSED_OVER, *FACTORIES,
}  # fmt: skip


@dataclass(eq=False)
class _NumpyType:
    """The dtype of a numpy number."""

    code: Any


class _PassedOver:
    """An object of a file that nobody here asks for: an array of numpy, a path, a set, a date, a rotation."""


@dataclass(frozen=True)
class ForeignFile:
    """A checkpoint of another program, its structure read: a `TensorPlan` stands for each tensor.

    Attributes:
        path: Where it is.
        content: The outermost dict, list or tuple.
        sizes: Bytes of each storage.
        types: What the file calls the type of each, where it has names of its own.
        notes: Texts that safetensors keep next to the tensors.
        is_safetensors: Whether it is of safetensors, else of `torch.save`.
    """

    path: Path
    content: Any
    sizes: dict[str, int]
    types: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    is_safetensors: bool = False

    def tensors(self, plans: Mapping[str, TensorPlan], masks: Container[str] = ()) -> dict[str, Tensor]:
        """Read tensors, float32 on the CPU.

        Args:
            plans: By the names that messages give them.
            masks: Names of those that may be of integers and may hold infinite values.

        Raises:
            RunFileError: Naming a tensor that is not of floating point numbers, that disagrees with the
                archive, or that holds NaN or infinite values; and for more than 256 MB of them.
        """
        for name, plan in plans.items():
            if plan.dtype not in FLOATS and name not in masks:
                kind = self.types.get(plan.key, plan.dtype)
                raise RunFileError(f"{quoted(name)} is a tensor of {kind}, expected floating point")
            check_plan(plan, quoted(name), self.sizes)
        total = sum({plan.key: plan.room * ITEM_BYTES[plan.dtype] for plan in plans.values()}.values())
        if total > MAX_WEIGHT_BYTES:
            raise RunFileError(
                f"its weights take {total} bytes, expected at most {MAX_WEIGHT_BYTES}: a toy model"
            )
        tensors = {name: value.float() for name, value in self._read(plans).items()}
        for name, tensor in tensors.items():
            if name not in masks and not bool(tensor.isfinite().all()):
                raise RunFileError(f"{quoted(name)} holds NaN or infinite values")
        return tensors

    def integers(self, plan: TensorPlan) -> list[int]:
        """The numbers in a tensor of a few integers, such as training steps.

        Raises:
            RunFileError: It is of another type, has many, or disagrees with the archive.
        """
        if plan.dtype not in INTEGERS or math.prod(plan.shape) > MAX_INTEGERS:
            raise RunFileError(f"holds a tensor of {plan.dtype} {list(plan.shape)}, expected a few integers")
        check_plan(plan, "a tensor of integers", self.sizes)
        if plan.room * ITEM_BYTES[plan.dtype] > MAX_WEIGHT_BYTES:
            raise RunFileError("holds a tensor of integers that is part of a far larger one")
        numbers: list[int] = self._read({"": plan})[""].flatten().tolist()
        return numbers

    def _read(self, plans: Mapping[str, TensorPlan]) -> dict[str, Tensor]:
        """The tensors as they are; of a torch archive each storage is read once, its checksum compared."""
        if self.is_safetensors:
            from safetensors import SafetensorError, safe_open

            errors = (SafetensorError, OSError, ValueError)
            with refusing("is damaged", errors), safe_open(self.path, framework="pt") as archive:
                return {name: archive.get_tensor(plan.key).clone() for name, plan in plans.items()}
        storages: dict[str, bytearray] = {}
        tensors, entries = {}, self.entries
        with refusing("is damaged"), open(self.path, "rb") as file:
            for name, plan in plans.items():
                if plan.key not in storages:
                    storages[plan.key] = _stored(file, entries[f"data/{plan.key}"])
                flat = torch.frombuffer(storages[plan.key], dtype=DTYPES[plan.dtype])
                tensors[name] = flat.as_strided(plan.shape, plan.stride, plan.offset).clone()
        return tensors

    @cached_property
    def entries(self) -> dict[str, zipfile.ZipInfo]:
        """Returns the entries of a torch archive by name; a RunFileError for one of another byte order."""
        with refusing("is damaged"), zipfile.ZipFile(self.path) as archive:
            by_name = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
            if "byteorder" in by_name and archive.read(by_name["byteorder"]) != b"little":
                raise RunFileError("was written on a machine of another byte order")
        return by_name


def read(path: Path) -> ForeignFile:
    """Read the structure of a file of `torch.save` (.pt, .pth, .bin, …) or safetensors; no weight is read.

    Raises:
        RunFileError: For a file that is missing, damaged, of another format (with what to do), or holds
            something that is neither plain data nor a tensor, naming it.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as saved:
        ...     torch.save({"model": torch.nn.Linear(2, 1).state_dict(), "step": 8}, saved.name)
        ...     file = read(Path(saved.name))
        ...     file.content["step"], file.tensors({"b": file.content["model"]["bias"]})["b"].shape
        (8, torch.Size([1]))
    """
    size = check_regular(path)
    with refusing("cannot be read", OSError), open(path, "rb") as file:
        head = file.read(formats.HEAD_BYTES)
    named = path.suffix == ".safetensors" and not head.startswith(GIT_LFS)
    # A length of JSON first, and then JSON, whatever the file is called.
    begins = len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8
    if named or begins:
        return _plan_safetensors(path)
    formats.check_known(path, head, size)
    pickled, sizes = read_archive(path, size, lambda names: formats.check_archive(path, names))
    content, foreign = scan(pickled, _ForeignMachine())
    if foreign is not None:
        advice = f"where it was saved, {formats.SAVE_PLAIN}"
        if LENS in foreign.verb:
            advice = "save model.cfg.to_dict() in place of model.cfg, with the version that made it"
        raise RunFileError(f"something in it {foreign.verb}: {advice}")
    if type(content) not in (dict, list, tuple):
        raise RunFileError(f"it holds {describe(content)}, expected a dict: {formats.SAVE_PLAIN}")
    return ForeignFile(path, content, sizes)


def plain_config(value: Any, name: str, is_loose: bool = False) -> dict[str, Any]:
    """Returns a model's config as a flat dict of plain values, lists of them, or dicts of them.

    Args:
        value: The config as it lies in a file.
        name: What it is called in a message.
        is_loose: Whether a value of another kind is replaced by a text that says what it is; else it is
            refused.

    Raises:
        RunFileError: For anything else, named.

    Example:
        >>> plain_config({"n_layer": 2, "betas": (0.9, 0.95)}, "config")
        {'n_layer': 2, 'betas': [0.9, 0.95]}
    """
    if type(value) is not dict:
        raise RunFileError(f"{name} is {describe(value)}, expected a dict of plain values")
    if len(value) > MAX_CONFIG_ENTRIES:
        raise RunFileError(f"{name} has {len(value)} entries, expected at most {MAX_CONFIG_ENTRIES}")
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            if is_loose:
                continue
            raise RunFileError(f"{name} has a key that is {describe(key)}, expected names")
        nested = type(item) in (dict, list, tuple)
        items = (item.values() if type(item) is dict else item) if nested else [item]
        if len(items) <= MAX_CONFIG_ENTRIES and all(type(x) in PLAIN_TYPES for x in items):
            plain[key] = list(item) if type(item) is tuple else item
        elif nested:
            plain[key] = f"a nested {type(item).__name__}"
        elif is_loose:
            plain[key] = describe(item)
        else:
            raise RunFileError(
                f"{name}.{printable(key, NAME_CHARACTERS)} is {describe(item)}, expected a plain value"
            )
    return plain


class _ForeignMachine(Machine):
    """The pickle machine with the few names that checkpoints of other programs hold."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: dict[int, dict[str, Any]] = {}  # by identity
        self.objects: dict[int, Foreign] = {}  # the classes of those that are not built yet, likewise
        self.unknown: dict[int, Foreign] = {}  # what is foreign so far, likewise
        self.walked: dict[int, Any] = {}  # what `_is_plain` has seen, so that nothing is walked twice

    def step(self, name: str, argument: Any) -> None:
        """One instruction; a namespace and a path are made without a call."""
        made = self.stack[-2] if name == "NEWOBJ" and len(self.stack) > 1 else None
        if isinstance(made, Known) and made.name in KNOWN:
            arguments = self.stack.pop()
            self.stack[-1] = self.call(made, arguments)
        elif isinstance(made, Foreign) and made.verb.startswith("refers to ") and self.stack[-1] == ():
            self.stack[-2:] = [self.namespace()]
            self.objects[id(self.stack[-1])] = made
        else:
            super().step(name, argument)

    def named(self, name: str) -> Any:
        """A global."""
        if name in KNOWN:
            return Known(name)
        return DTYPE_NAMES[name] if name in DTYPE_NAMES else super().named(name)

    def build(self, state: Any) -> None:
        """`__setstate__`: an ordered dict's `_metadata` is dropped, a numpy dtype's byte order is checked."""
        target = self.stack[-1]
        if isinstance(target, _PassedOver):
            return
        if id(target) in self.objects:
            self.settings(state, self.objects.pop(id(target)))
        elif id(target) in self.namespaces:
            self.add(dict, [part for pair in dict(state).items() for part in pair])
        elif isinstance(target, _NumpyType):
            if type(state) is not tuple or state[1] not in ("<", "|"):
                raise RunFileError("it holds numpy numbers of another byte order")
        elif type(target) is not dict:
            super().build(state)

    def settings(self, state: Any, kind: Foreign) -> None:
        """Make a dict of an object that keeps plain values; any other stays what it is."""
        state = state.get("__dict__", state) if type(state) is dict else state  # pydantic's
        if LENS not in kind.verb and type(state) is dict and _is_plain(state, self.walked):
            self.unknown.pop(id(kind), None)
            self.add(dict, [part for pair in state.items() for part in pair])
        else:
            self.unknown[id(kind)] = self.stack[-1] = kind
        if self.foreign is None or self.foreign is kind:
            self.foreign = next(iter(self.unknown.values()), None)

    def make_foreign(self, verb: str) -> Foreign:
        """Returns what stands for a thing that is not plain; all are remembered."""
        made = super().make_foreign(verb)
        self.unknown[id(made)] = made
        return made

    def storage(self, saved: Any) -> Any:
        """Returns a storage; complex numbers are passed over."""
        is_complex = isinstance(saved[1], Known) and saved[1].name in COMPLEX
        return _PassedOver() if is_complex else super().storage(saved)

    def namespace(self) -> dict[str, Any]:
        """Returns a new dict that stands for an object; it is kept, so that no other has its identity."""
        made = dict[str, Any]()
        return self.namespaces.setdefault(id(made), made)

    def call(self, function: Any, arguments: Any) -> Any:
        """A call of one of the few functions that make data."""
        name = function.name if isinstance(function, Known) else ""
        if name == ORDERED_DICT and arguments == ():
            return {}
        if name == PARAMETER:
            return arguments[0]
        if name == DEVICE:
            return "a torch device"
        if name in NAMESPACES and arguments == ():
            return self.namespace()
        if name in PASSED_OVER or (name == REBUILD and isinstance(arguments[0], _PassedOver)):
            return _PassedOver()
        if name == DEFAULT_DICT or (name == COUNTER and arguments == ()):
            return {}
        if name == COUNTER and type(arguments[0]) is dict:
            return arguments[0]
        if name == ENCODE:
            text, encoding = arguments
            if type(text) is not str or encoding != "latin1":
                return self.make_foreign("is bytes")
            return text.encode("latin1") if len(text) <= MAX_NUMBER_BYTES else _PassedOver()
        if name == NUMPY_DTYPE:
            return _NumpyType(arguments[0])
        if name in SCALARS:
            return self.number(*arguments)
        return super().call(function, arguments)

    def number(self, kind: Any, data: Any) -> Any:
        """A numpy number as a plain one."""
        code = kind.code if isinstance(kind, _NumpyType) else None
        if type(code) is not str or code not in NUMPY_NUMBERS or type(data) is not bytes:
            return self.make_foreign("is a numpy value that is not a number")
        (number,) = np.frombuffer(data, f"<{code}")
        return number.item()

    def no_hooks(self, hooks: Any) -> bool:
        """Returns whether a tensor has no hooks; this machine reads an ordered dict as a dict."""
        return type(hooks) is dict and not hooks


def _is_plain(value: Any, walked: dict[int, Any]) -> bool:
    """Returns whether a value is plain throughout, but for containers that were seen, by their identity."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if type(item) in (dict, list, tuple):
            if id(item) not in walked:
                walked[id(item)] = item
                waiting += item.values() if type(item) is dict else item
        elif type(item) not in PLAIN_TYPES and not isinstance(item, _PassedOver):
            return False
    return True


def _stored(archive: BinaryIO, entry: zipfile.ZipInfo) -> bytearray:
    """The bytes of an entry that is not compressed."""
    archive.seek(place_of(archive, entry))
    data = bytearray(entry.file_size)
    if archive.readinto(data) != len(data) or zlib.crc32(data) != entry.CRC:  # type: ignore[attr-defined]
        raise RunFileError(f"is damaged: wrong checksum of {quoted(entry.filename)}")
    return data


def _plan_safetensors(path: Path) -> ForeignFile:
    from safetensors import SafetensorError, safe_open

    plans, sizes, dtypes = {}, {}, {}
    errors = (SafetensorError, OSError, ValueError)
    with refusing("is not a safetensors file", errors), safe_open(path, framework="pt") as file:
        notes = dict(file.metadata() or {})
        for name in file.keys():  # noqa: SIM118 - it is not a dict
            part = file.get_slice(name)
            shape = tuple(part.get_shape())
            dtypes[name] = part.get_dtype()
            dtype = SAFETENSORS.get(dtypes[name], "torch.uint8")
            room = math.prod(shape)
            stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
            plans[name] = TensorPlan(dtype, name, shape, stride, 0, room)
            sizes[name] = room * ITEM_BYTES[dtype]
    return ForeignFile(path, plans, sizes, dtypes, notes, is_safetensors=True)
