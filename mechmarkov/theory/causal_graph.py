"""What the first layer of a disentangled transformer learns first: the gradient at its start, in closed form.

The reduced model of Nichani, Damian & Lee (2024, arXiv 2402.14735) reads N states, the last of which is the
query q, uniform and independent of the others. Its first layer attends by a table `A` of positions and puts
the mean state `h_i = sum_j softmax(A_i)_j x_{s_j}` next to position i. Its second attends with scores
`beta h_i[q]`, and the output is the attended frequency of each state, the loss `-log(output + eps)`. At
`A = 0`, to first order in beta,

    dL/dA_ij = -beta / (N K) / (i + 1) (g_ij - mean of g_i over the keys),
    g_ij = E[ sum_k π(k | s_j) / (f_k + eps) (1{s_i = k} - f_k) ],

where f are the frequencies of states in the input, the query `s_j` among them. In a long input f is the
stationary law μ, and for eps = 0

    g_ij = sum_{a, b} π(b | a) / μ(b) Pr(s_j = a, s_i = b) - 1,

which is the χ² information between i and its parent where j is that parent. For another earlier j it is an
inner product of two pair laws: at most `sqrt(I(i, parent) I(i, j))`, and so by the data-processing inequality
at most that of the parent. The paper's proof was not read: this is derived here (its abstract states that the
gradient encodes the mutual information and why edges are its largest entries).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

Chain = Float[np.ndarray, "state_from state_to"]
Parents = Sequence[Sequence[int]]


def chi_squared_information(joint: Float[np.ndarray, "*pair state_a state_b"]) -> Float[np.ndarray, "*pair"]:
    """χ² mutual information `sum_ab Pr(a, b)² / (Pr(a) Pr(b)) - 1` of two states (no unit).

    Example:
        >>> float(chi_squared_information(np.array([[0.5, 0.0], [0.0, 0.5]])))
        1.0
    """
    independent = joint.sum(-1, keepdims=True) * joint.sum(-2, keepdims=True)
    ratio = np.divide(joint**2, independent, out=np.zeros_like(joint), where=independent > 0)
    return np.asarray(ratio.sum((-2, -1)) - 1)


def tree_pair_laws(
    parents: Parents, P: Chain, root: Float[np.ndarray, " state"]
) -> Float[np.ndarray, "position_j position_i state_j state_i"]:
    """The law of the states at any two positions of a tree or forest, whose roots are independent draws.

    Args:
        parents: The parent of each position, at most one, below it.
        P: The chain along edges.
        root: The law of a root.

    Raises:
        ValueError: A position has several parents.

    Example:
        >>> flip = np.array([[0.25, 0.75], [0.75, 0.25]])
        >>> tree_pair_laws([[], [0], [0]], flip, np.array([0.5, 0.5]))[1, 2].tolist()
        [[0.3125, 0.1875], [0.1875, 0.3125]]
    """
    n = len(parents)
    law = np.zeros((n, n, len(P), len(P)))
    for i, each in enumerate(parents):
        if len(each) > 1:
            raise ValueError(f"parents of position {i} are {list(each)}, expected at most one")
        for j in range(i):
            law[j, i] = law[j, each[0]] @ P if each else np.outer(np.diag(law[j, j]), root)
            law[i, j] = law[j, i].T
        law[i, i] = np.diag(np.diag(law[each[0], each[0]]) @ P if each else root)
    return law


def edge_scores(
    parents: Parents, P: Chain, pi: Float[np.ndarray, " state"]
) -> Float[np.ndarray, "position_i position_j"]:
    """g_ij of a long input, in closed form, for keys j up to i; NaN beyond. Roots are stationary.

    The last of `parents` is a position of the graph, not the query.

    Example:
        >>> flip = np.array([[0.25, 0.75], [0.75, 0.25]])
        >>> edge_scores([[], [0], [0]], flip, np.array([0.5, 0.5]))[2].round(4).tolist()
        [0.25, -0.125, -0.5]
    """
    law = tree_pair_laws(parents, P, pi)
    scores = np.einsum("jiab,ab->ij", law, P / pi) - 1
    return np.where(np.tri(len(parents), dtype=bool), scores, np.nan)


def finite_scores(
    states: Int[np.ndarray, "sequence position"],
    weights: Float[np.ndarray, " sequence"],
    P: Chain,
    *,
    eps: float = 0.0,
) -> Float[np.ndarray, "position_i position_j"]:
    """Compute `g_ij`, which the gradient is made of (see above), for inputs of a finite length (no unit).

    It is NaN where j is after i: no position attends to a later one.

    Args:
        states: Sequences of the graph's positions; the query, equal to position j, comes after them.
        weights: The weight of each sequence, summing to 1: its probability where all are enumerated.
        P: The chain along edges.
        eps: Inside the logarithm of the loss.

    Example:
        >>> copies = np.array([[0, 0], [1, 1]])  # position 1 copies position 0
        >>> finite_scores(copies, np.array([0.5, 0.5]), np.eye(2)).tolist()
        [[0.0, nan], [0.0, 0.0]]
    """
    n_states, n = len(P), states.shape[1]
    counts = (states[..., None] == np.arange(n_states)).sum(1)
    scores = np.full((n, n), np.nan)
    for j in range(n):
        query = states[:, j]
        share = (counts + np.eye(n_states)[query]) / (n + 1)
        # What no token shows is no output: it adds nothing to the derivative, whatever eps.
        value = np.divide(P[query], share + eps, out=np.zeros_like(share), where=share > 0)
        own = np.take_along_axis(value, states[:, j:], axis=1)  # [sequence, position_i]
        scores[j:, j] = weights @ (own - (value * share).sum(-1, keepdims=True))
    return scores
