"""Hidden Markov models in their two forms: tokens on the edges of the hidden chain, or from its states.

On edges (a Mealy machine; epsilon-machines, the labelled matrices of Shai et al. 2024, arXiv 2405.15943),
`T[x, i, j]` is the probability to emit x and go to j, given i. From states (a Moore machine; Rabiner 1989,
hmmlearn, dynamax) a state emits when it has been entered: `A[i, j]` and `E[i, x]`.
"""

import numpy as np
from jaxtyping import Float

TOLERANCE = 2e-7  # of a probability that was computed in float32

Matrices = Float[np.ndarray, "state hidden_from hidden_to"]
Chain = Float[np.ndarray, "chain_from chain_to"]
Emissions = Float[np.ndarray, "chain state"]


def from_states(T: Matrices) -> tuple[Chain, Emissions]:
    """Transitions and emissions of a model that emits from states and has the law of one that emits on edges.

    Where the token depends on only one end of the edge, the hidden states stay what they are: the state that
    is entered or the one that is left. Otherwise a hidden state is a token with the state that is entered,
    and emits that token.

    Args:
        T: Labelled matrices, whose sum over tokens is a transition matrix.

    Example:
        >>> even = np.array([[[0.5, 0], [0, 0]], [[0, 0.5], [1, 0]]])  # runs of 1 are of even length
        >>> A, E = from_states(even)
        >>> A.tolist()  # a 0; a 1 that ends a run of even length; one that does not
        [[0.5, 0.0, 0.5], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
        >>> E.tolist()
        [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    n_states, n_hidden, _ = T.shape
    A = T.sum(0)
    if n_hidden > 1:
        entered, left = T.sum(1).T, T.sum(2).T  # [hidden, state], in proportion to emissions
        never = entered.sum(1, keepdims=True) == 0  # entered: it is left for good, and emits nothing
        uniform = np.full_like(entered, 1 / n_states)
        of_entered = np.where(never, uniform, entered / np.where(never, 1, entered.sum(1, keepdims=True)))
        if np.abs(T - A * of_entered.T[:, None, :]).max() < TOLERANCE:
            return A, of_entered
        if np.abs(T - A * left.T[:, :, None]).max() < TOLERANCE:
            return A, left
    entered_with = (
        T.sum(1) if n_hidden > 1 else np.ones((n_states, 1))
    )  # what never is would be left for good
    state, hidden = np.nonzero(entered_with)
    return T[state[None, :], hidden[:, None], hidden[None, :]], np.eye(n_states)[state]
