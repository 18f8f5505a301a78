"""Reading what a pickle would build, without building it.

`torch.load(weights_only=True)` executes nothing, yet it allocates what a file asks for, and its messages
span several lines. So the pickle is first run on a machine that knows only the few instructions torch needs
for plain dicts of tensors and puts a `TensorPlan` where torch would make a tensor.
"""

import pickletools
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from mechmarkov.safe.plain_data import ITEM_BYTES, MAX_INT_BITS, MAX_KEY, Foreign, RunFileError, check_strides
from mechmarkov.utils.text import NAME_CHARACTERS, printable

MAX_INSTRUCTIONS = 250_000  # a quarter of a second; a chain of 450 states, written out as lists, fits
MAX_STACK = 10_000  # torch writes a list or dict a thousand items at a time; more is nesting without end
MAX_KEY_PARTS = 16
REBUILD = "torch._utils _rebuild_tensor_v2"
ORDERED_DICT = "collections OrderedDict"
STORAGES = {
    "torch DoubleStorage": "torch.float64",
    "torch FloatStorage": "torch.float32",
    "torch HalfStorage": "torch.float16",
    "torch BFloat16Storage": "torch.bfloat16",
    "torch LongStorage": "torch.int64",
    "torch IntStorage": "torch.int32",
    "torch ShortStorage": "torch.int16",
    "torch CharStorage": "torch.int8",
    "torch ByteStorage": "torch.uint8",
    "torch BoolStorage": "torch.bool",
}
LITERALS = {"BINUNICODE", "BINFLOAT", "BININT", "BININT1", "BININT2", "LONG1"}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
MARK = object()  # where a tuple, or the items of a list or dict, begin on the stack
# What people store by mistake, in their words.
NAMES = {
    "collections OrderedDict": "is an OrderedDict",
    "torch._utils _rebuild_parameter": "is a Parameter",
    "torch._utils _rebuild_sparse_tensor": "is a sparse tensor",
    "torch._utils _rebuild_qtensor": "is a quantised tensor",
    "torch._utils _rebuild_tensor_v3": "is a tensor of float8 or of unsigned integers",
    "torch ComplexFloatStorage": "is a complex tensor",
    "torch ComplexDoubleStorage": "is a complex tensor",
    "_codecs encode": "is bytes",
    "__builtin__ bytes": "is bytes",
    "__builtin__ bytearray": "is a bytearray",
    "__builtin__ set": "is a set",
    "__builtin__ complex": "is a complex number",
}


@dataclass(frozen=True)
class TensorPlan:
    """A tensor that a pickle asks for, before anything of it is allocated.

    Attributes:
        dtype: The type of its numbers, as torch writes it: "torch.float32".
        key: The name of its storage in the archive.
        shape: The number of entries along each axis.
        stride: Elements from one entry of an axis to the next.
        offset: Elements before its first one in the storage.
        room: How many elements the storage has.
    """

    called: ClassVar[str] = "a tensor"  # in messages
    dtype: str
    key: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    room: int


@dataclass(frozen=True)
class Storage:
    """A storage that a pickle refers to: its type, its name in the archive, and how many elements it has."""

    dtype: str
    key: str
    room: int


@dataclass(frozen=True)
class Known:
    """A name that torch needs to rebuild a tensor."""

    name: str


def scan(pickled: bytes, machine: "Machine | None" = None) -> tuple[Any, Foreign | None]:
    """Follow a pickle without building it: nothing is imported, called or allocated as it claims.

    Args:
        pickled: The pickle.
        machine: By default one that knows plain values and tensors only.

    Returns:
        The structure that it describes, with a `TensorPlan` for a tensor and a `Foreign` for anything else;
        and the first foreign thing that it names, which may then be hidden (overwritten in a dict, say), or
        None.

    Raises:
        RunFileError: For an instruction outside the list, or a pickle that makes no sense.

    Example:
        >>> import os, pickle
        >>> scan(pickle.dumps({"a": [1, None]}, protocol=2))
        ({'a': [1, None]}, None)
        >>> scan(pickle.dumps(os.getcwd, protocol=2))[1].verb
        'refers to posix.getcwd'
    """
    machine = machine or Machine()
    try:
        for opcode, argument, _ in islice(pickletools.genops(pickled), MAX_INSTRUCTIONS):
            if opcode.name == "STOP":
                (result,) = machine.stack
                return result, machine.foreign
            machine.step(opcode.name, argument)
            if len(machine.stack) > MAX_STACK:
                raise RunFileError(f"its pickle holds more than {MAX_STACK} unfinished values at once")
    except RunFileError:
        raise
    except Exception as error:  # whatever a broken pickle breaks
        raise RunFileError(f"its pickle is damaged ({type(error).__name__})") from error
    raise RunFileError(f"its pickle has more than {MAX_INSTRUCTIONS} instructions")


class Machine:
    """Runs a pickle's instructions on a stack of plain values, `TensorPlan`s and `Foreign`s; see `scan`."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.foreign: Foreign | None = None

    def step(self, name: str, argument: Any) -> None:
        """Carry out one instruction, by its name in `pickletools`."""
        stack = self.stack
        if name in LITERALS:
            stack.append(argument)
            return
        if name in CONSTANTS:
            stack.append(CONSTANTS[name])
            return
        match name:
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "MARK":
                stack.append(MARK)
            case "TUPLE":
                stack.append(tuple(self.pop_mark()))
            case "TUPLE1":
                stack[-1] = (stack[-1],)
            case "TUPLE2":
                stack[-2:] = [(stack[-2], stack[-1])]
            case "TUPLE3":
                stack[-3:] = [(stack[-3], stack[-2], stack[-1])]
            case "APPEND":
                self.add(list, [stack.pop()])
            case "APPENDS":
                self.add(list, self.pop_mark())
            case "SETITEM":
                self.add(dict, [stack.pop(-2), stack.pop()])
            case "SETITEMS":
                self.add(dict, self.pop_mark())
            case "GLOBAL":
                stack.append(self.named(argument))
            case "BINPERSID":
                stack.append(self.storage(stack.pop()))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(self.call(stack.pop(), arguments))
            case "NEWOBJ":
                stack.pop()
                self.need_foreign("NEWOBJ")
            case "BUILD":
                self.build(stack.pop())
            case "EMPTY_SET":
                stack.append(self.make_foreign("is a set"))
            case "SHORT_BINSTRING" | "BINSTRING" | "SHORT_BINBYTES" | "BINBYTES":
                stack.append(self.make_foreign("is bytes"))
            case "PROTO":
                pass
            case _:
                raise RunFileError(f"its pickle uses the instruction {name}, which torch.save does not write")

    def pop_mark(self) -> list[Any]:
        """Take everything above the last mark off the stack."""
        items = []
        while (item := self.stack.pop()) is not MARK:
            items.append(item)
        return items[::-1]

    def add(self, kind: type, items: list[Any]) -> None:
        """Add items to the list, or keys and values by turns to the dict, on top of the stack."""
        target = self.stack[-1]
        if isinstance(target, Foreign):
            target.empty = False
        elif type(target) is list and kind is list:
            target.extend(items)
        elif type(target) is dict and kind is dict:
            _check_keys(items[::2])
            target.update(zip(items[::2], items[1::2], strict=True))
        else:
            raise TypeError(f"items for something that is not a {kind.__name__}")

    def build(self, state: Any) -> None:
        """`__setstate__`, which no plain value has."""
        del state  # a machine that knows more kinds of values reads it
        self.need_foreign("BUILD").empty = False

    def no_hooks(self, hooks: Any) -> bool:
        """Returns whether a tensor has no hooks: an empty ordered dict."""
        return isinstance(hooks, Foreign) and hooks.verb == NAMES[ORDERED_DICT] and hooks.empty

    def make_foreign(self, verb: str) -> Foreign:
        """Returns what stands for a thing that is not plain; the first is remembered."""
        made = Foreign(verb)
        self.foreign = self.foreign or made
        return made

    def need_foreign(self, name: str) -> Foreign:
        """Returns the thing on top of the stack; a RunFileError where it is not foreign."""
        if not isinstance(self.stack[-1], Foreign):
            raise RunFileError(f"its pickle uses the instruction {name} on something of its own")
        return self.stack[-1]

    def named(self, name: str) -> Any:
        """Returns what stands for a global, "module name": nothing is imported."""
        if name in STORAGES or name in (REBUILD, ORDERED_DICT):
            return Known(name)
        if name.startswith("numpy"):
            return self.make_foreign("is a numpy array or number")
        dotted = printable(name.replace(" ", ".", 1), NAME_CHARACTERS)
        return self.make_foreign(NAMES.get(name, f"refers to {dotted}"))

    def storage(self, saved: Any) -> Storage | Foreign:
        """Returns the storage that a persistent id describes: its kind, its name and its size."""
        tag, kind, key, location, room = saved
        if isinstance(kind, Foreign):
            return kind
        known = tag == "storage" and isinstance(kind, Known) and kind.name in STORAGES
        if not known or [type(x) for x in (key, location, room)] != [str, str, int] or room < 0:
            raise TypeError("not a storage")
        return Storage(STORAGES[kind.name], key, room)

    def call(self, function: Any, arguments: Any) -> Any:
        """Returns what a call would make: a `TensorPlan`, or a `Foreign`; nothing is called."""
        if isinstance(function, Foreign):
            return function
        if isinstance(function, Known) and function.name == ORDERED_DICT:
            # The hooks of a tensor. As a value of its own it is foreign, but harmless: not reported apart.
            return Foreign(NAMES[ORDERED_DICT], empty=arguments == ())
        if not isinstance(function, Known) or function.name != REBUILD:
            raise TypeError("a call of something that is not a function")
        storage, offset, shape, stride, needs_gradient, hooks = arguments
        if isinstance(storage, Foreign):
            return storage
        if not isinstance(storage, Storage) or type(needs_gradient) is not bool:
            raise TypeError("not a tensor")
        if not self.no_hooks(hooks):
            raise RunFileError("a tensor in it carries hooks")
        numbers = (offset, *shape, *stride)
        if type(shape) is not tuple or type(stride) is not tuple or {type(n) for n in numbers} != {int}:
            raise TypeError("not a tensor")
        if max(numbers) >= 2**62:
            raise RunFileError("a tensor in it is larger than any memory")
        return TensorPlan(storage.dtype, storage.key, shape, stride, offset, storage.room)


def _check_keys(keys: list[Any]) -> None:
    """Refuse keys that a dict would hash or compare without end.

    A tuple is hashed item by item, nested ones at every level. Integers of many bits can share a hash.

    Raises:
        RunFileError: For a long or nested tuple, a long text, and a large integer, in a tuple or not.
    """
    for key in keys:
        if type(key) is str and len(key) > MAX_KEY:
            raise RunFileError(f"it has a key of {len(key)} characters, expected at most {MAX_KEY}")
        parts = key if type(key) is tuple else (key,)
        if len(parts) > MAX_KEY_PARTS or any(type(part) is tuple for part in parts):
            raise RunFileError("it has a key that is a long or nested tuple, expected str keys")
        if any(type(part) is int and part.bit_length() > MAX_INT_BITS for part in parts):
            raise RunFileError(f"it has a key with an integer of over {MAX_INT_BITS} bits, expected str keys")


def check_plan(plan: TensorPlan, path: str, sizes: dict[str, int]) -> None:
    """Refuse a planned tensor that disagrees with the archive, or whose elements overlap or lie outside.

    Args:
        plan: The tensor.
        path: What messages call it.
        sizes: The bytes of each storage in the archive.

    Raises:
        RunFileError: Naming the tensor.

    Example:
        >>> check_plan(TensorPlan("torch.float32", "0", (2,), (1,), 0, 2), "W", {"0": 8})
        >>> check_plan(TensorPlan("torch.float32", "0", (2,), (1,), 0, 2), "W", {"0": 4})
        Traceback (most recent call last):
        mechmarkov.safe.plain_data.RunFileError: W has 4 bytes of data, expected 8
    """
    if plan.key not in sizes:
        raise RunFileError(f"{path} has no data in the file")
    expected = plan.room * ITEM_BYTES[plan.dtype]
    if sizes[plan.key] != expected:
        raise RunFileError(f"{path} has {sizes[plan.key]} bytes of data, expected {expected}")
    check_strides(path, plan.shape, plan.stride, plan.offset, plan.room)
