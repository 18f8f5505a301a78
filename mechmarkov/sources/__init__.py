"""Sources of Markov data: samplers that know their law."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from mechmarkov.sources.base.fixed_chain import FixedChain
from mechmarkov.sources.base.source import Predictor, Source
from mechmarkov.sources.base.stationary import Stationary
from mechmarkov.sources.binary import Binary
from mechmarkov.sources.chain import Chain
from mechmarkov.sources.chain_mixture import ChainMixture
from mechmarkov.sources.circle import Circle
from mechmarkov.sources.dirichlet_chains import DirichletChains
from mechmarkov.sources.doubly_stochastic import DoublyStochastic
from mechmarkov.sources.fruit_questions import FruitQuestions
from mechmarkov.sources.graph import Graph
from mechmarkov.sources.hidden_markov import HiddenMarkov
from mechmarkov.sources.lagged_chain import LaggedChain
from mechmarkov.sources.order_k import OrderK
from mechmarkov.sources.selective_lag import SelectiveLag
from mechmarkov.sources.switch import Switch
from mechmarkov.sources.trigger_bigram import TriggerBigram

AnySource = Annotated[
    Binary
    | Chain
    | ChainMixture
    | Circle
    | DirichletChains
    | DoublyStochastic
    | FruitQuestions
    | Graph
    | HiddenMarkov
    | LaggedChain
    | OrderK
    | SelectiveLag
    | Switch
    | TriggerBigram,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnySource)


def source_from_data(data: Mapping[str, Any]) -> Source:
    """A source from plain data, `{"kind": …}` plus its constructor's arguments.

    Raises:
        ValueError: naming the field, its value and what was expected.

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
    "ChainMixture",
    "Circle",
    "DirichletChains",
    "DoublyStochastic",
    "FixedChain",
    "FruitQuestions",
    "Graph",
    "HiddenMarkov",
    "LaggedChain",
    "OrderK",
    "Predictor",
    "SelectiveLag",
    "Source",
    "Stationary",
    "Switch",
    "TriggerBigram",
    "source_from_data",
]
