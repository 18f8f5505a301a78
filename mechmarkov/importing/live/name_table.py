"""Which weight is which, as it is found out: a table of names in the making."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mechmarkov.importing.live.events import Linear
from mechmarkov.safe.plain_data import RunFileError


class UnclearError(RunFileError):
    """A forward pass does not tell which weight is which."""


@dataclass
class NameTable:
    """Collects which weight is which, and fields of the config.

    Attributes:
        lines: The lines of a table of names, by the model's own name of a weight.
        missing: What stands for weights that it does not have, by patterns of HookedTransformer's names.
        fields: Fields of the config.
        positions: "named" where a weight holds them, "fixed" where a buffer does, "none", or "measured", with
            tokens, where code makes of weights what the first layer reads.
        d_vocab: How many tokens there are, where embeddings are measured.
        n_positions: How many positions a table has there, if there is one.
        biases: What is added to scores in each layer, `[head, lag]`, where anything is.
        odd: What else is done with a weight, in words, by the weight.
        advice: What to say where logits differ.
    """

    lines: dict[str, list[Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    positions: str = "none"
    d_vocab: int = 0
    n_positions: int | None = None
    biases: dict[int, Tensor] = field(default_factory=dict)
    odd: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    def put(self, name: str, *to: str, **options: Any) -> None:
        """Put a line: which of HookedTransformer's weights one of the model's holds."""
        options = {key: value for key, value in options.items() if value is not None}
        self.lines.setdefault(name, []).append({"to": [*to] if len(to) > 1 else to[0], **options})

    def linear(self, one: Linear, *kinds: str, at: str, **options: Any) -> None:
        """Put a product's weight and bias, of one or several kinds such as "Q" and "in"."""
        weights, biases = ([f"{at}.{letter}_{kind}" for kind in kinds] for letter in "Wb")
        scale = None if one.scale == 1 else one.scale
        axes = None if one.axes is None or one.axes == (0, 1, 2) else [*one.axes]
        self.put(one.weight, *weights, transpose=one.transpose, scale=scale, axes=axes, **options)
        if one.bias is not None:
            self.put(one.bias, *biases, scale=scale, **options)

    def say(self, **fields: Any) -> None:
        """Put fields; an UnclearError where layers differ."""
        for name, value in fields.items():
            if self.fields.setdefault(name, value) != value:
                raise UnclearError(f"{name} is {self.fields[name]} in one layer and {value} in another")
