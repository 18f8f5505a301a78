"""What a quantity is that a pass over the evaluation batch records, and parts of recordings.

A recording has three methods, as a metric of torchmetrics: `hooks` for each forward pass, `update` after it,
and `compute` once all sequences have gone through. Models go through in groups, with a recording for each, so
that memory is bounded; `compute` gives arrays whose leading axis runs over the models of the group.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor, float64

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.probing.batch import Batch

Value = TypeVar("Value")
ValueOut = TypeVar("ValueOut", covariant=True)
Hook = tuple[str, Callable[..., None]]
Arrays = dict[str, np.ndarray]
# What is added for a chunk of sequences, `[model, ...]`: from activation, chunk and its place in the batch.
Read = Callable[[Tensor, Batch, slice], Tensor]


@dataclass(frozen=True, eq=False)
class Scope:
    """The models and sequences that one recording is of.

    Attributes:
        model: Some models of a stack.
        batch: All sequences that go through them.
        n_states: The number of states of the source.
        n_models: The number of models of the whole stack.
    """

    model: HookedDecoder
    batch: Batch
    n_states: int
    n_models: int


@runtime_checkable
class Recording(Protocol[ValueOut]):
    """The recording of one quantity of some models, over chunks of sequences."""

    def hooks(self, _: Batch, __: slice, /) -> list[Hook]:
        """Hooks for the forward pass of a chunk of sequences, with its places in the whole batch."""
        return []

    def update(self, _: Batch, __: Float[Tensor, "model batch read d_vocab_out"], /) -> None:
        """Take in the forward pass of a chunk, with its outputs at the positions that are read."""
        return

    def compute(self) -> ValueOut:
        """The value for these models: arrays `[model, ...]` on the host, and what is the same for all."""
        ...


@dataclass(frozen=True)
class Quantity(Generic[Value]):
    """Something that a pass over the evaluation batch records; `subject.recorded(quantity)` returns it.

    Attributes:
        name: For people.
        start: Begins the recording of some models. Its value is an array, a dict of arrays or a dataclass.
            Arrays run over the models, and what else a dataclass has is the same for all.
        reads_attention: Whether it does not exist where no layer has attention weights.
    """

    name: str
    start: Callable[[Scope], Recording[Value]]
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
        if name not in self:
            self[name] = value.to(float64, copy=True)
        elif value.device.type == "cpu":  # torch takes three times as long for two types
            total = self[name].numpy()
            np.add(total, value.numpy(), out=total)
        else:
            self[name] += value


class PerSequence:
    """The values of every sequence, filled in chunk after chunk.

    One tensor, made once: small ones kept between the large ones of the passes would fragment the heap.

    Args:
        n_sequences: The number of sequences of all chunks together.
        dim: The axis of the sequences.

    Example:
        >>> import torch
        >>> values = PerSequence(3, dim=1)
        >>> values.add(torch.zeros(1, 2))
        >>> values.add(torch.ones(1, 1))
        >>> values.values
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


class HookSums(Recording[Value]):
    """Sums, in float64, of what is read from hook points.

    Args:
        points: By the name of the sum, the hook point and what is added for each chunk of sequences.
        value: Makes the value from the sums by name.
    """

    def __init__(self, points: Mapping[str, tuple[str, Read]], value: Callable[..., Value]) -> None:
        self.points, self.value, self.totals = points, value, Totals()

    def hooks(self, part: Batch, sequences: slice, /) -> list[Hook]:
        """A hook for each point."""

        def hook_of(name: str, read: Read) -> Callable[..., None]:
            return lambda x, hook: self.totals.add(name, read(x, part, sequences))

        return [(point, hook_of(name, read)) for name, (point, read) in self.points.items()]

    def compute(self) -> Value:
        """The value that the sums give."""
        return self.value(**{name: total.cpu().numpy() for name, total in self.totals.items()})


class PerLayer(Recording[Value]):
    """A recording for every layer that has attention weights; elsewhere the arrays are NaN.

    Args:
        model: Some models of a stack.
        of_layer: Begins the recording of one layer, arrays `[model, head, ...]` by name, from what the names
            of its hooks begin with.
        value: Makes the value from the arrays of all layers by name, `[model, layer, head, ...]`.
    """

    def __init__(
        self, model: HookedDecoder, of_layer: Callable[[str], Recording[Arrays]], value: Callable[..., Value]
    ) -> None:
        blocks: list[Any] = list(model.blocks)
        self.value = value
        self.layers = [
            of_layer(f"blocks.{i}.attn") if block.attn.has_attention_weights else None
            for i, block in enumerate(blocks)
        ]

    def hooks(self, part: Batch, sequences: slice, /) -> list[Hook]:
        """The hooks of all layers."""
        return [hook for layer in self.layers if layer for hook in layer.hooks(part, sequences)]

    def compute(self) -> Value:
        """The value that all layers together give."""
        by_layer = [layer and layer.compute() for layer in self.layers]
        known = next(arrays for arrays in by_layer if arrays)
        stacked = {
            name: np.stack([arrays[name] if arrays else np.full_like(one, np.nan) for arrays in by_layer], 1)
            for name, one in known.items()
        }
        return self.value(**stacked)
