"""A method: a function of a case that claims effects, a belief, a subspace or features."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mechmarkov.bench.case import Case
from mechmarkov.utils import plugins

GROUP = "mechmarkov.methods"
ORTHONORMAL = 1e-4  # how far from it a basis may be: methods work in float32


@dataclass(frozen=True)
class Method:
    """An interpretability method.

    Attributes:
        name: The name of the method.
        of: What its claims are about.
        claims: From a case to a number for every node or edge, above 0 where it says that the model needs it;
            of beliefs, to a `Claim`; of a subspace, to an orthonormal `[d_model, rank]`; of features, to
            directions `[feature, d_model]`; of coefficients, to one number. Where it can say nothing of a
            case, one sentence why.
        cites: Where it comes from.
        unit: The unit of its numbers; only claims in nats are scored by their size.
    """

    name: str
    of: Literal["nodes", "edges", "beliefs", "subspaces", "features", "coefficients"]
    claims: Callable[[Case], Any]
    cites: str = ""
    unit: str = "nats"


def registered() -> list[str]:
    """The names of all registered methods, ours and others'."""
    return list(plugins.registered(GROUP))


def load_method(name: str) -> Method:
    """A method by the name it is registered under.

    Raises:
        ValueError: If there is none, or what is registered is not a `Method` of that name.
    """
    return plugins.load(name, Method, plugins.registered(GROUP))


def checked_claims(method: Method, case: Case) -> Any:
    """A method's claims about a case, or its reason why it makes none.

    Raises:
        ValueError: A component without a claim, a claim about another, or one that is not a finite number. A
            subspace of another rank than it was told, or whose directions are not orthonormal: it would be
            moved by more than is in it. A coefficient that is not finite, as no mean would count it.
    """
    claims = method.claims(case)
    if isinstance(claims, str):
        return claims
    if method.of == "subspaces" and case.subspace is not None:
        basis, (width, rank) = np.asarray(claims), case.subspace[1].shape
        if basis.shape != (width, rank) or not np.allclose(basis.T @ basis, np.eye(rank), atol=ORTHONORMAL):
            raise ValueError(
                f"method {method.name!r} claims a basis {list(basis.shape)} in case {case.name!r}, "
                f"expected an orthonormal {[width, rank]}"
            )
    if method.of == "coefficients" and not math.isfinite(value := float(claims)):
        raise ValueError(
            f"method {method.name!r} claims {value} in case {case.name!r}, expected a finite number"
        )
    if method.of not in ("nodes", "edges"):
        return claims
    expected, claims = list(case.nodes if method.of == "nodes" else case.edges), dict(claims)
    for name in [*expected, *claims]:
        if name not in claims or name not in expected:
            what = "lacks" if name not in claims else "has"
            raise ValueError(
                f"method {method.name!r} {what} a claim about {name!r}, "
                f"expected one for each of the {len(expected)} {method.of} of case {case.name!r}"
            )
        if not math.isfinite(value := float(claims[name])):
            raise ValueError(f"method {method.name!r} claims {value} for {name!r}, expected a finite number")
    return {name: float(claims[name]) for name in expected}
