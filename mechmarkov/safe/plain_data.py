"""Plain values and tensors, all that a run file may hold: checked before saving and after loading."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechmarkov.utils.lazy_torch import Tensor, is_tensor, torch
from mechmarkov.utils.text import NAME_CHARACTERS, is_utf8, quoted

MAX_DEPTH = 16
MAX_VALUES = 500_000
MAX_INT_BITS = 64
MAX_KEY = 1000  # characters
RUN_FORMAT = "mechmarkov.run"  # the `format` of a run file
FROM_ELSEWHERE = "not a run file: `mechmarkov import` reads what other code has saved"
PLAIN = "expected only None, bool, int, float, str, list, dict and tensors"
# Types of numbers, as torch writes them.
FLOATS = {"torch.float64": 8, "torch.float32": 4, "torch.float16": 2, "torch.bfloat16": 2}
INTEGERS = {"torch.int64": 8, "torch.int32": 4, "torch.int16": 2, "torch.int8": 1, "torch.uint8": 1}
ITEM_BYTES = {**FLOATS, **INTEGERS, "torch.bool": 1}
# The same as safetensors calls them.
SAFETENSORS = {
    **dict(zip(("F64", "F32", "F16", "BF16"), FLOATS, strict=True)),
    **dict(zip(("I64", "I32", "I16", "I8", "U8"), INTEGERS, strict=True)),
    "BOOL": "torch.bool",
}


class RunFileError(ValueError):
    """A run file that cannot be read, written or trusted; the message is one line."""


@dataclass(eq=False)
class Foreign:
    """Stands in a scanned structure for something in the file that is not plain.

    Attributes:
        verb: What it is, as the rest of a sentence: "is a set", "refers to posix.system".
        empty: Whether nothing was put into it.
    """

    verb: str
    empty: bool = True


@dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor of a file as numpy has it, for what is told without torch.

    Attributes:
        dtype: The type of its numbers, as torch writes it.
        raw: The numbers, which may lie in the file; `bfloat16`, which numpy lacks, as integers of 16 bits.

    Example:
        >>> half = FileTensor("torch.bfloat16", np.array([0x3F80, 0x4040], np.uint16))
        >>> half.numpy().tolist(), half[-1].item(), len(half)
        ([1.0, 3.0], 3.0, 2)
    """

    dtype: str
    raw: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the number of entries along each axis."""
        return self.raw.shape

    @property
    def ndim(self) -> int:
        """Returns the number of axes."""
        return self.raw.ndim

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """Returns the numbers as an array, as a tensor of torch does; what is in memory is not forced."""
        del force
        if self.dtype != "torch.bfloat16":
            return self.raw
        return np.asarray(self.raw.astype(np.uint32) << 16).view(np.float32)  # the upper half of a float32

    def __getitem__(self, index: Any) -> Any:
        """Returns a part of the array."""
        return self.numpy()[index]

    def __len__(self) -> int:
        """Returns the number of entries along the first axis."""
        return len(self.raw)

    def tolist(self) -> Any:
        """Returns the numbers as Python's."""
        return self.numpy().tolist()


def is_plain_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor of torch's own class, or one of a file.

    Example:
        >>> is_plain_tensor(torch.ones(2)), is_plain_tensor(torch.nn.Parameter(torch.ones(2)))
        (True, False)
    """
    return type(value) is FileTensor or (is_tensor(value) and type(value) is torch.Tensor)


def check_plain(
    value: Any, check_tensor: Callable[[Any, str], None], tensor_type: type | None = None, path: str = ""
) -> None:
    """Walk nested values and refuse whatever is not plain data or a tensor, naming it by its key path.

    Types are compared exactly: subclasses (an `OrderedDict`, a `Parameter`) are not plain. Lists and dicts
    may appear in several places, but depth and count are bounded, which also ends a structure that holds
    itself.

    Args:
        value: The value to walk; its outermost level must be a dict.
        check_tensor: Called with each tensor and its path.
        tensor_type: The type that stands for a tensor; by default those of `is_plain_tensor`.
        path: How the value is called in messages; empty for a whole file.

    Raises:
        RunFileError: Naming the first offending value.

    Example:
        >>> check_plain({"a": [1, {"b": {2}}]}, check_loaded_tensor)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: a[1]["b"] is a set, expected only None, bool, int, float, ...
    """
    seen = 0

    def walk(value: Any, path: str, depth: int) -> None:
        nonlocal seen
        seen += 1
        if seen > MAX_VALUES:
            raise RunFileError(f"holds more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise RunFileError(f"{path[:80]} is nested deeper than {MAX_DEPTH} levels")
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return
        if kind is int:
            if value.bit_length() > MAX_INT_BITS:
                raise RunFileError(f"{path} is an integer of {value.bit_length()} bits, expected at most 64")
        elif kind is str:
            _check_text(value, path)
        elif kind is list:
            for index, item in enumerate(value):
                walk(item, f"{path}[{index}]", depth + 1)
        elif kind is dict:
            for key, item in value.items():
                if type(key) is not str:
                    where = f"{path} has" if path else "it has"
                    raise RunFileError(f"{where} a key that is {describe(key)}, expected str keys")
                _check_text(key, f"a key of {path}" if path else "a key")
                if len(key) > MAX_KEY:
                    where = f"{path} has" if path else "it has"
                    raise RunFileError(f"{where} a key of {len(key)} characters, expected at most {MAX_KEY}")
                walk(item, f"{path}[{quoted(key)}]" if path else readable(key), depth + 1)
        elif is_plain_tensor(value) if tensor_type is None else kind is tensor_type:
            check_tensor(value, path)
        else:
            raise RunFileError(f"{path or 'its content'} {_is_a(value)}, {_expected(value, PLAIN)}")

    if type(value) is not dict:
        raise RunFileError(f"{path or 'its content'} {_is_a(value)}, {_expected(value, 'expected a dict')}")
    walk(value, path, 0)


def _expected(value: Any, usual: str) -> str:
    is_state_dict = isinstance(value, Foreign) and value.verb == "is an OrderedDict"
    return FROM_ELSEWHERE if is_state_dict else usual


def _check_text(text: str, path: str) -> None:
    """Refuse a string with lone surrogates: it could be neither printed nor written to a report."""
    if not text.isascii() and not is_utf8(text):
        raise RunFileError(f"{path} is not valid unicode text")


def readable(key: str) -> str:
    """Returns a key as messages write it: bare where it is a name, else in quotes.

    Example:
        >>> readable("steps"), readable("embed.W_E")
        ('steps', '"embed.W_E"')
    """
    return key if key.isidentifier() and key.isascii() and len(key) <= NAME_CHARACTERS else quoted(key)


def _is_a(value: Any) -> str:
    """The rest of a sentence: "is a tuple", or what a `Foreign` value says of itself."""
    return value.verb if isinstance(value, Foreign) else f"is {describe(value)}"


def describe(value: Any) -> str:
    """Returns the kind of a value as a person would name it.

    Example:
        >>> describe(1), describe(None), describe(torch.ones(2))
        ('an int', 'None', 'a tensor of shape (2,)')
    """
    if value is None:
        return "None"
    if type(value) is FileTensor or (is_plain_tensor(value) and not value.is_nested):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(called := getattr(type(value), "called", None), str):
        return called
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_loaded_tensor(tensor: Tensor | FileTensor, path: str) -> None:
    """Refuse a tensor that is not an ordinary dense one lying wholly inside its storage.

    Raises:
        RunFileError: For a sparse, quantised, complex or fake tensor, and for one whose elements overlap.
    """
    if isinstance(tensor, FileTensor):
        return  # its place was checked before it was made
    if tensor.is_nested:
        raise RunFileError(f"{path} is a nested tensor, expected a dense one")
    if tensor.layout is not torch.strided:
        raise RunFileError(f"{path} is a sparse tensor, expected a dense one")
    if tensor.is_quantized:
        raise RunFileError(f"{path} is a quantised tensor, expected a plain one")
    if str(tensor.dtype) not in ITEM_BYTES:
        raise RunFileError(f"{path} is a tensor of {tensor.dtype}, expected real numbers, integers or bool")
    if tensor.device.type == "meta":
        raise RunFileError(f"{path} is a tensor on the meta device: it has no data")
    check_strides(
        path,
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.untyped_storage().nbytes() // tensor.element_size(),
    )


def check_strides(path: str, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, room: int) -> None:
    """Refuse elements that overlap or reach outside their storage.

    Raises:
        RunFileError: Naming the tensor.

    Example:
        >>> check_strides("W", (2, 3), (3, 1), 0, 6)
        >>> check_strides("W", (2, 3), (0, 1), 0, 6)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: W is a tensor whose elements overlap in memory ...
    """
    if len(shape) != len(stride) or min((0, offset, *shape, *stride)) < 0:
        raise RunFileError(f"{path} has shape {shape}, strides {stride} and offset {offset}: not a tensor")
    axes = sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1)
    if any(size == 0 for _, size in axes):
        return
    reach = 0
    for step, size in axes:
        # Each axis must step over everything the faster ones cover.
        if step <= reach:
            raise RunFileError(f"{path} is a tensor whose elements overlap in memory (an expanded one?)")
        reach += step * (size - 1)
    if offset + reach >= room:
        raise RunFileError(f"{path} reaches outside its storage ({offset + reach + 1} of {room} elements)")
