"""How states become what a model reads and what it must predict."""

import torch
from jaxtyping import Int
from torch import Tensor

from mechmarkov.objectives import Objective


def sequence_length(objective: Objective, n_ctx: int) -> int:
    """States per training sequence: the model's inputs and the target after them.

    With a query token the inputs are N-1 states and the query, so N states are drawn; else N+1.
    """
    return n_ctx if objective.query else n_ctx + 1


def inputs_and_targets(
    states: Int[Tensor, "*stack batch state"], objective: Objective, n_states: int
) -> tuple[Int[Tensor, "*stack batch position"], Int[Tensor, "*stack batch read"]]:
    """Split sequences into what the model reads and what it must predict at the positions that are read.

    Example:
        >>> states = torch.tensor([[0, 1, 2, 1]])
        >>> inputs_and_targets(states, Objective(), 3)
        (tensor([[0, 1, 2]]), tensor([[1, 2, 1]]))
        >>> inputs_and_targets(states, Objective(read="last", query=True), 3)
        (tensor([[0, 1, 2, 3]]), tensor([[1]]))
    """
    tokens = states[..., :-1]
    if objective.query:
        tokens = torch.cat([tokens, torch.full_like(states[..., :1], n_states)], -1)
    return tokens, states[..., 1:] if objective.read == "all" else states[..., -1:]
