"""Where a run came from, as plain values."""

import functools
import platform
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

PACKAGES = {"mechmarkov": "mechmarkov", "torch": "torch", "transformer_lens": "transformer-lens"}


def provenance(
    device: torch.device | str, wall_seconds: float | None = None
) -> dict[str, str | float | None]:
    """Returns versions of what made a run, the kind of device, and wall seconds where these were measured.

    Example:
        >>> sorted(provenance("cpu", wall_seconds=1.5))
        ['device', 'mechmarkov', 'python', 'torch', 'transformer_lens', 'wall_seconds']
    """
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **{key: _version(package) for key, package in PACKAGES.items()},
        "python": platform.python_version(),
        "device": name,
        "wall_seconds": wall_seconds,
    }


def number_types(model: nn.Module) -> dict[str, str]:
    """Returns, for provenance, the types of a model's weights where they are not all float32, as a run's are.

    Example:
        >>> number_types(nn.Linear(2, 2)), number_types(nn.Linear(2, 2).double())
        ({}, {'weights_were': 'float64'})
    """
    kinds = sorted({str(value.dtype).removeprefix("torch.") for value in model.parameters()})
    return {} if kinds == ["float32"] else {"weights_were": ", ".join(kinds)}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout that was never installed
        return None
