"""The form of a proof: every field by its type, and what it stores by the shapes that a run's proof has."""

from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from mechmarkov.certify.contexts import n_cases
from mechmarkov.runs.run import Run
from mechmarkov.utils.config import Fields, Integer, Number, Truth
from mechmarkov.utils.errors import one_line
from mechmarkov.utils.text import printable, shown

MOST_LAGS = 8
MOST_PIECES = 1024  # of a box; a search takes 256


class Contexts(Fields):
    """The sequences that a proof is about."""

    n_states: Integer
    reads: list[Integer]
    start: list[Truth]
    transitions: list[list[Truth]]
    query: Truth
    lags: list[Integer]


class Bounds(Fields):
    """Bounds that are claimed of every sequence, in nats; None where nothing is."""

    worst_kl: Number | None
    log_ratio_below: Number | None
    log_ratio_above: Number | None
    logit_error: Number | None


class Seen(Fields):
    """The worst sequence that a search found."""

    nats: Number
    position: Integer
    sequence: list[Integer]


class Proof(Fields):
    """A proof as `certify` writes it."""

    format: Literal["mechmarkov.certificate"]
    version: Literal[2]
    step: Integer
    arithmetic: Literal["exact", "float32"]
    kind: Literal["norm", "logits", "raw scores", "counts", "relaxed", "layers"]
    program: str
    table: list[list[Number]] | None
    contexts: Contexts
    claims: Bounds
    seen: Seen
    stored: dict[str, Any]


def check_form(proof: Any) -> None:
    """Refuse what is not a proof, whatever run it is about.

    Raises:
        ValueError: One line that names field, value and what was expected.

    Example:
        >>> check_form([])
        Traceback (most recent call last):
        ValueError: it is [], expected an object
    """
    if not isinstance(proof, dict):
        raise ValueError(f"it is {shown(proof)}, expected an object")
    try:
        Proof.model_validate(proof)
    except ValidationError as error:
        raise ValueError(one_line(error, Proof)) from None
    for name, values in proof["stored"].items():
        _array(f"stored.{name}", values)


def check_shapes(proof: dict[str, Any], run: Run) -> None:
    """Refuse a proof whose arrays do not have the shapes that one of a run has.

    Args:
        proof: A proof that `check_form` took.
        run: The run that it is about.

    Raises:
        ValueError: One line that names the field, its shape and what was expected.
    """
    c, n, contexts, stored = run.config, run.source.n_states, proof["contexts"], proof["stored"]
    lags = contexts["lags"]
    if lags[:1] != [1] or lags != sorted(set(lags)) or lags[-1] > c.n_ctx or len(lags) > MOST_LAGS:
        raise ValueError(f"contexts.lags is {shown(lags)}, expected ascending lags that begin with 1")
    rows = n_cases(n, lags)
    if (table := proof["table"]) is not None:
        _expect("table", np.shape(_array("table", table)), (rows, n))
    elif proof["kind"] != "norm":
        raise ValueError("table is None, expected a law for each state")
    _expect("contexts.start", np.shape(contexts["start"]), (n,))
    _expect("contexts.transitions", np.shape(_array("contexts.transitions", contexts["transitions"])), (n, n))
    case, out, d, heads = (len(contexts["reads"]), rows), c.d_vocab_out, c.d_model, c.n_heads
    pairs = out * (out - 1)
    of_kind: dict[str, dict[str, tuple[int, ...]]] = {
        "logits": {"multipliers": (*case, pairs, heads)},
        "raw scores": {
            "multipliers": (*case, pairs, heads),
            "ratio": (*case, pairs),
            **dict.fromkeys(("ceiling", "floor"), (*case, out, heads)),
        },
        "relaxed": {"multipliers": (*case, 2 * d, heads), "cuts": (*case, 4), "basis": (d, d)},
    }
    inner = c.n_layers - 1
    of_kind["layers"] = of_kind["relaxed"] | {
        "inner_basis": (inner, d, d),
        "inner_multipliers": (inner, c.n_ctx, c.d_vocab, 2 * d, heads),
        "inner_cuts": (inner, c.n_ctx, c.d_vocab, 4),
    }
    expected = of_kind.get(proof["kind"], {})
    if proof["kind"] in ("relaxed", "layers") and "closed" in stored:
        closed = _array("stored.closed", stored["closed"])
        expected |= {"closed": (len(closed) if closed.ndim else 0, 5 + d + heads)}
    if set(stored) != set(expected):
        names = [", ".join(sorted(known)) or "nothing" for known in (stored, expected)]
        raise ValueError(f"stored has {printable(names[0], 200)}, expected {names[1]}")
    for name, shape in expected.items():
        _expect(f"stored.{name}", _array(f"stored.{name}", stored[name]).shape, shape)
    for name in ("cuts", "inner_cuts"):
        cuts = np.asarray(stored.get(name, 1))
        if (cuts % 1).any() or not (cuts >= 0).all() or not (cuts.prod(-1) <= MOST_PIECES).all():
            raise ValueError(
                f"stored.{name} is {shown(stored[name])}, expected whole numbers, "
                f"{MOST_PIECES} pieces at most"
            )


def _array(name: str, values: Any) -> np.ndarray:
    """Nested lists of numbers as an array."""
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.asarray(None)
    if found.dtype.kind not in "biuf" or not np.isfinite(found).all():
        raise ValueError(f"{name} is {shown(values)}, expected an array of finite numbers")
    return found


def _expect(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"{name} has shape {list(shape)}, expected {list(expected)}")
