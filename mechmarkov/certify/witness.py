"""Check the rest of a proof: which program its table is, and the worst sequence that was seen."""

import math
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.certify.programs import Program, from_source, of_table
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.runs.run import Run
from mechmarkov.theory.kernel import kl
from mechmarkov.utils.text import shown

# Machines add in different orders: how far log-probabilities are off, as a share of the largest score.
OFF: Final = {"float32": 3e-6, "exact": 1e-12}
ROUNDED: Final = 1e-14  # nats, of a sum of logarithms in float64
TABLES: Final = ("constant", "parent", "row", "table")
SAME: Final = 1e-9  # how far the rows of a named predictor may be off: a source may be computed otherwise


def seen_again(proof: dict[str, Any], run: Run) -> float:
    """KL(program ‖ model) of the sequence that a proof shows, at its position (nats), by the model itself.

    No bound rests on it, but a reader is shown it.

    Args:
        proof: A proof of the run whose bounds `checker.verify` confirmed.
        run: The run that it is about.

    Raises:
        ValueError: The table is not what `program` names, the sequence is not one of the contexts, or the
            model gives another number there.
    """
    program, seen, contexts = _program(proof, run), proof["seen"], proof["contexts"]
    states, position, query = seen["sequence"], seen["position"], run.objective.query
    length, n = contexts["reads"][-1] + 1 - query, run.source.n_states
    if position not in contexts["reads"]:
        raise ValueError(f"seen.position is {position}, expected one of contexts.reads")
    if len(states) != length or not all(0 <= state < n for state in states):
        raise ValueError(f"seen.sequence is {shown(states)}, expected {length} states from 0 to {n - 1}")
    moves = np.array(contexts["transitions"])[states[:-1], states[1:]]
    if not (contexts["start"][states[0]] and moves.all()):
        raise ValueError(f"seen.sequence is {shown(states)}, expected a sequence of the contexts")
    law, model = program.rule(np.array([states]))[0, position - query], run.model(proof["step"])
    exact, size = _nats(run, run.model(proof["step"]).double(), proof, law)
    again = exact if proof["arithmetic"] == "exact" else _nats(run, model, proof, law)[0]
    # KL is quadratic in how far log-probabilities are off; its own sum is rounded too.
    off = OFF[proof["arithmetic"]] * max(1.0, size)
    off = ROUNDED + off * (off + math.sqrt(2 * again)) + 8 * abs(again - exact)
    if not (seen["nats"] >= 0 and abs(seen["nats"] - again) <= off):
        raise ValueError(f"seen.nats is {seen['nats']:.6g}, but the model gives {again:.6g} on that sequence")
    return again


@torch.no_grad()
def _nats(
    run: Run, decoder: HookedDecoder, proof: dict[str, Any], law: Float[np.ndarray, " state"]
) -> tuple[float, float]:
    """KL(law ‖ model) at the sequence and position of a proof, and the size of the largest score there."""
    tokens = proof["seen"]["sequence"] + [run.config.d_vocab - 1] * run.objective.query
    read = torch.tensor([proof["seen"]["position"]])
    scores = decoder(torch.tensor([tokens]), read=read)[0, 0].double()
    nats = float(kl(law, run.objective.predict(scores).numpy()))
    return max(nats, 0.0), float(scores.abs().max())


def _program(proof: dict[str, Any], run: Run) -> Program:
    """Returns what the model is compared with, once its table is seen to be what the proof calls it."""
    name, rules = proof["program"], run.source.predictors()
    if name not in rules and name not in TABLES:
        raise ValueError(f"program is {shown(name)}, expected one of {', '.join([*TABLES, *rules])}")
    if (name == "row") != (proof["kind"] == "counts"):
        raise ValueError(f"program is {name!r}, which a proof of {proof['kind']} is not about")
    named = from_source(name, run.source) if name in rules else None
    if named is not None and named.table is None and proof["table"] is None:
        return named  # it sees more than the parent
    table = np.zeros(0) if proof["table"] is None else np.array(proof["table"], dtype=np.float64)
    laws = table.ndim == 2 and (table >= 0).all() and (np.abs(table.sum(1) - 1) < 1e-12).all()
    same = table[:1] if name == "constant" else table if named is None else named.table
    if (
        not laws
        or same is None
        or np.shape(same)[0] not in (1, len(table))
        or not (np.abs(table - same) <= SAME).all()
    ):
        raise ValueError(f"table is not that of the program {name!r}")
    return of_table(name, table, lags=proof["contexts"]["lags"])
