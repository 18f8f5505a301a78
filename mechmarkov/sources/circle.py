"""A random walk on a circle of states."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Float64
from pydantic import Field

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.source import Count, Probability, check_request
from mechmarkov.sources.base.stationary import read_only
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, integers, uniform
from mechmarkov.utils.lazy_torch import Tensor, torch


class Circle(FixedChain):
    """One step clockwise (`+1`) with probability `p`, else counter-clockwise (Shi & Cao 2025, section 2).

    The start is uniform, which is stationary. With p = 0 or 1 the walk is deterministic, and with an even
    number of states it has period 2 at any p: neither is an error. Two states would be one and the same
    neighbour on both sides: that is `Binary(p=1, q=1)`.

    Args:
        n_states: Number of states, K.
        p: How likely a step clockwise is.

    Example:
        >>> walk = Circle(n_states=6, p=1.0)
        >>> walk.sample(1, 4, generator=torch.Generator().manual_seed(0)).diff() % 6
        tensor([[1, 1, 1]])
        >>> walk.period
        6
    """

    takes_streams: ClassVar[bool] = True
    kind: Literal["circle"] = "circle"
    example: ClassVar[Mapping[str, Any]] = {"n_states": 6, "p": 0.75}
    n_states: Count = Field(ge=3, le=1 << 12)
    p: Probability

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The uniform law, to the last bit; read-only."""
        return read_only(np.full(self.n_states, 1 / self.n_states))

    def title(self) -> str:
        """`Circle walk on 6 states, p = 0.5`."""
        return f"Circle walk on {self.n_states} states, p = {self.p:g}"

    def transition_matrix(self) -> Float[np.ndarray, "state_from state_to"]:
        ahead = np.roll(np.eye(self.n_states), 1, axis=1)
        return self.p * ahead + (1 - self.p) * ahead.T

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Draw walks: a cumulative sum of steps; see `Source.sample`."""
        check_request(batch, length, generator, device)
        return walks(self.n_states, self.p, batch, length, generator, device)


def walks(
    n_states: int,
    p: float | Float64[Tensor, "batch 1"],
    batch: int,
    length: int,
    generator: Numbers,
    device: Device,
) -> Sequences:
    """Walks on circles of one size: a uniform first state, then steps of +1 with probability p, else -1.

    Args:
        n_states: The number of states of the circle.
        p: How likely a step clockwise is: of all walks, or of each.
        batch: The number of walks.
        length: The number of states of each.
        generator: The only source of randomness.
        device: Where the generator lives.

    Example:
        >>> walks(4, 1.0, 1, 3, torch.Generator().manual_seed(0), "cpu").diff().remainder(4)
        tensor([[1, 1]])
    """
    start = integers(generator, device, n_states, batch, 1)
    u = uniform(generator, device, batch, length - 1)
    step = torch.where(u < p, 1, -1)
    return torch.cat([start, step], dim=1).cumsum(1) % n_states
