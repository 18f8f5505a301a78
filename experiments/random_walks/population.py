"""All walks of a circle at their probability, so that gradient descent on the population is exact."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechmarkov.theory.walk import reduced_walk

ETA, EPS, M = 1.0, 0.1, 1000  # the paper's step size, floor in the loss, and dimension of positions
LOG = "-log(z + eps)"
GRID = tuple(np.round(np.arange(0.5, 1, 0.05), 2).tolist())  # p: the circle turned round has 1 - p


@dataclass(frozen=True, eq=False)
class Population:
    """Walks of N states that end anywhere, as displacements of the label, with their probabilities."""

    n_states: int
    p: float
    ahead: reduced_walk.Displacements
    weights: reduced_walk.Weights


def population(n_states: int, length: int, p: float) -> Population:
    """All 2^(N-1) walks of `length` states, the rotations of each left out.

    Example:
        >>> walks = population(6, 3, 0.75)
        >>> walks.ahead.tolist(), walks.weights.tolist()
        ([[4, 5], [0, 5], [0, 1], [2, 1]], [0.0625, 0.1875, 0.1875, 0.5625])
    """
    steps = np.arange(length - 1)
    moves = 2 * ((np.arange(2 ** (length - 1))[:, None] >> steps) & 1) - 1
    ahead = np.cumsum(moves[:, ::-1], axis=1)[:, ::-1] % n_states
    return Population(n_states, p, ahead, np.where(moves == 1, p, 1 - p).prod(1))


@dataclass(frozen=True, eq=False)
class Descent:
    """Gradient descent from zero on a population, at every step."""

    walks: Population
    states: list[reduced_walk.ReducedState]

    def attention(self, step: int) -> Float[np.ndarray, " position"]:
        """On each of the N positions, the query's own last."""
        return reduced_walk.forward(self.states[step], self.walks.ahead).attention

    def accuracy(self, step: int) -> float:
        """Probability of a right label."""
        return reduced_walk.accuracy(self.states[step], self.walks.ahead, self.walks.weights)

    def outputs(self, step: int) -> tuple[Float[np.ndarray, "path state"], Float[np.ndarray, "path state"]]:
        """`f(X)` of each walk, and the law of the label given the walk; state 0 is where the label is."""
        found = reduced_walk.forward(self.states[step], self.walks.ahead).scores
        law = np.zeros_like(found)
        parent, rows = -self.walks.ahead[:, -1], np.arange(len(found))
        for way, chance in ((1, self.walks.p), (-1, 1 - self.walks.p)):
            law[rows, (parent + way) % self.walks.n_states] += chance
        return found, law

    def logits(self, step: int) -> Float[np.ndarray, " position"]:
        """Of attention, on each of the N positions."""
        state = self.states[step]
        return state.position_logits + np.append(
            np.full(len(state.position_logits) - 1, state.token_logit), 0
        )


def descend(n_states: int, length: int, p: float, steps: int, positions: int = M) -> Descent:
    """The paper's gradient descent from zero (eta = 1, eps = 0.1) on all walks of a length."""
    walks = population(n_states, length, p)
    states = reduced_walk.descend(
        walks.ahead,
        walks.weights,
        n_states=n_states,
        position_norm_sq=(positions + 1) / 2,
        eta=ETA,
        eps=EPS,
        steps=steps,
    )
    return Descent(walks, states)


def transition(n_states: int, p: float) -> Float[np.ndarray, "state_from state_to"]:
    """The paper's Π of a circle."""
    return p * np.roll(np.eye(n_states), 1, 1) + (1 - p) * np.roll(np.eye(n_states), -1, 1)
