"""Which device to compute on, and whether kernels can be made for it."""

import os
import shutil
from importlib.util import find_spec

import torch

from mechmarkov.utils.text import shown


def pick_device(name: str) -> torch.device:
    """The torch device of a name; `auto` is CUDA where there is any, else the CPU.

    Raises:
        ValueError: For a name that is not a device, or CUDA on a machine without it.

    Example:
        >>> pick_device("cpu")
        device(type='cpu')
    """
    if not isinstance(name, str) or name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {shown(name)}, expected 'auto', 'cpu' or 'cuda'")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def can_compile_kernels() -> bool:
    """Returns whether kernels can be made here: Triton comes with torch for CUDA, and wants a C compiler."""
    compilers = os.environ.get("CC", "gcc"), "clang"
    return find_spec("triton") is not None and any(map(shutil.which, compilers))
