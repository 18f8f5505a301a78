"""A model as a program: select tokens, look each up in a table read from the weights, add up.

The score of a prediction is

    base + direct[parent] + sum over MLPs of table[parent] + sum over heads of sum_m a_m table[token at lag m]

with the tables of `value_circuits.path_tables`. A head's selector `a_m` is a softmax over what the program
may look at: a weight for each lag and, from the second layer on, a bonus for tokens whose predecessor is the
current token (nothing in the first layer can know a predecessor). It is the maximum-likelihood fit of that
family to the recorded attention, so that the mass on each lag and on matches is the model's: what attends by
lag or by match is reproduced exactly, and what attends by anything else (the identity of a token, an absolute
position) is not. Where every position is read, a head that reads what an earlier head wrote is a path too,
"L0H0→L1H0": two selections, one after the other, and one table. `base` makes the program's mean score the
model's; it holds biases and whatever is constant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.components import composed_name, composed_parts, head_index, head_name
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.recording import SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.probing.value_circuits import (
    Tables,
    carried,
    embedded_states,
    float64_weights,
    head_outputs,
    path_tables,
    to_scores,
)

from .selectors import fit_lags, fit_matches, selected

# That a selector reads together, to bound memory: more short sequences, and of long ones at least this many.
TOKENS_AT_ONCE, SEQUENCES_AT_ONCE = 1 << 13, 32
MAX_COMPOSED = 16  # pairs of heads, those with the largest tables


@dataclass(frozen=True, eq=False)
class Program:
    """The extracted programs of a stack of models.

    Attributes:
        tables: By path, score units `[member, state_from, state_to]`.
        lag_weight: Selector weights, adding up to 1 over all lags; lag 1 is the parent, lag 0 a token that is
            no state: a query's own, or the one that begins the sequence.
        match_bonus: By how much the log weight of a match is above that of another token at its lag.
        base: What does not depend on any token (scores).
        means: By path, what it adds in the mean (scores) `[member, state_to]`.
    """

    tables: Tables
    lag_weight: Float[np.ndarray, "member layer head lag"]
    match_bonus: Float[np.ndarray, "member layer head"]
    base: Float[np.ndarray, "member state_to"]
    means: dict[str, Float[np.ndarray, "member state_to"]]


def extract(subject: Subject) -> Program:
    """Read the programs of a subject's models off their weights and their recorded attention.

    Example:
        >>> import mechmarkov as mm
        >>> program = extract(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> {path: table.shape for path, table in program.tables.items()}
        {'L0H0': (1, 6, 6)}
        >>> program.lag_weight[0, 0, 0].argmax()  # the head reads the parent, lag 1
        np.int64(1)
    """
    lag_weight, batch = fit_lags(subject), subject.batch
    # A head without attention weights has no selector, and no path.
    selects = np.isfinite(lag_weight).all((0, 3))
    tables = {
        path: table
        for path, table in (path_tables(subject) | composed_tables(subject)).items()
        if all(head is None or selects[head] for head in map(head_index, composed_parts(path)))
    }
    bonus = np.zeros(lag_weight.shape[:-1])
    for where in np.ndindex(bonus.shape):
        if where[1] > 0:
            lag_weight[where], bonus[where] = fit_matches(subject, lag_weight[where], where)
    base = subject.recorded(SCORES).mean((1, 2), dtype=np.float64)
    program = Program(tables, lag_weight, bonus, base, {path: np.zeros_like(base) for path in tables})
    for member in range(len(base)):
        for _, part in parts(batch):
            selections = _selections(program, part, member)
            for (path, mean), read in zip(program.means.items(), selections, strict=True):
                mean_read = (read.sum((0, 1)) / batch.parents.numel()).numpy()
                mean[member] += mean_read @ tables[path][member]  # scores are linear in what is selected
    base -= sum(program.means.values())
    return program


def composed_tables(subject: Subject) -> Tables:
    """`W_E OV OV' W_U` of every pair of heads in different layers, where all positions are read.

    The virtual heads of Elhage et al. (2021); gains of norms are folded in at their mean scale.

    Args:
        subject: The models: `Subject.of(run)`.

    Returns:
        By the pair's name, such as "L0H1→L1H0", score units `[member, state_from, state_to]`: the 16 largest.
    """
    if len(subject.batch.read) < subject.batch.tokens.shape[1] - subject.batch.first:
        return {}  # what the first head does at positions that are not read is not recorded
    weights = float64_weights(subject)
    embedded, layers = embedded_states(subject, weights), range(subject.config.n_layers)
    largest: dict[str, tuple[float, np.ndarray]] = {}
    for layer in layers:
        read = carried(subject, weights, embedded, "embed", head_name(layer, 0))
        for head, written in enumerate(head_outputs(subject, weights, layer, read)):
            first = head_name(layer, head)
            for later in layers[layer + 1 :]:
                seen = carried(subject, weights, written, first, head_name(later, 0))
                for reader, output in enumerate(head_outputs(subject, weights, later, seen)):
                    second = head_name(later, reader)
                    table = to_scores(subject, weights, output, second)
                    name = composed_name(first, second)
                    largest[name] = float(np.ptp(table, axis=-1).mean()), table
            # All of them would be the most memory of this probe.
            kept = sorted(largest, key=lambda name: -largest[name][0])[:MAX_COMPOSED]
            largest = {name: one for name, one in largest.items() if name in kept}
    return {name: table for name, (_, table) in largest.items()}


@lru_cache(maxsize=2)
def parts(batch: Batch) -> list[tuple[slice, Batch]]:
    """Some sequences at a time, the same batches whoever asks: where they stand in the batch, and they.

    Args:
        batch: The sequences.
    """
    each = max(SEQUENCES_AT_ONCE, TOKENS_AT_ONCE // batch.tokens.shape[1])
    some = [slice(i, i + each) for i in range(0, len(batch.tokens), each)]
    return [(part, batch.part(part)) for part in some]


def contributions(
    program: Program, batch: Batch, member: int
) -> Iterator[Float[np.ndarray, "batch read state_to"]]:
    """Yields what each path of a program adds to scores of a few sequences, in the order of its tables.

    Args:
        program: The programs of all models: `extract(subject)`.
        batch: The sequences.
        member: The index of the model.
    """
    selections = _selections(program, batch, member)
    for tables, read in zip(program.tables.values(), selections, strict=True):
        yield (read @ torch.from_numpy(tables[member])).numpy()


def _selections(program: Program, batch: Batch, member: int) -> Iterator[Float[Tensor, "batch read state"]]:
    """Yields the mean state that each path of a program reads, in the order of its tables."""
    states = torch.nn.functional.one_hot(batch.history, program.base.shape[-1]).double()
    seen: dict[tuple[str, ...], Tensor] = {(): states}  # by the selections made, one after the other
    parents = states[:, batch.known]
    for path in program.tables:
        names, read = composed_parts(path), parents
        for i, head in enumerate(map(head_index, names)):
            if head is not None:
                through, there = names[: i + 1], seen[names[:i]]
                if through not in seen:
                    weight = torch.from_numpy(program.lag_weight[member][head])
                    bonus = float(program.match_bonus[member][head])
                    read = selected(batch, weight, bonus, there)
                    if i == 0:  # what the first head selects is shared by all paths through it
                        seen[through] = read
                else:
                    read = seen[through]
        yield read
