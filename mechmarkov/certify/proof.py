"""Certificates as files: what a checker needs besides the run, and what a person reads first."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from mechmarkov.certify import checker
from mechmarkov.certify.bounds.ball import EXACT, FLOAT32
from mechmarkov.certify.certificate import Certificate
from mechmarkov.certify.form import check_form, check_shapes
from mechmarkov.certify.witness import seen_again
from mechmarkov.runs.run import Run
from mechmarkov.safe.file import check_regular, naming
from mechmarkov.safe.json_file import read_json
from mechmarkov.utils.errors import path_of
from mechmarkov.utils.files import replacing

FORMAT: Final = "mechmarkov.certificate"
VERSION: Final = 2
ARITHMETIC: Final = {EXACT: "exact", FLOAT32: "float32"}
# A claim is above its bound by so much: it has three digits, and a checker rounds otherwise.
ABOVE, ABOVE_ZERO = 1 + 1e-3, 1e-12
HUGE: Final = 1e300  # an upper bound like any other, and JSON has no infinity
MAX_BYTES: Final = 1 << 28


def proof_of(certificate: Certificate, step: int) -> dict[str, Any]:
    """A certificate as plain data.

    Args:
        certificate: With a bound.
        step: The step of the run that it is about.

    Raises:
        ValueError: It has none; the message says why.
    """
    bounds, contexts, seen = certificate.bounds, certificate.contexts, certificate.seen
    if certificate.worst_kl is None:
        raise ValueError(f"nothing is certified: {certificate.why}")
    low, high = certificate.worst_log_ratio or (-np.inf, np.inf)
    table, stored = certificate.program.table, {} if bounds is None else bounds.stored
    bound = {
        "worst_kl": certificate.worst_kl,
        "log_ratio_below": -low,
        "log_ratio_above": high,
        "logit_error": certificate.worst_logit_error,
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "arithmetic": ARITHMETIC[certificate.unit],
        "kind": "norm" if bounds is None else bounds.kind,
        "program": certificate.program.name,
        "table": None if table is None else table.tolist(),
        "contexts": {
            "n_states": contexts.n_states,
            "reads": list(contexts.reads),
            "start": contexts.start.tolist(),
            "transitions": contexts.transitions.tolist(),
            "query": contexts.query,
            "lags": list(contexts.lags),
        },
        "claims": {name: _claimed(value) for name, value in bound.items()},
        "seen": {"nats": seen.nats, "position": contexts.reads[seen.read], "sequence": seen.history.tolist()},
        "stored": {name: np.clip(values, -HUGE, HUGE).tolist() for name, values in stored.items()},
    }


def _claimed(value: float | None) -> float | None:
    """A bound as a claim; None where there is no finite one."""
    return None if value is None or not np.isfinite(value) else float(value) * ABOVE + ABOVE_ZERO


def save_proof(proof: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a proof as JSON, whole or not at all.

    Args:
        proof: The proof: `proof_of(certificate, step)`.
        path: The file; one that exists is replaced.
    """
    with replacing(Path(path)) as temporary:
        temporary.write_text(json.dumps(proof, allow_nan=False), "utf-8")


def check_replaces_proof(path: str | os.PathLike[str]) -> None:
    """Refuse to put a proof in the place of a file that is not one, such as the run that it is about.

    Raises:
        ValueError: One line that begins with the path.
    """
    if not os.path.exists(path) or not os.path.getsize(path):
        return
    with suppress(ValueError):
        data = read_json(path, MAX_BYTES)
        if isinstance(data, dict) and data.get("format") == FORMAT:
            return
    raise ValueError(
        f"{os.fspath(path)}: exists and is not a proof, expected a new file or a proof to replace"
    )


def load_proof(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a proof; its fields have the right types then, and what they say is checked by `verify`.

    Raises:
        ValueError: One line, for a file that is not a proof.
    """
    path = path_of("path", path)
    with naming(path):
        check_regular(path)
    try:
        proof = read_json(path, MAX_BYTES)
        check_form(proof)
    except ValueError as error:
        raise ValueError(f"{path} is not a proof: {error}") from None
    return proof


def verify(proof: dict[str, Any], run: Run) -> dict[str, float]:
    """Check every inequality of a proof against a run, and return the bounds that follow (nats).

    What decides is `mechmarkov.certify.checker`, which shares no code with the search. Then the model is run
    on the sequence that the proof shows.

    Args:
        proof: A proof that `load_proof` reads, or `proof_of` makes.
        run: The run that it is about.

    Returns:
        `worst_kl`, `log_ratio_below`, `log_ratio_above` and `logit_error`.

    Raises:
        ValueError: It is not a proof of such a run, an inequality fails, a claim is below what follows, the
            table is not what `program` names, or the model gives another number than what was seen; the
            message says which.
    """
    check_form(proof)
    check_shapes(proof, run)
    try:
        follows = checker.verify(proof, run)
    except IndexError:  # all else that an index is taken of has its shape by now
        raise ValueError("stored.closed names a piece that is not there") from None
    seen_again(proof, run)
    return follows
