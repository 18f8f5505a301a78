"""What the tests of safe files share: equality bit for bit, the message of a refusal, files that run code."""

import builtins
import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_files import Call, handmade, rebuilt, storage_of, touch

from mechmarkov.runs import RunFileError
from mechmarkov.safe import file as safe_file


def same(a: object, b: object) -> bool:
    """Equal in type and value, bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def refusal(path: Path, read: Callable[[Path], object] = safe_file.read) -> str:
    """The message of a refusal: one printable line that begins with the path."""
    with pytest.raises(RunFileError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")


def message_of(call: Callable[..., object], *arguments: object) -> str:
    """The message of a refusal as it is, or nothing where a call goes through."""
    try:
        call(*arguments)
    except RunFileError as error:
        return str(error)
    return ""


def payloads(marker: Path) -> dict[str, object]:
    return {
        "plain": {"a": touch(marker)},
        "nested": {"a": [{"b": [1, [touch(marker)]]}]},
        "key": {touch(marker): 1},
        "whole": touch(marker),
        "eval": {"a": Call(builtins.eval, f"open({str(marker)!r}, 'w')")},
        "state": {"a": Call(OrderedDict, [("a", touch(marker))])},
        "run": {**handmade(), "provenance": {"x": touch(marker)}},
        "in a tensor": {"a": Call(torch._utils._rebuild_tensor_v2, touch(marker), 0, (1,), (1,), False, {})},
        "hooks": {"a": rebuilt(storage_of(torch.zeros(3)), 0, (3,), (1,), OrderedDict(a=touch(marker)))},
    }
