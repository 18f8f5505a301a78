"""torch, imported when something of it is first used: what a run is, is told without it.

Importing torch takes more than a second of processor time. Modules that describe a run, and compute only when
they are asked to, take `torch` from here, and the types of their annotations: to a type checker these are
torch's, and at run time anything with the shape that is annotated.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mechmarkov.utils.shadowed import explaining

if TYPE_CHECKING:
    import torch as torch
    from torch import Generator as Generator
    from torch import Tensor as Tensor

    Device = torch.device | str
else:
    Device = Generator = Tensor = Any

    class WhenUsed(ModuleType):
        """A module that is imported when one of its names is asked for.

        Example:
            >>> WhenUsed("math").sqrt(4.0)
            2.0
        """

        def __getattr__(self, name: str) -> Any:
            with explaining():  # what is imported may import what a file next to a script hides
                return getattr(import_module(self.__name__), name)

    torch = WhenUsed("torch")


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a tensor; before torch is imported none is.

    Example:
        >>> is_tensor([1.0])
        False
    """
    return "torch" in sys.modules and isinstance(value, torch.Tensor)
