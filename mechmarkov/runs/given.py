"""Checks of what comes with a model that was trained elsewhere: its source, objective and step."""

import torch
from torch import Tensor

from mechmarkov.models import DecoderConfig
from mechmarkov.objectives import Objective, evaluated_length
from mechmarkov.safe.plain_data import describe
from mechmarkov.sources import Source
from mechmarkov.sources.base.source import check_drawn
from mechmarkov.utils.errors import MOST, integer_of
from mechmarkov.utils.text import shown


def check_source(source: object) -> None:
    """Refuse, with a ValueError, what is not a source, such as the path of a text or a matrix."""
    if not isinstance(source, Source):
        raise ValueError(
            f"source is {describe(source)}, expected a source such as mm.Circle(n_states=6, p=0.5)"
        )


def checked_objective(objective: object) -> Objective:
    """Returns an objective; where None is given cross-entropy at every position.

    Raises:
        TypeError: Something that is not an objective, such as the name of its kind.

    Example:
        >>> checked_objective(None).kind
        'cross_entropy'
    """
    if objective is None:
        return Objective()
    if not isinstance(objective, Objective):
        example = "mm.Objective(kind='raw_log', read='last', query=True)"
        raise TypeError(f"objective is {shown(objective)}, expected an objective such as {example}")
    return objective


def checked_step(step: int) -> int:
    """Returns a training step as an int.

    Raises:
        ValueError: It is not an integer, below 0, or of more than 63 bits.

    Example:
        >>> checked_step(torch.tensor(8))
        8
    """
    try:
        number = integer_of("step", step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"step is {shown(step)}, expected an integer of at least 0")
    if number > MOST:
        raise ValueError(f"step is {shown(step)}, expected at most 2^63 - 1")
    return number


def example_tokens(config: DecoderConfig, source: Source, objective: Objective) -> Tensor:
    """Draw sequences `[batch, position]` of the model's full length, for comparing two models.

    They are drawn as probes draw them, with the state after them: a source that is too short is refused here.
    Where its sequences are no longer than the context, the tokens are as long as they. A query token is the
    last token, one that sequences begin with the first; each has the id K, the number of states.

    Example:
        >>> from mechmarkov.sources import Circle
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=5, d_head=4, d_vocab=7, attn_only=True)
        >>> tokens = example_tokens(config, Circle(n_states=6, p=0.5), Objective(read="last", query=True))
        >>> tokens.shape, tokens[:, -1].unique().tolist()
        (torch.Size([8, 5]), [6])
    """
    length = config.n_ctx - objective.n_extra
    batch = max(1, min(8, 8192 // config.n_ctx))
    whole = source.length or evaluated_length(source, objective, config.n_ctx)
    drawn = check_drawn(
        source.sample_held_out(batch, whole, generator=torch.Generator().manual_seed(0)), source
    )
    return objective.framed(drawn[:, :length], source.n_states)
