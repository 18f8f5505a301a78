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
    """Versions of what made a run, the kind of device it ran on and how long that took, if it was measured.

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
    """For provenance, what a model's weights were where they were not all float32: a run's are."""
    kinds = sorted({str(value.dtype).removeprefix("torch.") for value in model.parameters()})
    return {} if kinds == ["float32"] else {"weights_were": ", ".join(kinds)}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout that was never installed
        return None
