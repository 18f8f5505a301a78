"""A measurement that is exact draws no random number: a decorator says so, and the harness watches it.

torch names its own random operations (the tag `nondeterministic_seeded`), whichever generator they draw from.
numpy's generators are made by `default_rng`, and its global one has a state, as Python's has.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

Measure = TypeVar("Measure", bound=Callable[..., Any])
_watching: ContextVar[bool] = ContextVar("watching", default=False)


class RandomNumberError(RuntimeError):
    """An exact measurement drew a random number."""


class _NoRandomOperations(TorchDispatchMode):
    """Within it, an operation of torch that draws is an error."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if torch.Tag.nondeterministic_seeded in func.tags and not _without_dropout(func, args, kwargs or {}):
            raise RandomNumberError(f"{func} draws a random number")
        return func(*args, **kwargs or {})


def _without_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation would draw for its dropout alone, and has none."""
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    return any(a.name == "dropout_p" and not given.get("dropout_p", 0.0) for a in func._schema.arguments)


def _refused(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    raise RandomNumberError("numpy's default_rng draws random numbers")


@contextmanager
def no_random_numbers() -> Iterator[None]:
    """Refuse every draw of a random number, by torch, numpy or Python.

    Raises:
        RandomNumberError: One was drawn.

    Example:
        >>> with no_random_numbers():
        ...     total = torch.arange(3).sum() + np.arange(3).sum()
        >>> int(total)
        6
    """
    before, default_rng = _global_states(), np.random.default_rng
    np.random.default_rng, token = _refused, _watching.set(True)
    try:
        with _NoRandomOperations():
            yield
    finally:
        np.random.default_rng = default_rng
        _watching.reset(token)
    if _global_states() != before:
        raise RandomNumberError("a global generator of numpy or Python has moved on")


def refuse_samples(population: bool, name: str) -> None:
    """Refuse training on samples in an exact measurement: a run that is kept is read without a draw."""
    if _watching.get() and not population:
        raise RandomNumberError(f"{name} trains on samples, expected the whole law (data.population)")


def _global_states() -> tuple[Any, ...]:
    name, keys, position, *gauss = np.random.get_state()
    return random.getstate(), name, tuple(keys), position, tuple(gauss)


def exactly(measure: Measure) -> Measure:
    """Mark a measurement as exact: proved, or computed without a random number.

    Only a measurement that is marked may say so of its findings, and the harness refuses what it draws.
    """
    measure.__dict__["exact"] = True
    return measure


def is_exact(measure: Callable[..., Any]) -> bool:
    """Whether a measurement is marked as exact."""
    return bool(getattr(measure, "exact", False))
