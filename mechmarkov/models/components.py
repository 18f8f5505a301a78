"""Names of a model's components and where their outputs are hooked: the one place that reads and makes names.

Components are `embed`, `pos_embed`, heads (`L0H1`), MLPs (`L0.mlp`), `direct` (the embedding straight to the
unembedding) and `bias` (all output biases).
"""

import re
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mechmarkov.models.config import DecoderConfig
from mechmarkov.utils.text import shown

HEAD = re.compile(r"L(\d+)H(\d+)")
MLP = re.compile(r"L(\d+)\.mlp")
HEAD_INPUT = re.compile(r"(L\d+H\d+)\.([QKV])")


def head_name(layer: int, head: int) -> str:
    """Returns the name by which results call a head: `L`, its layer, `H`, its number, both from 0.

    Example:
        >>> head_name(0, 1), mlp_name(0)
        ('L0H1', 'L0.mlp')
    """
    return f"L{layer}H{head}"


def mlp_name(layer: int) -> str:
    """Returns the name by which results call the MLP of a layer, such as `L0.mlp`."""
    return f"L{layer}.mlp"


def head_index(name: str) -> tuple[int, int] | None:
    """Returns layer and head of a head's name; None for any other name.

    Example:
        >>> head_index("L1H0"), head_index("L1.mlp")
        ((1, 0), None)
    """
    match = HEAD.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def mlp_index(name: str) -> int | None:
    """Returns the layer of an MLP's name; None for any other name.

    Example:
        >>> mlp_index("L1.mlp"), mlp_index("direct")
        (1, None)
    """
    match = MLP.fullmatch(name)
    return None if match is None else int(match[1])


def split_input(receiver: str) -> tuple[str, str]:
    """Split the end of a path into its component and its input: Q, K or V, and "" for an MLP and the logits.

    Example:
        >>> split_input("L1H0.Q"), split_input("L1.mlp")
        (('L1H0', 'Q'), ('L1.mlp', ''))
    """
    match = HEAD_INPUT.fullmatch(receiver)
    return (receiver, "") if match is None else (match[1], match[2])


def composed_name(*heads: str) -> str:
    """The name of heads that select one after the other.

    Example:
        >>> composed_name("L0H0", "L1H1"), composed_parts("L0H0→L1H1"), composed_parts("direct")
        ('L0H0→L1H1', ('L0H0', 'L1H1'), ('direct',))
    """
    return "→".join(heads)


def composed_parts(name: str) -> tuple[str, ...]:
    """The heads of a name that `composed_name` makes; another name is its own only part."""
    return tuple(name.split("→"))


def head_names(config: DecoderConfig) -> list[str]:
    """Returns the names of all heads, layer by layer.

    Example:
        >>> head_names(DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=2, d_vocab=2))
        ['L0H0', 'L0H1']
    """
    return [head_name(layer, head) for layer in range(config.n_layers) for head in range(config.n_heads)]


def layer_components(config: DecoderConfig) -> list[str]:
    """Returns the names of heads and MLPs, in the order in which they are computed.

    Example:
        >>> layer_components(DecoderConfig(n_layers=2, d_model=4, n_ctx=3, d_head=4, d_vocab=2))
        ['L0H0', 'L0.mlp', 'L1H0', 'L1.mlp']
    """
    names = []
    for layer in range(config.n_layers):
        names += [head_name(layer, head) for head in range(config.n_heads)]
        names += [mlp_name(layer)] * (not config.attn_only)
    return names


def component_names(config: DecoderConfig) -> list[str]:
    """Returns the names of all components, in the order in which they are computed.

    Example:
        >>> component_names(DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=4, d_vocab=2))
        ['embed', 'pos_embed', 'L0H0', 'L0.mlp', 'direct', 'bias']
    """
    positions = ["pos_embed"] * (config.positional_embedding_type in ("standard", "shortformer"))
    return ["embed", *positions, *layer_components(config), "direct", "bias"]


def check_component(config: DecoderConfig, name: str) -> None:
    """Refuse a name that no component of the model has, with a ValueError that lists those there are.

    Example:
        >>> check_component(DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=4, d_vocab=2), "L1H0")
        Traceback (most recent call last):
        ValueError: component is 'L1H0', expected one of embed, pos_embed, L0H0, L0.mlp, direct, bias
    """
    known = component_names(config)
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"component is {shown(name)}, expected one of {', '.join(known)}")


def stage_of(name: str, parallel: bool = False) -> int:
    """The residual sum that a component is part of: 2 l of the heads of layer l, -1 of embeddings.

    2 l + 1 of the layer's MLP, or 2 l where it is parallel to the heads. Behind the last are the logits.

    Example:
        >>> stage_of("embed"), stage_of("L1H0"), stage_of("L1.mlp")
        (-1, 2, 3)
    """
    head, mlp = head_index(name), mlp_index(name)
    return 2 * head[0] if head is not None else -1 if mlp is None else 2 * mlp + (not parallel)


def norms_between(config: DecoderConfig, writer: str, reader: str = "logits") -> tuple[str, ...]:
    """The norms that what a component writes passes before a later one, or the unembedding, reads it.

    Before a reader with a norm of its own, that one is not among them; the last norm is.

    Example:
        >>> config = DecoderConfig(n_layers=2, d_model=4, n_ctx=3, d_head=4, d_vocab=2)
        >>> norms_between(config, "L0H0"), norms_between(config, "L0H0", "L1H0")
        (('ln_final',), ())
        >>> post = DecoderConfig(n_layers=2, d_model=4, n_ctx=3, d_head=4, d_vocab=2, norm_first=False)
        >>> norms_between(post, "L0.mlp"), norms_between(post, "L0H0", "L1H0")
        (('blocks.0.ln2', 'blocks.1.ln1', 'blocks.1.ln2'), ('blocks.0.ln1', 'blocks.0.ln2'))
    """
    last = ("ln_final",) * (config.final_normalization_type is not None and reader == "logits")
    if config.norm_first:
        return last
    end = 2 * config.n_layers if reader == "logits" else stage_of(reader)
    stages = range(max(0, stage_of(writer)), end, 1 + config.attn_only)
    return (*(f"blocks.{stage // 2}.ln{1 + stage % 2}" for stage in stages), *last)


@dataclass(frozen=True)
class Output:
    """The hook of a component's output (`output_of`); a head's is a slice of its layer's `hook_z`.

    Attributes:
        hook: The name of the hook point.
        head: Layer and head of a head; None for any other component.
    """

    hook: str
    head: tuple[int, int] | None = None

    def read(self, x: Float[Tensor, "..."]) -> Float[Tensor, "*stack batch position d"]:
        """Returns the component's output, from the tensor at its hook point."""
        return x if self.head is None else x[..., self.head[1], :]

    def replaced(self, x: Float[Tensor, "..."], value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Returns a copy of the tensor `x` at the hook point in which the component's output is `value`."""
        if self.head is None:
            return value
        x = x.clone()
        x[..., self.head[1], :] = value
        return x


def output_of(config: DecoderConfig, name: str) -> Output:
    """Returns where a component's output is hooked.

    Raises:
        ValueError: There is no such component, or it is `direct` or `bias`, which have no hook point.

    Example:
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=3, d_head=4, d_vocab=2)
        >>> output_of(config, "L0.mlp").hook, output_of(config, "L0H0").hook
        ('blocks.0.hook_mlp_out', 'blocks.0.attn.hook_z')
    """
    check_component(config, name)
    if head := head_index(name):
        return Output(f"blocks.{head[0]}.attn.hook_z", head)
    if (layer := mlp_index(name)) is not None:
        return Output(f"blocks.{layer}.hook_mlp_out")
    if name in ("direct", "bias"):
        raise ValueError(f"component is {shown(name)}, which has no hook point of its own: use ablate")
    return Output(f"hook_{name}")
