"""What a pass has besides its own tokens: masked tokens, and keys and values of earlier passes."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool
from torch import Tensor

UNKNOWN_TOKEN = -1  # stands for each token of a pass that begins from a residual stream, if none are given


@dataclass(frozen=True, eq=False)
class Context:
    """The inputs of one layer's queries beyond the causal mask.

    Attributes:
        visible: False for a token that no query attends to; None where all are visible. It has the tokens
            of earlier passes first.
        past: The layer's entry of TransformerLens' `TransformerLensKeyValueCache`, to which `append` adds
            keys and values; None without earlier passes.
    """

    visible: Bool[Tensor, "*stack batch key"] | None = None
    past: Any = None
