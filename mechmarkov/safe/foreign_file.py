"""Reading checkpoints that other programs wrote: first their structure, then the tensors that are wanted.

The checks are those of `safe.file`: the archive from the outside in, and a pickle that is scanned, never
executed. Beyond plain values, such files hold ordered dicts, parameters, tuples, numpy numbers and torch's
dtypes and devices, which become plain values. No unpickler runs: tensors are made from their storage's bytes.
"""

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechmarkov.safe.file import check_regular, read_archive, refusing
from mechmarkov.safe.pickle_scan import ORDERED_DICT, Known, Machine, TensorPlan, check_plan, scan
from mechmarkov.safe.plain_data import FLOATS, ITEM_BYTES, RunFileError, describe
from mechmarkov.utils.text import NAME_CHARACTERS, printable, quoted

MAX_WEIGHT_BYTES = 1 << 28  # hundreds of times any model this library is for
MAX_CONFIG_ENTRIES = 1000
PLAIN_TYPES = {bool, int, float, str, type(None)}
PARAMETER = "torch._utils _rebuild_parameter"
SCALARS = ("numpy.core.multiarray scalar", "numpy._core.multiarray scalar")
NUMPY_DTYPE = "numpy dtype"
NUMPY_NUMBERS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
MAX_NUMBER_BYTES = 16
DEVICE = "torch device"
ENCODE = "_codecs encode"
# Looked up once: asking torch for a name that a file gives could import something.
DTYPE_NAMES = {
    f"torch {name}": str(value) for name, value in vars(torch).items() if type(value) is torch.dtype
}
KNOWN = {PARAMETER, *SCALARS, NUMPY_DTYPE, DEVICE, ENCODE}


@dataclass(eq=False)
class NumpyType:
    """The dtype of a numpy number."""

    code: Any


@dataclass(frozen=True)
class ForeignFile:
    """What a file describes; where it would hold a tensor stands a `TensorPlan`.

    Attributes:
        path: Where it is.
        content: Its outermost dict.
        sizes: Bytes of each storage.
        types: What the file calls the type of each, where it has names of its own.
    """

    path: Path
    content: dict[Any, Any]
    sizes: dict[str, int]
    types: Mapping[str, str] = field(default_factory=dict)

    def tensors(self, plans: Mapping[str, TensorPlan]) -> dict[str, Tensor]:
        """Read tensors, float32 on the CPU.

        Raises:
            RunFileError: Naming a tensor that is neither floating point nor bool, that disagrees with the
                archive, or that holds NaN or infinite values; and for more than 256 MB of them.
        """
        for name, plan in plans.items():
            if not plan.dtype.is_floating_point and plan.dtype != torch.bool:
                kind = self.types.get(plan.key, plan.dtype)
                raise RunFileError(f"{quoted(name)} is a tensor of {kind}, expected floating point")
            check_plan(plan, quoted(name), self.sizes)
        total = sum({plan.key: plan.room * ITEM_BYTES[plan.dtype] for plan in plans.values()}.values())
        if total > MAX_WEIGHT_BYTES:
            raise RunFileError(
                f"its weights take {total} bytes, expected at most {MAX_WEIGHT_BYTES}: a toy model"
            )
        read = _read_safetensors if self.path.suffix == ".safetensors" else _read_storages
        tensors = read(self.path, plans)
        for name, tensor in tensors.items():
            if not bool(tensor.isfinite().all()):
                raise RunFileError(f"{quoted(name)} holds NaN or infinite values")
        return tensors


def read(path: Path) -> ForeignFile:
    """What a file of `torch.save` (.pt, .pth, .bin, …) or of safetensors holds, checked from the outside in.

    Raises:
        RunFileError: For a file that is missing, damaged, of an old format, or holds something that is
            neither plain data nor a tensor, naming it.
    """
    size = check_regular(path)
    if path.suffix == ".safetensors":
        return _plan_safetensors(path)
    pickled, sizes = read_archive(path, size)
    content, foreign = scan(pickled, _ForeignMachine())
    if foreign is not None:
        advice = "save a dict of plain values and a state dict"
        if "transformer_lens" in foreign.verb:
            advice = "save model.cfg.to_dict() in place of model.cfg, with the version that made it"
        raise RunFileError(f"something in it {foreign.verb}: {advice}")
    if type(content) is not dict:
        raise RunFileError(f"it holds {describe(content)}, expected a dict: save model.state_dict()")
    return ForeignFile(path, content, sizes)


def plain_config(value: Any, name: str) -> dict[str, Any]:
    """A model's config as a flat dict of plain values, lists of them, or dicts of them.

    Raises:
        RunFileError: For anything else, named.
    """
    if type(value) is not dict:
        raise RunFileError(f"{name} is {describe(value)}, expected a dict of plain values")
    if len(value) > MAX_CONFIG_ENTRIES:
        raise RunFileError(f"{name} has {len(value)} entries, expected at most {MAX_CONFIG_ENTRIES}")
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise RunFileError(f"{name} has a key that is {describe(key)}, expected names")
        nested = type(item) in (dict, list, tuple)
        items = (item.values() if type(item) is dict else item) if nested else [item]
        if len(items) <= MAX_CONFIG_ENTRIES and all(type(x) in PLAIN_TYPES for x in items):
            plain[key] = list(item) if type(item) is tuple else item
        elif nested:
            plain[key] = f"a nested {type(item).__name__}"
        else:
            raise RunFileError(
                f"{name}.{printable(key, NAME_CHARACTERS)} is {describe(item)}, expected a plain value"
            )
    return plain


class _ForeignMachine(Machine):
    """The pickle machine with the few names that checkpoints of other programs hold."""

    def named(self, name: str) -> Any:
        """A global."""
        if name in KNOWN:
            return Known(name)
        return DTYPE_NAMES[name] if name in DTYPE_NAMES else super().named(name)

    def build(self, state: Any) -> None:
        """`__setstate__`: an ordered dict's `_metadata` is dropped, a numpy dtype's byte order is checked."""
        target = self.stack[-1]
        if isinstance(target, NumpyType):
            if type(state) is not tuple or state[1] not in ("<", "|"):
                raise RunFileError("it holds numpy numbers of another byte order")
        elif type(target) is not dict:
            super().build(state)

    def call(self, function: Any, arguments: Any) -> Any:
        """A call of one of the few functions that make data."""
        name = function.name if isinstance(function, Known) else ""
        if name == ORDERED_DICT and arguments == ():
            return {}
        if name == PARAMETER:
            return arguments[0]
        if name == DEVICE:
            return "a torch device"
        if name == ENCODE:
            text, encoding = arguments
            if type(text) is not str or len(text) > MAX_NUMBER_BYTES or encoding != "latin1":
                return self.make_foreign("is bytes")
            return text.encode("latin1")
        if name == NUMPY_DTYPE:
            return NumpyType(arguments[0])
        if name in SCALARS:
            return self.number(*arguments)
        return super().call(function, arguments)

    def number(self, kind: Any, data: Any) -> Any:
        """A numpy number as a plain one."""
        code = kind.code if isinstance(kind, NumpyType) else None
        if type(code) is not str or code not in NUMPY_NUMBERS or type(data) is not bytes:
            return self.make_foreign("is a numpy value that is not a number")
        (number,) = np.frombuffer(data, f"<{code}")
        return number.item()

    def no_hooks(self, hooks: Any) -> bool:
        """Whether a tensor has no hooks; this machine reads an ordered dict as a dict."""
        return type(hooks) is dict and not hooks


def _read_storages(path: Path, plans: Mapping[str, TensorPlan]) -> dict[str, Tensor]:
    """Tensors of a torch archive; each storage is read once, its checksum compared."""
    storages: dict[str, bytearray] = {}
    tensors = {}
    with refusing("is damaged"), zipfile.ZipFile(path) as archive:
        folder = archive.namelist()[0].partition("/")[0]
        order = f"{folder}/byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise RunFileError("was written on a machine of another byte order")
        for name, plan in plans.items():
            if plan.key not in storages:
                storages[plan.key] = bytearray(archive.read(f"{folder}/data/{plan.key}"))
            flat = torch.frombuffer(storages[plan.key], dtype=plan.dtype)
            tensors[name] = flat.as_strided(plan.shape, plan.stride, plan.offset).float().clone()
    return tensors


def _plan_safetensors(path: Path) -> ForeignFile:
    from safetensors import SafetensorError, safe_open

    plans, sizes, said = {}, {}, {}
    types = dict(zip(("F64", "F32", "F16", "BF16", "BOOL"), (*FLOATS, torch.bool), strict=True))
    errors = (SafetensorError, OSError, ValueError)
    with refusing("is not a safetensors file", errors), safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is not a dict
            part = file.get_slice(name)
            shape = tuple(part.get_shape())
            said[name] = part.get_dtype()
            dtype = types.get(said[name], torch.uint8)
            room = math.prod(shape)
            stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
            plans[name] = TensorPlan(dtype, name, shape, stride, 0, room)
            sizes[name] = room * ITEM_BYTES[dtype]
    return ForeignFile(path, plans, sizes, said)


def _read_safetensors(path: Path, plans: Mapping[str, TensorPlan]) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    errors = (SafetensorError, OSError, ValueError)
    with refusing("is damaged", errors), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(plan.key).float().clone() for name, plan in plans.items()}
