"""The parts of a model by name, where their outputs are hooked, and which can tell which what."""

import re
from dataclasses import dataclass

from torch import Tensor

from mechmarkov.models.decoder import HookedDecoder

HEAD = re.compile(r"L(\d+)H(\d+)")
MLP = re.compile(r"L(\d+)\.mlp")
SIDE = re.compile(r"L(\d+)H(\d+)\.([QKV])")


def head_index(name: str) -> tuple[int, int] | None:
    """Layer and head of a head's name; None for any other name.

    Example:
        >>> head_index("L1H0"), head_index("L1.mlp")
        ((1, 0), None)
    """
    match = HEAD.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def mlp_index(name: str) -> int | None:
    """The layer of an MLP's name; None for any other name.

    Example:
        >>> mlp_index("L1.mlp"), mlp_index("direct")
        (1, None)
    """
    match = MLP.fullmatch(name)
    return None if match is None else int(match[1])


def parts(model: HookedDecoder) -> list[str]:
    """The names of a model's parts, in the order in which they are computed."""
    config = model.config
    names = ["embed"] + ["pos_embed"] * (model.pos_embed is not None)
    for layer in range(config.n_layers):
        names += [f"L{layer}H{head}" for head in range(config.n_heads)]
        names += [f"L{layer}.mlp"] * (not config.attn_only)
    return [*names, "direct", "bias"]


def paths(model: HookedDecoder) -> list[tuple[str, str]]:
    """Every path from one part to another without a part between, as (sender, receiver)."""
    config = model.config
    receivers = []
    for layer in range(config.n_layers):
        receivers += [f"L{layer}H{head}.{side}" for head in range(config.n_heads) for side in "QKV"]
        receivers += [f"L{layer}.mlp"] * (not config.attn_only)
    senders = [name for name in parts(model) if name not in ("direct", "bias")]
    both = [(sender, receiver) for receiver in [*receivers, "logits"] for sender in senders]
    return [path for path in both if _why_no_path(model, *path) is None]


@dataclass(frozen=True)
class Site:
    """Where a part's output is hooked; a head's is one of several in its tensor.

    Attributes:
        hook: The hook point.
        layer: Of a head or an MLP.
        head: Of a head.
    """

    hook: str
    layer: int = -1
    head: int | None = None

    def of(self, x: Tensor) -> Tensor:
        """The part's own output in the hooked tensor, `[*stack, batch, position, d]`."""
        return x if self.head is None else x[..., self.head, :]

    def put(self, x: Tensor, value: Tensor) -> Tensor:
        """The hooked tensor with the part's own output replaced; the tensor given stays as it is."""
        if self.head is None:
            return value
        x = x.clone()
        x[..., self.head, :] = value
        return x


def check_part(model: HookedDecoder, name: str) -> None:
    """Raises a ValueError that lists the parts if none has this name."""
    known = parts(model)
    if name not in known:
        raise ValueError(f"part is {name!r}, expected one of {', '.join(known)}")


def site_of(model: HookedDecoder, name: str) -> Site:
    """Where a part is hooked; a ValueError for `direct` and `bias`, which are in no one place."""
    check_part(model, name)
    if match := HEAD.fullmatch(name):
        return Site(f"blocks.{match[1]}.attn.hook_z", int(match[1]), int(match[2]))
    if match := MLP.fullmatch(name):
        return Site(f"blocks.{match[1]}.hook_mlp_out", int(match[1]))
    if name in ("direct", "bias"):
        raise ValueError(f"part is {name!r}, which has no one output: use ablate")
    return Site(f"hook_{name}")


def receiving_head(receiver: str) -> tuple[int, int, str]:
    """Layer, head and side of a receiver like `L1H0.Q` that was checked before."""
    match = SIDE.fullmatch(receiver)
    assert match is not None  # check_path has seen it
    return int(match[1]), int(match[2]), match[3]


def check_path(model: HookedDecoder, sender: str, receiver: str) -> None:
    """Raises a ValueError that says why there is no path, if there is none."""
    why = _why_no_path(model, sender, receiver)
    if why is not None:
        raise ValueError(why)


def _why_no_path(model: HookedDecoder, sender: str, receiver: str) -> str | None:
    config = model.config
    if sender in ("direct", "bias") or sender not in parts(model):
        senders = [name for name in parts(model) if name not in ("direct", "bias")]
        return f"sender is {sender!r}, expected one of {', '.join(senders)}"
    side, mlp = SIDE.fullmatch(receiver), MLP.fullmatch(receiver)
    reader = receiver if side is None else f"L{side[1]}H{side[2]}"
    if receiver != "logits" and ((side is None and mlp is None) or reader not in parts(model)):
        return f"receiver is {receiver!r}, expected 'logits', an MLP, or a head's Q, K or V such as 'L0H0.Q'"
    shortformer = sender == "pos_embed" and config.positional_embedding_type == "shortformer"
    if shortformer and (side is None or side[3] == "V"):
        return f"pos_embed does not reach {receiver}: shortformer positions go to queries and keys alone"
    # Parts in the order of computation: attention of layer l is 2l, its MLP 2l + 1.
    head, own_mlp = HEAD.fullmatch(sender), MLP.fullmatch(sender)
    sent = 2 * int(head[1]) if head else 2 * int(own_mlp[1]) + 1 if own_mlp else -1
    read = 2 * int(side[1]) if side else 2 * int(mlp[1]) + 1 if mlp else 2 * config.n_layers
    return None if sent < read else f"{sender} does not come before {receiver}"
