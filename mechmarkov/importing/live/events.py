"""The steps of a forward pass: products, norms, looked up rows, and the scores of attention."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

CLOSE = 1e-4  # of the largest number: rounding in float32
NORMED = 0.05  # what is added to a variance makes that of what is normed less than 1


@dataclass(frozen=True, eq=False)
class Lookup:
    """Rows of a table that are taken for tokens or for positions, or a table that is added as it is.

    Attributes:
        weight: The name of the table; None where code computes it.
        of: Whether rows follow tokens or positions.
        y: The rows, scaled: `[batch, position, d_model]` of tokens, `[position, d_model]` of positions.
        first: The row of position 0.
        transpose: Whether the table lies as `[d_model, row]`.
        scale: What the rows were multiplied by.
    """

    weight: str | None
    of: Literal["tokens", "positions"]
    y: Tensor
    first: int = 0
    transpose: bool = False
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Linear:
    """A product with a weight: `y = scale (x W + b)`.

    Attributes:
        weight: The name of `W`.
        x: What is multiplied, `[batch, position, d_in]`.
        y: What comes out, `[batch, position, d_out]`, of heads in one.
        transpose: Whether the weight lies as `[d_out, d_in]`.
        bias: The name of `b`, if there is one.
        scale: What the sum was multiplied by.
        axes: The axes of heads, of what is read and of what is given, of a weight that has three.
    """

    weight: str
    x: Tensor
    y: Tensor
    transpose: bool | None
    bias: str | None = None
    scale: float = 1.0
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm.

    Attributes:
        kind: "LN" or "RMS".
        x: What it reads; None where its code is its own.
        y: What comes out.
        weight: The name of its gain, if it has one.
        bias: The name of what is added after it, if there is any.
        eps: What is added to the variance.
        plus: What is added to the gain.
    """

    kind: str
    x: Tensor | None
    y: Tensor
    weight: str | None
    bias: str | None
    eps: float
    plus: float = 0.0


@dataclass(frozen=True, eq=False)
class Mix:
    """Attention's scores before a softmax, `[batch, head, query, key]`."""

    scores: Float[Tensor, "batch head query key"]


@dataclass(frozen=True, eq=False)
class Attention:
    """A whole attention layer of `torch.nn.MultiheadAttention`: names of its weights by what they are.

    Attributes:
        x: What the layer reads.
        n_heads: The number of heads.
        names: What each weight is, by its own name, such as `in_proj_weight`.
    """

    x: Tensor
    n_heads: int
    names: Mapping[str, str]


Event = Lookup | Linear | Norm | Mix | Attention


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass.

    Attributes:
        events: What was done with weights, in its order.
        names: The names of each weight and buffer, several where it is tied.
        sizes: The shape of each.
        small: Small numbers that were added, such as to a variance.
        buffers: The names of what is not trained.
        strange: What else was done with a weight, in words, by its name.
    """

    events: list[Event] = field(default_factory=list)
    names: Mapping[str, list[str]] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    small: list[float] = field(default_factory=list)
    buffers: Collection[str] = ()
    strange: dict[str, str] = field(default_factory=dict)

    def of(self, kind: type) -> list[Any]:
        """Returns the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def same(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors hold the same numbers, up to rounding.

    Example:
        >>> import torch
        >>> same(torch.ones(2, 3), torch.ones(2, 3) + 1e-9), same(torch.ones(2), torch.zeros(2))
        (True, False)
    """
    return one.shape == other.shape and bool((one - other).abs().max() <= CLOSE * other.abs().max())


def normed_as(x: Tensor) -> str | None:
    """Returns which norm numbers come from that have no gain: "LN", "RMS", or None.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 1.0, 0.0]])
        >>> normed_as(torch.nn.functional.layer_norm(x, (3,))), normed_as(x)
        ('LN', None)
    """
    if not bool(((x.square().mean(-1) - 1).abs() <= NORMED).all()):
        return None
    return "LN" if bool((x.mean(-1).abs() <= CLOSE * x.abs().max()).all()) else "RMS"
