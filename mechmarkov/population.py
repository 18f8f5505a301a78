"""Training without samples: which sums over all sequences a model allows, and the sequences they take.

Every route is exact for the law of a fixed chain; they differ in how many sequences a step reads.

| model | what an output depends on | sequences, K states, length N |
|---|---|---|
| deterministic permutation, any model | the start | K |
| one attention layer, no positions, no window | last token, counts of tokens | of order N^(K-1) |
| L attention layers with a window w, any positions | last L w + 1 tokens, position | K^(L w + 2) |
| any other | all tokens | up to K^(N+1), at most 65,536 |

The walk model is of the last kind, as is one layer with relative positions and no window, and two layers
without positions: two orders of the same tokens give two outputs. The tests show two for each. A walk model
whose positions have equal logits reads only counts; so it is after its first step from zero, whose loss
is then a sum over counts for any P, K and N, and no longer after the second. On a circle from a zero start
only displacements matter, and a K-th of the sequences is enough (`model.form = "reduced"`).
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.objectives import Objective, sequence_length
from mechmarkov.sources import FixedChain, Source
from mechmarkov.sources.sampling.prefix_classes import Memory, class_law, count_class_law
from mechmarkov.sources.sampling.whole_law import check_fixed, n_sequences, whole_law

Law = TypeVar("Law")


def memory_of(config: DecoderConfig) -> Memory | None:
    """Returns what a decoder's output depends on besides the position, for any weights.

    Returns:
        `"counts"`: the last token and how often each came before. An integer: that many last tokens.
        None: all of them, in their order.

    Example:
        >>> shape = dict(n_layers=1, d_model=4, n_ctx=8, d_head=4, d_vocab=2)
        >>> memory_of(DecoderConfig(positional_embedding_type="none", **shape))
        'counts'
        >>> memory_of(DecoderConfig(window=2, **shape)), memory_of(DecoderConfig(**shape))
        (3, None)
    """
    if config.mixer != "attention":
        return None
    if config.window is not None:
        return config.n_layers * config.window + 1
    return "counts" if config.n_layers == 1 and config.positional_embedding_type == "none" else None


def population_law(
    source: Source, objective: Objective, config: DecoderConfig
) -> tuple[Int64[Tensor, "sequence state"], Float64[Tensor, "sequence read"]]:
    """Sequences and the probability that each target of them stands for, as few as the model allows.

    Returns:
        Sequences, and weights whose mean over targets sums to 1. Where every target of a sequence stands for
        the same, the axis `read` is 1.

    Raises:
        ValueError: Not a fixed chain, more sequences than are allowed, or sequences with a beginning token.
    """

    def whole(source: Source, length: int) -> tuple[Tensor, Tensor]:
        states, weights = whole_law(source, length)
        return states, weights[:, None]

    return _by_route(source, objective, config, whole, class_law)


def n_rows(source: Source, objective: Objective, config: DecoderConfig) -> int:
    """Returns how many sequences `population_law` has.

    Raises:
        ValueError: As `population_law`.
    """
    return _by_route(source, objective, config, n_sequences, count_class_law)


def _by_route(
    source: Source,
    objective: Objective,
    config: DecoderConfig,
    whole: Callable[[Source, int], Law],
    classes: Callable[[FixedChain, int, Memory, Literal["all", "last"]], Law],
) -> Law:
    """The value of one of two functions: of all sequences, or of the classes that the model tells apart."""
    if objective.bos:
        raise ValueError("objective.bos is true: the sum over all sequences is of states only")
    length, memory = sequence_length(objective, config.n_ctx), memory_of(config)
    try:
        if memory is None:
            return whole(source, length)
        if memory != "counts":
            memory = max(1, memory - objective.query)  # the query is a token and no state
        return classes(check_fixed(source), length, memory, objective.read)
    except ValueError as error:
        raise _refusal(error) from None


def population_laws(
    sources: Sequence[Source], objective: Objective, config: DecoderConfig
) -> tuple[Int64[Tensor, "*stack sequence state"], Float64[Tensor, "*stack sequence read"]]:
    """The laws of a stack's sources; without the stack axis where they are one and the same.

    One with fewer sequences than another repeats its first with weight 0.
    """
    laws = {source: population_law(source, objective, config) for source in sources}
    if len(laws) == 1:
        return laws[sources[0]]
    most = max(len(weights) for _, weights in laws.values())

    def padded(source: Source) -> tuple[Tensor, Tensor]:
        states, weights = laws[source]
        more = most - len(weights)
        none = weights.new_zeros(more, weights.shape[1])
        return torch.cat([states, states[:1].expand(more, -1)]), torch.cat([weights, none])

    both = [padded(source) for source in sources]
    return torch.stack([states for states, _ in both]), torch.stack([weights for _, weights in both])


def _refusal(error: ValueError) -> ValueError:
    return ValueError(
        f"data.population is true, but {error}: give data.n_train or data.batch (with data.groups "
        "the error of its loss and gradient is printed), or a smaller model.n_ctx"
    )
