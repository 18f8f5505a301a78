"""A method: a function of a case that claims effects, a belief, a subspace or features."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mechmarkov.bench.case import Case
from mechmarkov.utils import plugins

GROUP = "mechmarkov.methods"


@dataclass(frozen=True)
class Method:
    """An interpretability method.

    Attributes:
        name: Of the method.
        of: What its claims are about.
        claims: From a case to a number for every node or edge, above 0 where it says that the model needs it;
            of beliefs, to a `Claim`; of a subspace, to an orthonormal `[d_model, rank]`; of features, to
            directions `[feature, d_model]`; of coefficients, to one number. Where it can say nothing of a
            case, one sentence why.
        cites: Where it comes from.
        unit: Of its numbers; only claims in nats are scored by their size.
    """

    name: str
    of: Literal["nodes", "edges", "beliefs", "subspaces", "features", "coefficients"]
    claims: Callable[[Case], Any]
    cites: str = ""
    unit: str = "nats"


def registered() -> list[str]:
    """The names of all registered methods, ours and others' alike."""
    return list(plugins.registered(GROUP))


def load_method(name: str) -> Method:
    """A method by the name it is registered under.

    Raises:
        ValueError: If there is none, or what is registered is not a `Method` of that name.
    """
    return plugins.load(name, Method, plugins.registered(GROUP))


def checked_claims(method: Method, case: Case) -> dict[str, float] | str:
    """A method's claims about a case's nodes or edges, or its reason why it makes none.

    Raises:
        ValueError: A component without a claim, a claim about another, or one that is not a finite number.
    """
    expected = list(case.nodes if method.of == "nodes" else case.edges)
    claims = method.claims(case)
    if isinstance(claims, str):
        return claims
    claims = dict(claims)
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
