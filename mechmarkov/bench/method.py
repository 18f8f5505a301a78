"""A method: a function of a case that claims effects, a belief, a subspace or features."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from torch.nn.modules.module import register_module_forward_pre_hook

from mechmarkov.bench.case import Case
from mechmarkov.bench.metrics import METRICS
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.utils import plugins
from mechmarkov.utils.errors import choice_of
from mechmarkov.utils.text import is_utf8, printable, shown

GROUP = "mechmarkov.methods"
ORTHONORMAL = 1e-4  # how far from it a basis may be: methods work in float32
EVERY = tuple(METRICS)
Of = Literal["nodes", "edges", "layers", "beliefs", "subspaces", "features", "coefficients"]
Passes = int | Callable[[Case], int] | None


class BrokenPromiseError(ValueError):
    """A method claims what cannot be scored, or took more passes than it declared."""


@dataclass(frozen=True)
class Method:
    """An interpretability method.

    Attributes:
        name: The name of the method.
        of: What its claims are about.
        claims: From a case to a number for every node, edge or layer, above 0 where the change leads away
            from the clean answer, in the case's metric; of beliefs, to a `BeliefClaim`; of a subspace, to an
            orthonormal `[d_model, rank]`; of features, to directions `[feature, d_model]`; of coefficients,
            to one number. Where it can say nothing of a case, one sentence why.
        cites: Where it comes from.
        metrics: The metrics that its authors run it with. Under these its numbers are effects; under others
            those of the first are scored by order and sign. Without any, its numbers have a unit of their
            own: they are sizes, without a sign, and their order is compared with that of the effects' sizes.
        tunes: What it fits or chooses, on `case.tuning`; "" for nothing.
        passes: The most forward passes that it takes of a case: a number, or a function of the case. Taking
            more is an error. None is not declared.
        reference: Whether it runs the interventions that make the truth: shown, and not ranked.
    """

    name: str
    of: Of
    claims: Callable[[Case], Any]
    cites: str = ""
    metrics: tuple[str, ...] = ("nats",)
    tunes: str = ""
    passes: Passes = None
    reference: bool = False

    def __post_init__(self) -> None:
        method = f"method {shown(self.name)}"
        if isinstance(self.name, str) and not is_utf8(self.name):
            raise ValueError(f"name is {shown(self.name)}, expected a text that UTF-8 has")
        choice_of(f"{method}: of", self.of, get_args(Of))
        if isinstance(self.metrics, list):
            object.__setattr__(self, "metrics", tuple(self.metrics))
        if not isinstance(self.metrics, tuple):
            raise TypeError(f"{method} has metrics {shown(self.metrics)}, expected a tuple: ('nats',)")
        for metric in self.metrics:
            if metric not in METRICS:
                expected = ", ".join(METRICS)
                raise ValueError(f"{method} has metric {shown(metric)}, expected some of {expected}")

    def declared(self, case: Case) -> int | None:
        """The most forward passes that it takes of a case, as it says itself.

        Raises:
            BrokenPromiseError: It says something that is not a number.
        """
        passes = self.passes(case) if callable(self.passes) else self.passes
        if not isinstance(passes, int | float | np.number | None):
            raise BrokenPromiseError(f"declares {shown(passes)} passes, expected a number or None")
        return passes


def registered() -> list[str]:
    """The names of all registered methods, ours and others'."""
    return list(plugins.registered(GROUP))


def load_method(name: str) -> Method:
    """A method by the name it is registered under.

    Raises:
        ValueError: If there is none, or what is registered is not a `Method` of that name.
    """
    return plugins.load(name, Method, plugins.registered(GROUP))


@contextmanager
def counted_passes() -> Iterator[list[None]]:
    """A list that grows by one with each forward pass of any model inside the block, of copies too."""
    passes: list[None] = []

    def count(module: Any, _: Any) -> None:
        if isinstance(module, HookedDecoder):
            passes.append(None)

    handle = register_module_forward_pre_hook(count)
    try:
        yield passes
    finally:
        handle.remove()


def checked_claims(method: Method, case: Case) -> Any:
    """A method's claims about a case, or its reason why it makes none.

    Raises:
        BrokenPromiseError: A component without a claim, a claim about another, or one that is not a finite
            number. A subspace of another rank than it was told, or whose directions are not orthonormal: it
            would be moved by more than is in it. A coefficient that is not finite, as no mean would count it.
    """
    claims = method.claims(case)
    if isinstance(claims, str):
        if not claims.strip():
            raise BrokenPromiseError(
                "gives an empty text, expected claims or one sentence why there are none"
            )
        return printable(" ".join(claims.split()))
    if method.of == "subspaces" and case.subspace is not None:
        basis, (width, rank) = np.asarray(claims), case.subspace[1].shape
        if basis.shape != (width, rank) or not np.allclose(basis.T @ basis, np.eye(rank), atol=ORTHONORMAL):
            expected = f"expected an orthonormal {[width, rank]}"
            raise BrokenPromiseError(f"claims a basis {list(basis.shape)}, {expected}")
    if method.of == "coefficients" and not math.isfinite(value := float(claims)):
        raise BrokenPromiseError(f"claims {value}, expected a finite number")
    if method.of not in ("nodes", "edges", "layers"):
        return claims
    components, claims = list(getattr(case, method.of)), dict(claims)
    for name in [*components, *claims]:
        if name not in claims or name not in components:
            what = "lacks" if name not in claims else "has"
            known = f"expected one for each of the {len(components)} {method.of}"
            raise BrokenPromiseError(f"{what} a claim about {name!r}, {known}")
        if not math.isfinite(value := float(claims[name])):
            raise BrokenPromiseError(f"claims {value} for {name!r}, expected a finite number")
    return {name: float(claims[name]) for name in components}
