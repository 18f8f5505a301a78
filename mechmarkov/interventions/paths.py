"""Paths: what one component's output is to one later component, only through the residual stream.

Where norms stand behind the sums (`norm_first=False`), what is replaced passes those between the two, which
compute anew; all other components write what they write (`mechmarkov.interventions.post_norm`).

Replacing it there and nowhere else is path patching (Wang et al. 2022, section 3.1; Goldowsky-Dill et al.
2023). Senders are `embed`, `pos_embed`, heads and MLPs; receivers are `logits`, MLPs and the inputs of heads:
`L1H0.Q`, `L1H0.K`, `L1H0.V`, or those that the layer's mixer has.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from mechmarkov.interventions.intervention import intervention
from mechmarkov.interventions.positions import reached
from mechmarkov.interventions.post_norm import hook_points, replaced_behind_norms, ungrouped
from mechmarkov.interventions.replace import Replacement
from mechmarkov.models.components import (
    Output,
    component_names,
    head_index,
    head_name,
    mlp_index,
    mlp_name,
    output_of,
    split_input,
    stage_of,
)
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.layers import member_matmul
from mechmarkov.utils.text import shown


def paths(model: HookedDecoder) -> list[tuple[str, str]]:
    """Every path from one component to another without a third between them, as (sender, receiver).

    Example:
        >>> import mechmarkov as mm
        >>> paths(mm.example("walk").model())[:2]
        [('embed', 'L0H0.Q'), ('pos_embed', 'L0H0.Q')]
    """
    both = [(sender, receiver) for receiver in _receivers(model) for sender in _senders(model)]
    return [path for path in both if _why_no_path(model, *path) is None]


def check_path(model: HookedDecoder, sender: str, receiver: str) -> None:
    """Refuse two components between which there is no direct path.

    Raises:
        ValueError: Saying why there is none, or which names there are.
    """
    for field, name, known in (
        ("sender", sender, _senders(model)),
        ("receiver", receiver, _receivers(model)),
    ):
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{field} is {shown(name)}, expected one of {', '.join(known)}")
    if why := _why_no_path(model, sender, receiver):
        raise ValueError(why)


@intervention
def replace_path(
    model: HookedDecoder, sender: str, receiver: str, value: Replacement
) -> Iterator[HookedDecoder]:
    """Replace a sender's output by a function of it in what one receiver reads, and nowhere else.

    The function is as for `replace_component`: from the output `[*stack, batch, position, d]` to its shape.
    Senders that are replaced in one receiver at a time are replaced together there.

    Raises:
        ValueError: If there is no such path; the error says why.

    Example:
        >>> import torch
        >>> from mechmarkov.models.constructions.lookup_tables import direct_table
        >>> model = direct_table(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), n_ctx=4)
        >>> with replace_path(model, "embed", "logits", torch.zeros_like):
        ...     model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 0.0], [0.0, 0.0]]]
    """
    check_path(model, sender, receiver)
    output = output_of(model.config, sender)
    if not model.config.norm_first and not _is_shortformer_position(model, sender):
        with reached(model, sender), replaced_behind_norms(model, sender, receiver, value) as replaced:
            yield replaced
        return
    change: dict[str, Tensor] = {}

    def note_change(x: Tensor) -> None:
        before = output.read(x)
        change["residual"] = value(before) - before
        if output.head is not None:
            layer, head = output.head
            W_O = model.weight(f"blocks.{layer}.attn.W_O")[..., head, :, :]
            change["residual"] = member_matmul(change["residual"], W_O)

    with ExitStack() as stack:
        at, added = _receiver(model, sender, receiver, change, stack)

        def edit(x: Tensor) -> Tensor:
            before = at.read(x)  # in the last layer it may be only the last positions
            return at.replaced(x, before + added()[..., -before.shape[-2] :, :])

        stack.enter_context(reached(model, sender))
        note = (output.hook, lambda x, hook: note_change(x))
        stack.enter_context(model.hooks([note, (at.hook, lambda x, hook: edit(x))]))
        yield model


def _receiver(
    model: HookedDecoder, sender: str, receiver: str, change: dict[str, Tensor], stack: ExitStack
) -> tuple[Output, Callable[[], Tensor]]:
    """Returns where a receiver reads, and what the change of the residual stream adds there."""
    name, side = split_input(receiver)
    index, mlp = head_index(name), mlp_index(name)
    if mlp is not None:
        stack.enter_context(hook_points(model, "hook_mlp_in", model.set_use_hook_mlp_in))
        return Output(f"blocks.{mlp}.hook_mlp_in"), lambda: change["residual"]
    if index is None:
        return Output(f"blocks.{model.config.n_layers - 1}.hook_resid_post"), lambda: change["residual"]
    layer, head = index
    block: Any = model.blocks[layer]
    by_matrix, point = block.attn.is_linear, f"hook_{side.lower()}_input"
    if not by_matrix:
        stack.enter_context(hook_points(model, point, model.set_use_split_qkv_input))
        return Output(f"blocks.{layer}.{point}", index), lambda: change["residual"]
    if block.attn.shares(side):
        stack.enter_context(ungrouped(block.attn))
    weight = model.weight(f"blocks.{layer}.attn.W_{side}")[..., head, :, :]
    # What each receiver reads so far. All paths to it share that: a norm of their sum is not a sum.
    streams: dict[str, Tensor] = model.__dict__.setdefault("streams_at_receivers", {})

    def read() -> Tensor:
        """The change of what the head's matrix reads, through that matrix."""
        added = change["residual"]  # as it is for shortformer positions, which are added after the norm
        is_normed = model.config.normalization_type is not None and model.config.norm_first
        if is_normed and not _is_shortformer_position(model, sender):
            before = streams[receiver]
            streams[receiver] = before + added
            added = block.ln1(streams[receiver]) - block.ln1(before)
        return member_matmul(added, weight)

    def begin(x: Tensor) -> None:
        streams[receiver] = x

    stack.callback(streams.pop, receiver, None)
    stack.enter_context(model.hooks([(f"blocks.{layer}.hook_resid_pre", lambda x, hook: begin(x))]))
    return Output(f"blocks.{layer}.attn.hook_{side.lower()}", index), read


def _senders(model: HookedDecoder) -> list[str]:
    return [name for name in component_names(model.config) if name not in ("direct", "bias")]


def _receivers(model: HookedDecoder) -> list[str]:
    receivers, blocks = [], list[Any](model.blocks)
    for layer, block in enumerate(blocks):
        heads = [head_name(layer, head) for head in range(model.config.n_heads)]
        receivers += [f"{head}.{side}" for head in heads for side in block.attn.inputs]
        receivers += [mlp_name(layer)] * (block.mlp is not None)
    return [*receivers, "logits"]


def _is_shortformer_position(model: HookedDecoder, sender: str) -> bool:
    return sender == "pos_embed" and model.config.positional_embedding_type == "shortformer"


def _why_no_path(model: HookedDecoder, sender: str, receiver: str) -> str | None:
    reader, side = split_input(receiver)
    if _is_shortformer_position(model, sender) and side not in ("Q", "K"):
        return f"pos_embed does not reach {receiver}: shortformer positions go only to queries and keys"
    parallel = model.config.parallel_attn_mlp
    read_at = 2 * model.config.n_layers if receiver == "logits" else stage_of(reader, parallel)
    return None if stage_of(sender, parallel) < read_at else f"{sender} does not come before {receiver}"
