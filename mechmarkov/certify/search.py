"""The worst sequence of a model, by search: where a program is furthest from it.

No search is a bound; only where all contexts are few they are all run. Coordinate ascent over tokens and over
stretches of tokens, from several starts at once; each sequence that is tried is one that the source can give.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from mechmarkov.certify.contexts import Contexts
from mechmarkov.certify.programs import Program
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.theory.kernel import kl

BEAM = 8  # starts that are improved at once
PATIENCE = 100  # rounds in a row without a better one, after which the search ends
MOST_PAIRS = 16  # of states that a stretch is tried with at once
AT_ONCE = 1 << 16  # tokens that go through the model together

Histories = Int[np.ndarray, "batch known_position"]


@dataclass(frozen=True, eq=False)
class Judge:
    """A model, and the program that it is compared with.

    Attributes:
        decoder: The model.
        objective: How its outputs are read.
        contexts: The contexts that it can meet.
        program: What it is compared with.
    """

    decoder: HookedDecoder
    objective: Objective
    contexts: Contexts
    program: Program

    @property
    def length(self) -> int:
        """Returns how many states are known in front of the last prediction."""
        return self.contexts.reads[-1] + 1 - self.contexts.query

    @torch.no_grad()
    def predictions(self, histories: Histories) -> Float[np.ndarray, "batch read state"]:
        """The model's, in the precision that it has."""
        tokens = torch.from_numpy(histories.astype(np.int64))
        if self.contexts.query:
            query = torch.full((len(tokens), 1), self.contexts.n_tokens - 1)
            tokens = torch.cat([tokens, query], 1)
        read, some = torch.tensor(self.contexts.reads), max(1, AT_ONCE // tokens.shape[1])
        parts = [self.decoder(part, read=read).double() for part in tokens.split(some)]
        return np.asarray(self.objective.predict(torch.cat(parts)).numpy())

    def nats(self, histories: Histories, *, reverse: bool = False) -> Float[np.ndarray, "batch read"]:
        """KL(program ‖ model) of every prediction; KL(model ‖ program) if `reverse`."""
        known = np.array(self.contexts.reads) - self.contexts.query
        both = self.program.rule(histories)[:, known], self.predictions(histories)
        return np.maximum(kl(*(reversed(both) if reverse else both)), 0.0)


@dataclass(frozen=True, eq=False)
class WorstSeen:
    """The worst prediction that was seen.

    Attributes:
        history: The states of the whole sequence.
        read: Which position predicts, as a place in `Contexts.reads`.
        nats: KL(program ‖ model) there.
        at: The largest KL at every position that is read (nats).
    """

    history: Int[np.ndarray, " known_position"]
    read: int
    nats: float
    at: Float[np.ndarray, " read"]


def largest(judge: Judge, histories: Histories) -> WorstSeen:
    """The worst prediction of some sequences of states `[batch, known_position]`.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.certify.programs import from_source
        >>> run = mm.example("walk")
        >>> contexts = Contexts.of(run.source, run.objective, run.config)
        >>> judge = Judge(run.model(), run.objective, contexts, from_source("bigram", run.source))
        >>> largest(judge, contexts.completed(np.array([[0], [1]]), judge.length)).nats > 0
        True
    """
    nats = judge.nats(histories)
    row, read = np.unravel_index(nats.argmax(), nats.shape)
    return WorstSeen(histories[row], int(read), float(nats[row, read]), nats.max(0))


def largest_of_all(judge: Judge, tokens: int) -> WorstSeen | None:
    """The worst prediction of every context, at the first positions, where all contexts are few.

    No rounding is covered but that of the model as it was run. `at` has the positions that are read.

    Args:
        judge: The model and the program.
        tokens: How many tokens may go through the model.
    """
    contexts, histories = judge.contexts, np.flatnonzero(judge.contexts.start)[:, None]
    while histories.shape[1] < judge.length:
        before, state = np.nonzero(contexts.transitions[histories[:, -1]])
        if len(state) * (histories.shape[1] + 1) > tokens:
            break
        histories = np.concatenate([histories[before], state[:, None]], 1)
    reads = tuple(read for read in contexts.reads if read + 1 - contexts.query <= histories.shape[1])
    if not reads:
        return None
    first = Judge(judge.decoder, judge.objective, replace(contexts, reads=reads), judge.program)
    seen = largest(first, histories)
    return replace(seen, history=contexts.completed(seen.history[None], judge.length)[0])


def search(judge: Judge, starts: Histories, tokens: int, end: float = math.inf) -> WorstSeen:
    """The worst prediction that coordinate ascent finds.

    Args:
        judge: The model and the program.
        starts: Sequences to start from; those that are worst already are taken.
        tokens: How many tokens may go through the model.
        end: The time of `time.monotonic` after which nothing more is tried.
    """
    rng, contexts = np.random.default_rng(0), judge.contexts
    histories = np.unique(np.concatenate([starts, contexts.plain(judge.length)]), axis=0)
    nats = judge.nats(histories)
    at, order = nats.max(0), nats.max(1).argsort(kind="stable")[::-1][:BEAM]
    histories, worst, reads = histories[order], nats[order].max(1), nats[order].argmax(1)
    spent, idle = len(starts) * judge.length, 0
    while spent < tokens and idle < PATIENCE and time.monotonic() < end:
        tried, of = _changed(histories, reads, contexts, rng)
        spent, idle = spent + max(tried.size, judge.length), idle + 1
        if not len(tried):
            continue
        nats = judge.nats(tried)
        at = np.maximum(at, nats.max(0))
        for i, row in enumerate(nats):
            if row.max() > worst[of[i]]:
                histories[of[i]], worst[of[i]], reads[of[i]] = tried[i], row.max(), row.argmax()
                idle = 0
    best = int(worst.argmax())
    return WorstSeen(histories[best], int(reads[best]), float(worst[best]), at)


def _changed(
    histories: Histories, reads: Int[np.ndarray, " batch"], contexts: Contexts, rng: np.random.Generator
) -> tuple[Histories, Sequence[int]]:
    """Each sequence with a stretch of it set to two states that take turns, where that is allowed."""
    tried, of = list[np.ndarray](), list[int]()
    pairs = [(one, other) for one in range(contexts.n_states) for other in range(contexts.n_states)]
    for i, history in enumerate(histories):
        last = contexts.reads[reads[i]] - contexts.query
        first = int(rng.integers(last + 1))
        stop = min(last + 1, first + int(2 ** rng.integers(0, 1 + int(np.log2(last + 1)))))
        for pair in rng.permutation(pairs)[:MOST_PAIRS]:
            changed = history.copy()
            changed[first:stop:2], changed[first + 1 : stop : 2] = pair
            tried.append(changed)
            of.append(i)
    stacked = np.array(tried)
    good = contexts.are_allowed(stacked)
    return stacked[good], [row for row, fine in zip(of, good, strict=True) if fine]
