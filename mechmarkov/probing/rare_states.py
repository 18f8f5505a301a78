"""Predictions after states that a batch shows too rarely, in contexts drawn by the exact law given the state.

A state of stationary probability 0.01 of a sticky chain may be in no evaluation sequence, and what is
not in a sample is in no error. The chain is known: contexts that end in the state are drawn backwards, by
the reversed chain `pi_i P_ij / pi_j`, and what is measured there is weighted by `pi`.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechmarkov.probing.batch import Batch
from mechmarkov.probing.effects import model_chunks, positions_in_turn, predictions
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import FixedChain
from mechmarkov.theory.kernel import kl

MIN_SEEN = 64  # predictions after a state in the batch; of fewer, their mean may miss what it does
RARE_SHARE = 0.25  # of 1 / n_states: states at least as likely as this are in any batch as often as others
CONTEXTS = 32  # of each rare state
SEED = 0x3A7E


@dataclass(frozen=True, eq=False)
class RareStates:
    """The predictions of models after states that the batch shows too rarely.

    Attributes:
        states: Which, and their stationary probabilities `pi`.
        pi: Likewise.
        common: Whether each prediction of the batch follows another state.
        probabilities: What each model predicts after them.
        exact: What each exact law predicts there, by its name.
    """

    states: Int[np.ndarray, " rare"]
    pi: Float[np.ndarray, " rare"]
    common: Bool[np.ndarray, "batch read"]
    probabilities: Float[np.ndarray, "member rare context state"]
    exact: dict[str, Float[np.ndarray, "rare context state"]]


def rare_states(subject: Subject) -> RareStates | None:
    """Returns the predictions after rare states of a fixed chain; None where the batch shows all of them."""
    source, batch = subject.source, subject.batch
    if not isinstance(source, FixedChain):
        return None
    pi, parents = np.array(source.pi), batch.parents.numpy()
    seen = np.bincount(parents.ravel(), minlength=source.n_states)
    rare = np.flatnonzero((seen < MIN_SEEN) & (pi > 0) & (pi * source.n_states < RARE_SHARE))
    if not len(rare):
        return None
    at = positions_in_turn(len(rare) * CONTEXTS, len(batch.read))
    last = batch.known[at]
    history = torch.from_numpy(
        contexts(source, np.repeat(rare, CONTEXTS), last.numpy(), batch.history.shape[1])
    )
    others = _batch(batch, history)
    every = torch.arange(len(at))
    runs = [
        predictions(subject, chunk.model, others, chunk.tokens)[:, every, at]
        for chunk in model_chunks(subject, others)
    ]
    shape = (len(rare), CONTEXTS, source.n_states)
    laws = {
        name: rule.probabilities(history.numpy())[every.numpy(), last.numpy()].reshape(shape)
        for name, rule in source.predictors().items()
        if name in subject.exact
    }
    probabilities = torch.cat(runs).numpy().reshape(-1, *shape)
    return RareStates(rare, pi[rare], ~np.isin(parents, rare), probabilities, laws)


def unseen_nats(subject: Subject) -> Float[np.ndarray, " member"]:
    """Returns what states that the batch hardly shows add to KL from the exact law (nats).

    What a probe measures on the batch is short of it. It is 0 where the batch shows all states.
    """
    rare, best = rare_states(subject), subject.source.best()
    if rare is None or isinstance(best, str):
        return np.zeros(len(subject.coordinates))
    nats = np.stack([kl(rare.exact[best.name], q).mean(-1) for q in rare.probabilities])
    return np.asarray(nats @ rare.pi)


def contexts(
    source: FixedChain, states: Int[np.ndarray, " sequence"], last: Int[np.ndarray, " sequence"], length: int
) -> Int[np.ndarray, "sequence position"]:
    """Sequences with a given state at a given position, by the exact law of a chain given that.

    Behind that position the chain goes on, as a model that is causal does not see it.

    Args:
        source: The chain.
        states: The state that each sequence has there.
        last: The position of it, from 0.
        length: The length of the sequences.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> contexts(Circle(n_states=4, p=1.0), np.array([3]), np.array([2]), length=4).tolist()
        [[1, 2, 3, 0]]
    """
    P, pi = np.array(source.P), np.array(source.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        back = np.nan_to_num((pi[:, None] * P / pi[None, :]).T)
    rng, n = np.random.default_rng(SEED), len(states)
    drawn = np.empty((n, length), dtype=np.int64)
    ahead, before = np.cumsum(P, axis=1), np.cumsum(back, axis=1)
    every = np.arange(n)
    drawn[every, last] = states
    for step in range(1, length):
        for law, place in ((before, last - step), (ahead, last + step)):
            inside = (place >= 0) & (place < length)
            now = drawn[every[inside], place[inside] + (1 if law is before else -1)]
            u = rng.random(inside.sum()) * law[now, -1]
            drawn[every[inside], place[inside]] = (u[:, None] >= law[now]).sum(1)
    return drawn


def _batch(batch: Batch, history: Int[Tensor, "sequence position"]) -> Batch:
    """A batch of other histories, with the first's token that is not a state, where it has one."""
    like = replace(
        batch, tokens=batch.tokens[:1].expand(len(history), -1), history=history, following=history
    )
    return replace(like, tokens=like.with_history(history))
