"""Which products with weights are one layer: those that read the same, and what reads what these give."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mechmarkov.importing.live.events import Attention, Linear, Mix, Norm, Pass, same
from mechmarkov.importing.live.heads import Heads, heads_of
from mechmarkov.importing.live.name_table import UnclearError
from mechmarkov.utils.text import listed


@dataclass(frozen=True, eq=False)
class Group:
    """Products that read the same, and the scores that are made after them; or one whole attention layer.

    Attributes:
        linears: The products, in the order of the forward pass; none of a whole layer.
        mixes: The scores that are made after them.
        whole: The whole layer, of `torch.nn.MultiheadAttention`.
        norms: Norms of queries and keys.
    """

    linears: list[Linear]
    mixes: list[Mix] = field(default_factory=list)
    whole: Attention | None = None
    norms: list[Norm] = field(default_factory=list)

    def x(self) -> Tensor:
        """Returns what is read."""
        return self.whole.x if self.whole else self.linears[0].x


def groups_of(one: Pass) -> list[Group]:
    """Returns products with weights, those that read the same together, in their order."""
    groups = list[Group]()
    for event in one.events:
        if isinstance(event, Linear):
            if groups and not groups[-1].whole and same(groups[-1].x(), event.x):
                groups[-1].linears.append(event)
            else:
                groups.append(Group([event]))
        elif isinstance(event, Attention):
            groups.append(Group([], whole=event))
        elif isinstance(event, Mix) and groups:
            groups[-1].mixes.append(event)
        elif isinstance(event, Norm) and groups and event.y.ndim == 4:
            groups[-1].norms.append(event)
    return groups


@dataclass(frozen=True, eq=False)
class Layer:
    """An attention layer with what reads it, and its MLP.

    Attributes:
        attention: What reads the stream, the heads, what reads these; several where each head has its own
            products.
        mlp: What reads the stream, and the product behind the activation; None without an MLP.
    """

    attention: list[tuple[Group, Heads | None, Linear | None]]
    mlp: tuple[Group, Linear] | None = None


def layers_of(groups: Sequence[Group], d_model: int, biased: bool = False) -> list[Layer]:
    """Returns the attention and the MLP of each layer; `biased` as of `heads_of`."""
    layers, rest = list[Layer](), [*groups]
    while rest:
        group = rest.pop(0)
        after = rest[0].linears[0] if rest and len(rest[0].linears) == 1 and not rest[0].mixes else None
        if group.whole or group.mixes:
            heads = None if group.whole else _heads(group, biased)
            if heads is None or after is None or not _reads(after, heads.z):
                after = None
            else:
                rest.pop(0)
            own = (group, heads, after)
            if layers and layers[-1].mlp is None and same(layers[-1].attention[0][0].x(), group.x()):
                layers[-1].attention.append(own)
            else:
                layers.append(Layer([own]))
        elif after is not None and after.y.shape[-1] == d_model and layers and layers[-1].mlp is None:
            layers[-1] = replace(layers[-1], mlp=(group, after))
            rest.pop(0)
        else:
            names = listed([linear.weight for linear in group.linears[:3]])
            *_, (_, heads, out) = layers[-1].attention if layers else [(None, None, None)]
            if heads is not None and out is None and len(group.linears) == 1:
                raise UnclearError(
                    f"{names} does not read what causal attention gives: a softmax of scores with all tokens "
                    "up to one's own, or a window of them, times values"
                )
            raise UnclearError(f"{names}: neither attention with a softmax nor an MLP of two layers")
    if not layers:
        raise UnclearError("no softmax of scores is seen")
    return layers


def _reads(linear: Linear, z: Tensor) -> bool:
    """Returns whether a product reads what heads give."""
    return same(linear.x.flatten(2), z)


def _heads(group: Group, biased: bool) -> Heads:
    scores = torch.cat([mix.scores for mix in group.mixes], 1)
    heads = heads_of(group.linears, group.norms, scores, biased)
    if heads is None:
        names = listed([linear.weight for linear in group.linears[:4]])
        raise UnclearError(
            f"attention's scores are not scaled products of what {names} give; a bias by lag needs names= "
            'and given={"positional_embedding_type": "alibi"} or "relative_bias"'
        )
    return heads
