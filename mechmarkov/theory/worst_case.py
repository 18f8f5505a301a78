"""The worst context of an attention head: the largest mean that it can read, over all allowed contexts.

At one query the head reads `sum_j w_j(x_j) f_j(x_j) / sum_j w_j(x_j)`, where `w_j(y) = exp(score)` and
`f_j(y)` is what the value of state `y` at key `j` adds in some direction. Over independent choices of the
states this linear-fractional maximum is the root of

    F(ratio) = sum_j max_y w_j(y) (f_j(y) - ratio),

which is convex, piecewise linear and decreasing. Dinkelbach's iteration (1967, Management Science 13, 492)
finds it: take the maximisers, set the ratio to theirs, and go on while it rises. There are finitely many
contexts, so it ends; in practice after 3 to 8 rounds of `O(key * state)`. Where transitions are forbidden the
inner maximum is over allowed paths, a Viterbi pass. The maximisers are a witness: the worst context itself.

Everything is numpy float64 over leading axes. Nothing here rounds outwards: `mechmarkov.certify` does.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Leading axes and keys broadcast.
Gains = Float[np.ndarray, "*#lead #key state"]
Allowed = Bool[np.ndarray, "*#lead #key state"]
Transitions = Bool[np.ndarray, "state_from state_to"]
Contexts = Int[np.ndarray, "*lead key"]


@dataclass(frozen=True, eq=False)
class Worst:
    """The result of `largest_sum` and `largest_ratio`: a largest value and the context that has it.

    Attributes:
        value: The largest value; -inf where no context is allowed.
        context: The state at each key; arbitrary where no context is allowed.
    """

    value: Float[np.ndarray, "*lead"]
    context: Int[np.ndarray, "*lead key"]


def largest_sum(gain: Gains, allowed: Allowed, transitions: Transitions | None = None) -> Worst:
    """The context with the largest sum of gains, one a key.

    Args:
        gain: What each state adds at each key; finite.
        allowed: Which states a key may have. A state that the query knows is the only one allowed there.
        transitions: Which state may follow which, as truth values (`P > 0`); None for all.

    Raises:
        ValueError: A gain is not finite, `transitions` are not truth values over states, or shapes differ.

    Example:
        >>> gain = np.array([[1.0, 0.0], [0.0, 3.0]])
        >>> everything = np.ones((2, 2), dtype=bool)
        >>> worst = largest_sum(gain, everything)
        >>> float(worst.value), worst.context.tolist()
        (4.0, [0, 1])
        >>> worst = largest_sum(gain, everything, transitions=np.eye(2, dtype=bool))  # no state changes
        >>> float(worst.value), worst.context.tolist()
        (3.0, [1, 1])
    """
    if not np.isfinite(gain).all():
        raise ValueError(f"gain has {gain[~np.isfinite(gain)][0]}, expected finite numbers")
    _check_states(gain.shape[-1], allowed, transitions)
    bounded = np.where(allowed, gain, -np.inf)
    if transitions is None or transitions.all():
        context = bounded.argmax(-1)
        return Worst(_total(bounded, context), context)
    return _largest_path(bounded, transitions)


def _check_states(n_states: int, allowed: Allowed, transitions: Transitions | None) -> None:
    if allowed.shape[-1] != n_states:
        raise ValueError(f"allowed has shape {allowed.shape}, expected {n_states} states last")
    if transitions is None:
        return
    if transitions.dtype != bool or transitions.shape != (n_states, n_states):
        has = f"dtype {transitions.dtype} and shape {transitions.shape}"
        raise ValueError(f"transitions has {has}, expected bool and {(n_states, n_states)}: P > 0")


def _largest_path(bounded: Gains, transitions: Transitions) -> Worst:
    """Viterbi's recursion: the largest sum that ends in each state, then back from the largest of all."""
    n_states, n_keys = len(transitions), bounded.shape[-2]
    some = np.flatnonzero(~transitions.all(0))  # each other state follows every one, such as a query token
    most = max(1, int(transitions[:, some].sum(0).max()))
    predecessors = np.argsort(~transitions[:, some], axis=0, kind="stable")[:most].T  # [some, predecessor]
    unless = np.where(transitions[predecessors, some[:, None]], 0.0, -np.inf)
    best = [bounded[..., 0, :]]
    for key in range(1, n_keys):
        before = np.repeat(best[-1].max(-1)[..., None], n_states, -1)
        before[..., some] = (best[-1][..., predecessors] + unless).max(-1)
        best.append(bounded[..., key, :] + before)
    flat = [row.reshape(-1, n_states) for row in best]
    context = np.empty((len(flat[0]), n_keys), dtype=int)
    context[:, -1] = flat[-1].argmax(-1)
    for key in range(n_keys - 1, 0, -1):
        allowed = transitions.T[context[:, key]]
        context[:, key - 1] = np.where(allowed, flat[key - 1], -np.inf).argmax(-1)
    return Worst(np.asarray(best[-1].max(-1)), context.reshape(bounded.shape[:-1]))


def largest_ratio(
    above: Gains,
    below: Gains,
    allowed: Allowed,
    transitions: Transitions | None = None,
    begin: Contexts | None = None,
) -> Worst:
    """The context with the largest `sum_j above_j(x_j) / sum_j below_j(x_j)`.

    With `above = w f` and `below = w` it is the support function of a head's output in the direction of `f`.

    Args:
        above: What each state adds to the numerator at each key.
        below: What it adds to the denominator. A context whose sum is not positive is an error: a head that
            attends to nothing has no mean.
        allowed: The states that a key may have, as in `largest_sum`.
        transitions: Which state may follow which, as in `largest_sum`.
        begin: Allowed contexts to begin with, such as the worst of a problem that is near; None for those of
            the smallest denominator.

    Raises:
        ValueError: The denominator of an allowed context is not positive.

    Example:
        >>> weight, value = np.array([[1.0, 2.0], [1.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
        >>> known = np.array([[True, True], [True, False]])  # the query's own token
        >>> worst = largest_ratio(weight * value, weight, known)
        >>> round(float(worst.value), 4), worst.context.tolist()
        (0.6667, [1, 0])
    """
    shape = np.broadcast_shapes(above.shape, below.shape, allowed.shape)
    above, below, allowed = (
        np.broadcast_to(x, shape).reshape(-1, *shape[-2:]) for x in (above, below, allowed)
    )
    if begin is None:
        start = largest_sum(-below, allowed, transitions)
    else:
        begin = begin.reshape(-1, shape[-2])
        start = Worst(-_total(below, begin), begin)
    exists = start.value > -np.inf
    if (least := 0.0 - start.value[exists].max(initial=-np.inf)) <= 0:
        raise ValueError(
            f"the weights of a context sum to {least:g}, expected a sum above 0: without one there is no mean"
        )
    value, context = np.full(len(above), -np.inf), start.context.copy()
    # Each round goes on with those whose ratio rises; the others have their answer.
    rises, candidate = np.flatnonzero(exists), start.context[exists]
    while len(rises):  # of finitely many contexts each is taken once at most
        ratio = _total(above[rises], candidate) / _total(below[rises], candidate)
        higher = ratio > value[rises]
        rises, ratio, candidate = rises[higher], ratio[higher], candidate[higher]
        value[rises], context[rises] = ratio, candidate
        gain = above[rises] - ratio[:, None, None] * below[rises]
        candidate = largest_sum(gain, allowed[rises], transitions).context
    return Worst(value.reshape(shape[:-2]), context.reshape(shape[:-1]))


def _total(gain: Gains, context: Int[np.ndarray, "*lead key"]) -> Float[np.ndarray, "*lead"]:
    """The sum of what a context's states add."""
    return np.asarray(np.take_along_axis(gain, context[..., None], -1)[..., 0].sum(-1))
