"""What a quantity is that a pass over the evaluation batch records: its hooks, its sums, its result.

A quantity hooks the forward passes of some models over chunks of sequences, adds up, and
finishes with arrays whose leading axis runs over these models.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch

Found = TypeVar("Found")
Hook = tuple[str, Callable[..., None]]
Arrays = dict[str, np.ndarray]


class Sums(ABC):
    """Running sums of one quantity for some models, over chunks of sequences."""

    def hooks(self, batch: Batch, sequences: slice) -> list[Hook]:  # noqa: ARG002 - for others
        """Hooks for a forward pass.

        Args:
            batch: The chunk of sequences that goes through.
            sequences: Their places in the whole batch.
        """
        return []

    def add(self, batch: Batch, scores: Float[Tensor, "model batch read d_vocab_out"]) -> None:  # noqa: B027
        """Add up after a forward pass, of which these are the outputs at the positions that are read."""

    @abstractmethod
    def finish(self) -> Arrays:
        """Arrays by name, `[model, ...]`; `value.cpu().numpy()` brings one from a GPU."""


@dataclass(frozen=True)
class Recorder(Generic[Found]):
    """A recorder of one quantity of one stack.

    Attributes:
        sums: Makes the sums of some models of the stack.
        found: Makes the result from the arrays of all models, by name.
    """

    sums: Callable[[HookedDecoder], Sums]
    found: Callable[..., Found]


@dataclass(frozen=True)
class Quantity(Generic[Found]):
    """Something that a pass over the evaluation batch records; `subject.recorded(quantity)` returns it.

    Attributes:
        name: For people.
        begin: Makes the recorder for a stack, a batch, and a source with that many states.
        reads_attention: Whether it does not exist where no layer has attention weights.
    """

    name: str
    begin: Callable[[HookedDecoder, Batch, int], Recorder[Found]]
    reads_attention: bool = False


class Totals(dict[str, Tensor]):
    """Sums by name, in float64."""

    def add(self, name: str, value: Tensor) -> None:
        """Add to the sum of that name.

        Example:
            >>> import torch
            >>> totals = Totals()
            >>> totals.add("mass", torch.ones(2))
            >>> totals.add("mass", torch.ones(2))
            >>> totals["mass"]
            tensor([2., 2.], dtype=torch.float64)
        """
        if name in self:
            self[name] += value
        else:
            self[name] = value.to(torch.float64, copy=True)


class PerSequence:
    """The values of every sequence, filled in chunk after chunk.

    One tensor, made once: small ones kept between the large ones of the passes would fragment the heap.

    Args:
        n_sequences: The number of sequences of all chunks together.
        dim: The axis of the sequences.

    Example:
        >>> import torch
        >>> kept = PerSequence(3, dim=1)
        >>> kept.add(torch.zeros(1, 2))
        >>> kept.add(torch.ones(1, 1))
        >>> kept.values
        tensor([[0., 0., 1.]])
    """

    def __init__(self, n_sequences: int, dim: int) -> None:
        self.n_sequences, self.dim, self.filled = n_sequences, dim, 0
        self.values: Tensor

    def add(self, part: Tensor) -> None:
        """Fill in the next chunk of sequences."""
        if self.filled == 0:
            shape = list(part.shape)
            shape[self.dim] = self.n_sequences
            self.values = part.new_empty(shape)
        self.values.narrow(self.dim, self.filled, part.shape[self.dim]).copy_(part)
        self.filled += part.shape[self.dim]


class HookSums(Sums):
    """Sums of what is read from hook points.

    Args:
        points: By the name of the sum, the hook point and what is added for each chunk of sequences,
            `[model, ...]`, from the activation, the chunk and its place in the batch.
    """

    def __init__(self, points: Mapping[str, tuple[str, Callable[[Tensor, Batch, slice], Tensor]]]) -> None:
        self.points, self.totals = points, Totals()

    def hooks(self, batch: Batch, sequences: slice) -> list[Hook]:
        """A hook for each point."""

        def hook_of(name: str, read: Callable[[Tensor, Batch, slice], Tensor]) -> Callable[..., None]:
            return lambda x, hook: self.totals.add(name, read(x, batch, sequences))

        return [(point, hook_of(name, read)) for name, (point, read) in self.points.items()]

    def finish(self) -> Arrays:
        """The sums, in float64."""
        return {name: total.cpu().numpy() for name, total in self.totals.items()}


class PerLayer(Sums):
    """The sums of every layer that has attention weights; elsewhere the result is NaN.

    Args:
        model: Some models of a stack.
        sums: Makes the sums of one layer, `[model, head, ...]`, from what the names of its hooks begin with.
    """

    def __init__(self, model: HookedDecoder, sums: Callable[[str], Sums]) -> None:
        blocks: list[Any] = list(model.blocks)
        self.layers = [
            sums(f"blocks.{i}.attn") if block.attn.has_attention_weights else None
            for i, block in enumerate(blocks)
        ]

    def hooks(self, batch: Batch, sequences: slice) -> list[Hook]:
        """The hooks of all layers."""
        return [hook for sums in self.layers if sums for hook in sums.hooks(batch, sequences)]

    def finish(self) -> Arrays:
        """Arrays by name, `[model, layer, head, ...]`."""
        found = [sums and sums.finish() for sums in self.layers]
        known = next(arrays for arrays in found if arrays)
        return {
            name: np.stack([one[name] if one else np.full_like(value, np.nan) for one in found], 1)
            for name, value in known.items()
        }
