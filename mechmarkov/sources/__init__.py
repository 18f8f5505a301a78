"""Sources of Markov data: samplers that know their law."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from mechmarkov.sources.base import Predictor, Source
from mechmarkov.sources.binary import Binary
from mechmarkov.sources.chain import Chain
from mechmarkov.sources.circle import Circle
from mechmarkov.sources.dirichlet_chains import DirichletChains
from mechmarkov.sources.fixed_chain import FixedChain
from mechmarkov.sources.stationary import Stationary

AnySource = Annotated[Binary | Chain | Circle | DirichletChains, Field(discriminator="kind")]

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnySource)


def source_from_data(data: Mapping[str, Any]) -> Source:
    """A source from plain data, `{"kind": …}` plus its constructor's arguments.

    Raises:
        pydantic.ValidationError: naming the field, its value and what was expected.

    Example:
        >>> source_from_data({"kind": "binary", "p": 0.5, "q": 0.8})
        Binary(kind='binary', p=0.5, q=0.8)
    """
    source: Source = _ADAPTER.validate_python(dict(data))
    return source


__all__ = [
    "AnySource",
    "Binary",
    "Chain",
    "Circle",
    "DirichletChains",
    "FixedChain",
    "Predictor",
    "Source",
    "Stationary",
    "source_from_data",
]
