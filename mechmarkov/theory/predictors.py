"""The predictors a model may imitate: the law of the next token from some part of the past.

Each function takes tokens `[batch, position]` and returns probabilities `[batch, position, state]`: the law
of the token *after* each position, read only from `tokens[:, :position + 1]`. Tokens are states `0 .. K-1`;
anything else is a ValueError, because a negative index would silently read another state.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

Matrix = Float[np.ndarray, "state_from state_to"]
"""A table `[state_from, state_to]`, such as `P`."""
Tokens = Int[np.ndarray, "batch position"]
NextLaws = Float[np.ndarray, "batch position state"]  # of the token after each position


def uniform(tokens: Tokens, n_states: int) -> NextLaws:
    """`1 / K` for every state: what is known before any data.

    Example:
        >>> uniform(np.array([[0, 1, 1]]), n_states=2).tolist()
        [[[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]]
    """
    check_tokens(tokens, n_states)
    return np.full((*tokens.shape, n_states), 1 / n_states)


def unigram(tokens: Tokens, pi: Float[np.ndarray, " state"]) -> NextLaws:
    """The stationary law `pi` at every position, whatever the tokens.

    Example:
        >>> unigram(np.array([[0, 1]]), np.array([0.8, 0.2])).tolist()
        [[[0.8, 0.2], [0.8, 0.2]]]
    """
    check_tokens(tokens, len(pi))
    return np.tile(pi, (*tokens.shape, 1))


def bigram(tokens: Tokens, P: Matrix) -> NextLaws:
    """The row of `P` of the current token: Bayes optimal for a known first-order chain.

    Example:
        >>> bigram(np.array([[0, 1]]), np.array([[0.9, 0.1], [0.4, 0.6]])).tolist()
        [[[0.9, 0.1], [0.4, 0.6]]]
    """
    check_tokens(tokens, len(P))
    return P[tokens]


def k_step(tokens: Tokens, step_law: Matrix, pi: Float[np.ndarray, " state_to"], k: int) -> NextLaws:
    """The law given only the token at lag `k`: its row of the k-step law, `P^k` for a chain.

    Lag counts from the predicted token, so at position t it reads `tokens[:, t - k + 1]`. The first `k - 1`
    positions have no such token and get `pi`. `k = 1` is the bigram.

    Args:
        tokens: Sequences of states.
        step_law: The law of the state k steps on, `[state_from, state_to]` (`source.step_law(k)`).
        pi: The stationary law.
        k: The lag.

    Raises:
        ValueError: `k` is below 1.

    Example:
        >>> P, pi = np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0.8, 0.2])
        >>> k_step(np.array([[1, 0]]), P @ P, pi, k=2).round(2).tolist()  # the second reads the 1
        [[[0.8, 0.2], [0.6, 0.4]]]
    """
    if k < 1:
        raise ValueError(f"k is {k}, expected a lag of at least 1")
    check_tokens(tokens, len(step_law))
    n_blind = min(k - 1, tokens.shape[1])
    law = np.empty((*tokens.shape, len(step_law)))
    law[:, :n_blind] = pi
    law[:, n_blind:] = step_law[tokens[:, : tokens.shape[1] - n_blind]]
    return law


def histories(tokens: Tokens, laws: Sequence[Float[np.ndarray, "_ state_to"]]) -> NextLaws:
    """The law given the last `len(laws)` tokens, and near the start given all there are.

    Args:
        tokens: The states so far.
        laws: `laws[j - 1]` given the last j tokens, which are read as a number of j digits, the oldest first,
            to the base of the number of states: `[history, state_to]`.

    Example:
        >>> second = np.array([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5], [0.2, 0.8]])
        >>> histories(np.array([[1, 0]]), [np.array([[0.7, 0.3], [0.4, 0.6]]), second]).tolist()
        [[[0.4, 0.6], [0.5, 0.5]]]
    """
    n_states = laws[0].shape[-1]
    check_tokens(tokens, n_states)
    law = np.empty((*tokens.shape, n_states))
    history = np.zeros_like(tokens)
    for back, table in enumerate(laws[: tokens.shape[1]]):  # positions before `back` have their law already
        history = history[:, back > 0 :] + n_states**back * tokens[:, : tokens.shape[1] - back]
        law[:, back:] = table[history]
    return law


def in_context_unigram(tokens: Tokens, n_states: int, concentration: float = 1.0) -> NextLaws:
    """Smoothed counts of the tokens so far, `(c_j + a) / (t + K a)`, with `a` the concentration.

    Edelman et al. 2024 (arXiv 2402.11004). It is the posterior mean for independent tokens with a
    Dirichlet(a) law; on a chain it is a reference strategy, the posterior of nothing.

    Example:
        >>> in_context_unigram(np.array([[0, 0]]), n_states=2)[0, 1].tolist()
        [0.75, 0.25]
    """
    check_tokens(tokens, n_states)
    counts = (tokens[..., None] == np.arange(n_states)).cumsum(axis=1)
    seen = np.arange(1, tokens.shape[1] + 1)[:, None]
    return (counts + concentration) / (seen + n_states * concentration)


def in_context_bigram(tokens: Tokens, n_states: int, concentration: float = 1.0) -> NextLaws:
    """Smoothed counts of what followed the current token, `(c_{x_t j} + a) / (c_{x_t .} + K a)`.

    Edelman et al. 2024 (arXiv 2402.11004). The exact posterior mean when every row of the chain is drawn
    from Dirichlet(a) and the first token carries no information on the chain; with a stationary start a
    close approximation.

    Example:
        >>> in_context_bigram(np.array([[0, 1, 0]]), n_states=2)[0, 2].round(3).tolist()
        [0.333, 0.667]
    """
    return in_context_order(tokens, n_states, 1, concentration)


def in_context_order(tokens: Tokens, n_states: int, order: int, concentration: float = 1.0) -> NextLaws:
    """Smoothed counts of what followed the last `order` tokens; uniform where there are fewer as yet.

    The conditional k-gram of Rajaraman et al. 2024 (arXiv 2407.17686), smoothed. The exact posterior mean
    when every row of an order-k kernel is drawn from Dirichlet(a) and the first k tokens are uniform. Holds
    one `[batch, history, state_to]` table of counts, not one per position.

    Args:
        tokens: Sequences of states.
        n_states: The number of states, K.
        order: How many tokens back it looks, k.
        concentration: What is added to every count, a.

    Example:
        >>> in_context_order(np.array([[0, 1, 1, 0, 1]]), n_states=2, order=2)[0, 4].round(3).tolist()
        [0.333, 0.667]
    """
    length = tokens.shape[1] + 1
    parents = [range(i - order, i) if i >= order else () for i in range(length)]
    return in_context_graph(tokens, n_states, parents, concentration)


def in_context_graph(
    tokens: Tokens, n_states: int, parents: Sequence[Sequence[int]], concentration: float = 1.0
) -> NextLaws:
    """Smoothed counts of what followed the states of the next position's parents; uniform for a root.

    Positions with as many parents share a kernel (Nichani et al. 2024, arXiv 2402.14735; public code). The
    exact posterior mean when its rows are drawn from Dirichlet(a) and roots carry no information on it.

    Args:
        tokens: The states so far, fewer than there are `parents`.
        n_states: K.
        parents: The parents of every position, below it; the first is the highest digit of a row's number.
        concentration: a.

    Example:
        >>> in_context_graph(np.array([[0, 1, 0]]), 2, [[], [0], [], [2]])[0, 2].round(3).tolist()
        [0.333, 0.667]
    """
    check_tokens(tokens, n_states)
    sequence = np.arange(len(tokens))
    counts = {
        m: np.full((len(tokens), n_states**m, n_states), concentration, dtype=np.float64)
        for m in {len(each) for each in parents}
    }
    law = np.full((*tokens.shape, n_states), 1 / n_states)
    for i, each in enumerate(parents[: tokens.shape[1] + 1]):
        if not each:
            continue
        places = n_states ** np.arange(len(each))[::-1]
        row = tokens[:, list(each)] @ places
        seen = counts[len(each)][sequence, row]
        law[:, i - 1] = seen / seen.sum(axis=-1, keepdims=True)
        if i < tokens.shape[1]:
            counts[len(each)][sequence, row, tokens[:, i]] += 1
    return law


def switching(tokens: Tokens) -> NextLaws:
    """Returns the next laws of a two-state chain that switches with an unknown probability.

    After s switches and n stays the next state differs with probability `(s + 1) / (s + n + 2)`: the exact
    posterior mean for a symmetric binary chain that switches with a probability drawn uniformly from [0, 1]
    and starts in either state with equal probability.

    Example:
        >>> switching(np.array([[0, 1, 0]]))[0, 2].tolist()
        [0.25, 0.75]
    """
    check_tokens(tokens, 2)
    switches = np.zeros(tokens.shape)
    switches[:, 1:] = (tokens[:, 1:] != tokens[:, :-1]).cumsum(axis=1)
    switch = (switches + 1) / (np.arange(tokens.shape[1]) + 2)
    ones = np.where(tokens == 0, switch, 1 - switch)
    return np.stack([1 - ones, ones], axis=-1)


def check_tokens(tokens: Tokens, n_states: int) -> None:
    """Refuse tokens that are not states `0 .. n_states - 1`: a negative index would silently read another.

    Raises:
        TypeError: They are not an array of integers.
        ValueError: Naming their shape, or the smallest and the largest token.

    Example:
        >>> check_tokens(np.array([[0, 2]]), n_states=2)
        Traceback (most recent call last):
        ValueError: tokens run from 0 to 2, expected states from 0 to 1
    """
    if not isinstance(tokens, np.ndarray) or tokens.dtype.kind not in "iu":
        kind = tokens.dtype if isinstance(tokens, np.ndarray) else type(tokens).__name__
        call = "tokens.numpy()" if hasattr(tokens, "numpy") else "np.array(tokens, dtype=int)"
        raise TypeError(f"tokens is {kind}, expected an array of integers, [batch, position]: {call}")
    if tokens.ndim != 2:
        raise ValueError(f"tokens has shape {tokens.shape}, expected [batch, position]")
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < n_states):
        raise ValueError(
            f"tokens run from {tokens.min()} to {tokens.max()}, expected states from 0 to {n_states - 1}"
        )
