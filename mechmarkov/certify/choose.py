"""Which program a model is compared with, how far it can be off, and in which contexts it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int

from mechmarkov.certify import nats
from mechmarkov.certify.bounds.every import Bounds
from mechmarkov.certify.contexts import Contexts
from mechmarkov.certify.programs import Program, middle, of_table
from mechmarkov.objectives import Objective
from mechmarkov.theory.kernel import kl

NEAR: Final = 1e-3  # nats: of the programs that are so near in the worst case the smallest is taken


@dataclass(frozen=True, eq=False)
class Worst:
    """The most that a program can be off, in any context.

    Attributes:
        kl: KL(program ‖ model) by position and case (nats); 0 where there is no context.
        log_ratio: The smallest and the largest `log(model / program)` of a possible state.
        logit_error: The largest error of the log odds of two states.
    """

    kl: Float[np.ndarray, "read case"]
    log_ratio: tuple[float, float]
    logit_error: float


def _worst_of(program: Program, bounds: Bounds) -> Worst:
    """Returns how far a program can be off from a model with these bounds."""
    assert program.table is not None
    log_odds, where = bounds.log_odds, bounds.exists
    law = np.broadcast_to(program.table, log_odds.shape[:-1])
    off = nats.odds_off(log_odds, law)
    error = max(0.0, float(off[where].max()))
    if bounds.kind == "counts":
        return Worst(nats.largest_kl_of_any(off) * where, (-error, error), error)
    low, high = nats.log_ratios(log_odds, law)
    ratio = min(0.0, float(low[where].min())), max(0.0, float(high[where].max()))
    return Worst(nats.largest_kl(log_odds, law) * where, ratio, error)


def read_off(bounds: Bounds, name: str | None, lags: Sequence[int] = (1,)) -> Iterator[Program]:
    """Yields the programs of a name, or all, that are the middle of what the model does.

    Args:
        bounds: The model's.
        name: "constant", "parent" or "row"; None for all that the bounds allow.
        lags: The lags of the states that a table has, as in the contexts of the bounds.
    """
    log_odds, exists, (_, every, n, _) = bounds.reached, bounds.exists, bounds.log_odds.shape
    rows = [
        middle(log_odds[exists[:, case], case]) if exists[:, case].any() else None for case in range(every)
    ]
    missing = [row is None and bool(exists[:, case].any()) for case, row in enumerate(rows)]
    table = np.array([np.full(n, 1 / n) if row is None else row for row in rows])
    if bounds.kind == "counts":
        if name in (None, "row") and not any(missing):
            yield of_table("row", table, numbers=n * n)
        return
    if name in (None, "constant") and (one := middle(log_odds[exists])) is not None:
        yield of_table("constant", np.tile(one, (every, 1)), n, lags)
    if name in (None, "parent") and not any(missing):
        yield of_table("parent", table, n * int(exists.any(0).sum()), lags)


def smallest(options: Sequence[tuple[Program, Bounds]]) -> tuple[Program, Bounds, Worst]:
    """The first option, from small to large, that is within 0.001 nats in the worst case; else the nearest.

    Returns:
        The program, the bounds it was compared with, and how far it can be off.
    """
    judged = [(program, bounds, _worst_of(program, bounds)) for program, bounds in options]
    near = [one for one in judged if one[2].kl.max() <= NEAR]
    return near[0] if near else min(judged, key=lambda one: float(one[2].kl.max()))


def worst_contexts(
    program: Program, bounds: Bounds, contexts: Contexts, objective: Objective, most: int
) -> tuple[Int[np.ndarray, "context known_position"], Float[np.ndarray, " read"]]:
    """The contexts that bounds name where the program is furthest off, completed to sequences.

    Returns:
        The sequences, and KL(program ‖ model) at each position, by scores that were computed in float64.
    """
    assert program.table is not None
    length, at = contexts.reads[-1] + 1 - contexts.query, np.zeros(len(contexts.reads))
    ranked: list[tuple[float, np.ndarray]] = []
    for (i, case), one in bounds.envelopes.items():
        if not len(one.scores):
            continue
        predicted = objective.predict(torch.from_numpy(one.scores)).numpy()
        off = np.maximum(kl(program.table[case], predicted), 0.0)
        at[i] = max(at[i], float(off.max()))
        ranked.append((float(off.max()), one.worst[off.argmax()]))
    ranked.sort(key=lambda pair: -pair[0])
    known = [context[: len(context) - contexts.query] for _, context in ranked[:most]]
    whole = [contexts.completed(context[None].astype(np.int64), length) for context in known]
    return np.concatenate([np.zeros((0, length), dtype=np.int64), *whole]), at
