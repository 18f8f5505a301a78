"""How a live model is read: its weights and config, where some fields of the config may have to be tried."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from torch import Tensor

from mechmarkov.models import DecoderConfig

Fields = Mapping[str, Any]
Read = Callable[[Fields], tuple[DecoderConfig, Mapping[str, Tensor]]]


@dataclass(frozen=True)
class Reading:
    """Says how a live model is read, where some fields of its config may have to be tried.

    Attributes:
        read: A function of a choice of fields: the config, and weights with HookedTransformer's names.
        choices: The values that each field may have that nothing says: its logits tell which.
        said: Entries for provenance, how fields were found that no config gives.
        advice: The end of a sentence about logits that differ.
        modules: The path of the module that holds each weight, by HookedTransformer's name, where known.
        again: Reads the model with the weights that it has then, where these were found by what it computes.

    Example:
        >>> reading = Reading(lambda choice: NotImplemented, {"act_fn": ["relu", "gelu"]})
        >>> list(reading.all_choices())
        [{'act_fn': 'relu'}, {'act_fn': 'gelu'}]
    """

    read: Read
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)
    again: Read | None = None

    def all_choices(self) -> Iterator[dict[str, Any]]:
        """Yields every combination of `choices`; one, of nothing, where there are none."""
        for values in product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))
