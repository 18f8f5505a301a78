"""All draws of what follows the triggers of a `TriggerBigram`, and the chains they make."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from jaxtyping import Float, Int

from mechmarkov.sources.sampling import law


@dataclass(frozen=True)
class Draws:
    """Every draw of the outputs, the last trigger's changing fastest.

    Attributes:
        possible: The states that can be outputs.
        outputs: What follows each trigger.
        weight: How likely the draw is.
        law: The stationary law of the chain that it makes.
    """

    possible: Int[np.ndarray, " possible"]
    outputs: Int[np.ndarray, "draw trigger"]
    weight: Float[np.ndarray, " draw"]
    law: Float[np.ndarray, "draw state"]

    def number(self, n_states: int) -> Int[np.ndarray, " state"]:
        """The place of each state among the possible outputs, -1 for the others."""
        found = np.full(n_states, -1)
        found[self.possible] = np.arange(len(self.possible))
        return found


def every_draw(
    P: Float[np.ndarray, "state_from state_to"],
    triggers: tuple[int, ...],
    output_law: Float[np.ndarray, " state"],
) -> Draws:
    """Cut down to its triggers a chain has few states; what is visited between two is the same in all."""
    t, rest = np.array(triggers), np.delete(np.arange(len(P)), triggers)
    possible = np.flatnonzero(output_law)
    outputs = np.array(list(product(possible, repeat=len(t))))
    met = P.copy()
    met[t] = np.eye(len(P))[t]
    # From each state, up to and with the first trigger met: how often each state is visited.
    visits = np.zeros_like(P)
    visits[np.ix_(rest, rest)] = np.linalg.inv(np.eye(len(rest)) - P[np.ix_(rest, rest)])
    visits[np.ix_(rest, t)] = visits[np.ix_(rest, rest)] @ P[np.ix_(rest, t)]
    visits = np.where(law.reachable(met), visits, 0.0)  # and no rounding where there is no way
    between = visits[:, t][outputs]  # draw, trigger, next trigger
    of_triggers = law.eliminate(torch.tensor(between / between.sum(-1, keepdims=True))).numpy()
    stationary = np.einsum("dq,dqk->dk", of_triggers, visits[outputs])
    weight = output_law[outputs].prod(-1)
    return Draws(possible, outputs, weight, stationary / stationary.sum(-1, keepdims=True))
