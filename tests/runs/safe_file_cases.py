"""What the tests of safe files share: equality bit for bit, and the message of a refusal."""

import math
from pathlib import Path

import pytest
import torch

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


def refusal(path: Path) -> str:
    """The message of a refusal: one printable line that begins with the path."""
    with pytest.raises(RunFileError) as caught:
        safe_file.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")
