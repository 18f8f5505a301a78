"""A model as a program: select tokens, look each up in a table read from the weights, add up.

The score of a prediction is

    base + direct[parent] + sum over MLPs of table[parent] + sum over heads of sum_m a_m table[token at lag m]

with the tables of `circuits.path_tables`. A head's selector `a_m` is a softmax over what the program may look
at: a weight for each lag and, from the second layer on, a bonus for tokens whose predecessor is the current
token (nothing in the first layer can know a predecessor). It is the maximum-likelihood fit of that family to
the recorded attention, so that the mass on each lag and on matches is the model's: what attends by lag or by
match is reproduced exactly, and what attends by anything else (the identity of a token, an absolute
position) is not. Where every position is read, a head that reads what an earlier head wrote is a path too,
"L0H0→L1H0": two selections, one after the other, and one table. `base` makes the program's mean score the
model's; it holds biases and whatever is constant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.components import head_index, head_name
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.chunking import chunked
from mechmarkov.probing.recording import ATTENTION, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.probing.value_circuits import Tables, _norm, path_tables

from .match_mass import MATCH_MASS, matches

ROUNDS = 60  # of the lag fit: exact from the first for attention that is a softmax over lags
MATCH_ROUNDS = 8
MATCH_SEQUENCES = 32  # for the fit of two kinds of numbers, not for a measurement
STRONGEST = 40.0  # log odds: e^-40 of a softmax is nothing
SEQUENCES_AT_ONCE = 64
MOST_COMPOSED = 16  # pairs of heads, those with the largest tables


@dataclass(frozen=True, eq=False)
class Program:
    """The extracted programs of a stack of models.

    Attributes:
        tables: By path, score units `[member, state_from, state_to]`.
        lag_weight: Selector weights, adding up to 1 over all lags; lag 1 is the parent, lag 0 a query token.
        match_bonus: By how much the log weight of a match is above that of another token at its lag.
        base: What does not depend on any token (scores).
    """

    tables: Tables
    lag_weight: Float[np.ndarray, "member layer head lag"]
    match_bonus: Float[np.ndarray, "member layer head"]
    base: Float[np.ndarray, "member state_to"]


def extract(subject: Subject) -> Program:
    """Read the programs of a subject's models off their weights and their recorded attention."""
    tables, batch = path_tables(subject) | composed_tables(subject), subject.batch
    lag_weight = _lag_weights(subject)
    bonus = np.zeros(lag_weight.shape[:-1])
    for where in np.ndindex(bonus.shape):
        if where[1] > 0:
            lag_weight[where], bonus[where] = _match_fit(subject, lag_weight[where], where)
    members = len(subject.coordinates)
    unbased = Program(tables, lag_weight, bonus, np.zeros((members, subject.source.n_states)))
    base = subject.recorded(SCORES).mean((1, 2), dtype=np.float64)
    for member in range(members):
        base[member] -= sum(part.mean((0, 1)) for part in contributions(unbased, batch, member).values())
    return Program(tables, lag_weight, bonus, base)


def composed_tables(subject: Subject) -> Tables:
    """`W_E OV OV' W_U` of every pair of heads in different layers, where all positions are read.

    The virtual heads of Elhage et al. (2021); gains of norms are folded in at their mean scale.
    """
    if len(subject.batch.read) < subject.batch.tokens.shape[1]:
        return {}  # what the first head does at positions that are not read is not recorded
    n_states, n_heads, n_layers = subject.source.n_states, subject.config.n_heads, subject.config.n_layers
    W_U = subject.decoder.unembed.W_U.detach().double().numpy()[..., :n_states]

    def write(layer: int, head: int, x: np.ndarray) -> np.ndarray:
        block: Any = subject.decoder.blocks[layer]
        read = torch.from_numpy(_norm(subject, f"blocks.{layer}.ln1", x))
        return np.asarray(block.attn.value_circuit(read)[:, head].detach())

    tables: Tables = {}
    heads = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    embedded = subject.decoder.embed.W_E.detach().double().numpy()[:, :n_states]
    for first in heads:
        written = write(*first, embedded)
        for second in heads:
            if second[0] > first[0]:
                name = f"{head_name(*first)}→{head_name(*second)}"
                tables[name] = _norm(subject, "ln_final", write(*second, written)) @ W_U
    size = {name: float(np.ptp(table, axis=-1).mean()) for name, table in tables.items()}
    kept = sorted(size, key=lambda name: -size[name])[:MOST_COMPOSED]
    return {name: table for name, table in tables.items() if name in kept}


def contributions(
    program: Program, batch: Batch, member: int
) -> dict[str, Float[np.ndarray, "batch read state_to"]]:
    """What each path of one program adds to the scores of a batch."""
    n_states = program.base.shape[-1]
    seen = {"": torch.nn.functional.one_hot(batch.history, n_states).double()}
    added: dict[str, Float[np.ndarray, "batch read state_to"]] = {}
    for path, tables in program.tables.items():
        read = seen[""][:, batch.known]
        if "H" in path:
            # Selections one after the other; that of the first head is shared by all paths through it.
            for so_far in _prefixes(path):
                before, _, last = so_far.rpartition("→")
                head = head_index(last)
                if so_far not in seen and head is not None:
                    weight = torch.from_numpy(program.lag_weight[(member, *head)])
                    bonus = float(program.match_bonus[(member, *head)])
                    seen[so_far] = selected(batch, weight, bonus, seen[before])
                read = seen[so_far]
        added[path] = (read @ torch.from_numpy(tables[member])).numpy()
    return added


def _prefixes(path: str) -> list[str]:
    heads = path.split("→")
    return ["→".join(heads[: i + 1]) for i in range(len(heads))]


def scores(program: Program, batch: Batch, member: int) -> Float[np.ndarray, "batch read state_to"]:
    """The scores of one program on a batch."""
    return program.base[member] + sum(contributions(program, batch, member).values())


def selected(
    batch: Batch,
    weight: Float[Tensor, " lag"],
    bonus: float,
    tokens: Float[Tensor, "batch key state"],
) -> Float[Tensor, "batch read state"]:
    """The mean of what stands at the tokens that a selector reads, for each prediction.

    Args:
        batch: The sequences, which say what matches.
        weight: The selector's weight on each lag.
        bonus: Its log odds for matches.
        tokens: What stands at each token: the token itself, one-hot, or what was selected from there.
    """
    table, own = _by_key(batch, weight)
    plain = table.sum(-1)[:, None] + own
    if not bonus:
        return einsum(table, tokens, "read key, b key state -> b read state") / plain
    found = []
    for first in range(0, len(tokens), SEQUENCES_AT_ONCE):
        part = slice(first, first + SEQUENCES_AT_ONCE)
        lifted = table * (1 + np.expm1(bonus) * matches(batch, batch.history[part]))
        by_state = einsum(lifted, tokens[part], "b read key, b key state -> b read state")
        found.append(by_state / (lifted.sum(-1, keepdim=True) + own))
    return torch.cat(found)


def model_scores(
    subject: Subject, batch: Batch
) -> Iterator[tuple[int, Float[np.ndarray, "batch read d_vocab_out"]]]:
    """The scores of each model on a batch, run in chunks of bounded memory."""
    scores: list[Tensor] = []
    for chunk in chunked(subject.decoder, batch.tokens, subject.chunk_elements):
        with torch.no_grad():
            scores.append(chunk.model(chunk.tokens)[..., batch.read, :])
        if chunk.sequences.stop == len(batch.tokens):
            yield from enumerate(torch.cat(scores, dim=1).numpy(), start=chunk.members.start)
            scores = []


def _by_key(
    batch: Batch, weight: Float[Tensor, " lag"]
) -> tuple[Float[Tensor, "read key"], Float[Tensor, ""]]:
    """A selector's weight on each token a prediction knows, and on a query token itself."""
    lag = batch.known[:, None] + 1 - torch.arange(batch.history.shape[1])
    return weight[lag.clamp_min(0)] * (lag >= 1), weight[0] * batch.parent_lag


def _lag_weights(subject: Subject) -> Float[np.ndarray, "member layer head lag"]:
    """The softmax over lags that is likeliest to have given the recorded mass on each lag.

    Iterative scaling, started where the last prediction looks: for attention that is a softmax over lags
    that is the answer, and stays it.
    """
    attention, batch = subject.recorded(ATTENTION), subject.batch
    observed = attention.lag_mass * batch.reach.numpy()
    lags = observed.shape[-1]
    key = int(batch.known[-1]) + 1 - np.arange(lags)  # of the last prediction, by lag
    inside = (key >= 0) & (key < attention.last_mass.shape[-1])
    start = np.where(inside, attention.last_mass[..., np.where(inside, key, 0)], 0.0)
    weight: np.ndarray = np.where(observed > 0, np.maximum(start, 1e-30), 0.0)
    farthest = batch.known.numpy() + 1
    for _ in range(ROUNDS):
        total = weight.cumsum(-1)[..., farthest]  # over what each prediction reaches
        inverse = np.zeros_like(weight)
        np.add.at(np.moveaxis(inverse, -1, 0), farthest, np.moveaxis(1 / total, -1, 0))
        expected = weight * inverse[..., ::-1].cumsum(-1)[..., ::-1] / len(farthest)
        weight = weight * np.divide(observed, expected, out=np.zeros_like(weight), where=expected > 0)
        weight /= weight.sum(-1, keepdims=True)
    return weight


def _match_fit(
    subject: Subject, weight: Float[np.ndarray, " lag"], where: tuple[int, ...]
) -> tuple[Float[np.ndarray, " lag"], float]:
    """Weights and bonus that give a head's recorded mass on each lag and on matches, both at once."""
    mass = float(subject.recorded(MATCH_MASS)[where])
    if not np.isfinite(mass):
        return weight, 0.0
    batch = subject.batch.head(MATCH_SEQUENCES)
    observed = subject.recorded(ATTENTION).lag_mass[where] * subject.batch.reach.numpy()
    match = matches(batch, batch.history)
    lag = (batch.known[:, None] + 1 - torch.arange(batch.history.shape[1])).clamp_min(0)
    bonus, known = 0.0, torch.ones(lag.shape) * (lag >= 1)
    match = match * known
    asked = match.sum(-1) > 0
    if not asked.any():
        return weight, 0.0
    for _ in range(MATCH_ROUNDS):
        table, own = _by_key(batch, torch.from_numpy(weight))
        total = table.sum(-1) + own
        share = ((table * match).sum(-1) / total)[asked].numpy()
        bonus = _solve(share, mass)
        lifted = table * (1 + np.expm1(bonus) * match)
        normal = lifted.sum(-1) + own
        expected = torch.zeros(len(weight), dtype=torch.float64)
        expected.index_add_(0, lag.flatten(), (lifted / normal[..., None]).mean(0).flatten())
        expected[0] = (own / normal).mean(0).sum()
        ratio = observed * len(batch.read) / np.maximum(expected.numpy(), 1e-300)
        weight = weight * np.where(expected.numpy() > 0, ratio, 1.0)
        weight /= weight.sum()
    return weight, bonus


def _solve(share: np.ndarray, mass: float) -> float:
    """The bonus at which selectors with this share on matches have that mean mass there."""
    low, high = -STRONGEST, STRONGEST
    for _ in range(50):
        middle = (low + high) / 2
        lifted = share * np.exp(middle)
        low, high = (middle, high) if (lifted / (lifted + 1 - share)).mean() < mass else (low, middle)
    return (low + high) / 2
