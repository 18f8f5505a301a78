"""How a live model is read: its weights and config, where some fields of the config may have to be tried."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from torch import Tensor

from mechmarkov.models import DecoderConfig

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """A live model as it says itself.

    Attributes:
        read: The config, and weights with HookedTransformer's names, with a choice of what it does not say.
        choices: What each field may be that nothing says: its logits tell which.
        said: For provenance, how fields were found that no config gives.
        advice: The end of a sentence about logits that differ.
    """

    read: Callable[[Fields], tuple[DecoderConfig, Mapping[str, Tensor]]]
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""

    def all_choices(self) -> Iterator[dict[str, Any]]:
        """Every combination of what the fields may be; one, of nothing, where there are none to choose."""
        for values in product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))
