"""Ablation: replace a component's output by zero, its mean, or its value in another sequence.

    with ablate(model, "L0H1", kind="mean", reference=tokens): ...     # wherever it is read
    with ablate(model, ["L0H1", "L1H0"]): ...                          # both at once
    with ablate_path(model, "embed", "L1H0.K", kind="resample"): ...   # in what one other component reads

Interventions are context managers. They work on single models and on stacks, nest, and undo themselves after
the block, also after an exception.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxtyping import Int
from torch import Tensor

from mechmarkov.interventions.intervention import intervention
from mechmarkov.interventions.paths import check_path, replace_path
from mechmarkov.interventions.positions import Positions
from mechmarkov.interventions.replace import Kind, replace_component, replacement
from mechmarkov.models.components import norms_between, output_of
from mechmarkov.models.decoder import HookedDecoder, check_decoder
from mechmarkov.models.layers import per_member
from mechmarkov.utils.errors import list_of


@intervention
def ablate(
    model: HookedDecoder,
    component: str | Sequence[str],
    *,
    kind: Kind | str = "zero",
    reference: Int[Tensor, "reference position"] | None = None,
    seed: int = 0,
    positions: Positions | None = None,
) -> Iterator[HookedDecoder]:
    """Replace a component's output, or that of several at once, wherever it is read.

    Args:
        model: A model or a stack.
        component: Its name: `embed`, `pos_embed`, a head (`L0H1`), an MLP (`L0.mlp`), `direct` (the embedding
            in what the unembedding reads) or `bias` (output biases: every `b_O`, `b_U` and the last norm's
            `b`). Of several, a mean or another sequence's value is that with the earlier ones replaced.
        kind: `"zero"`; `"mean"` over sequences at each position; `"resample"`: the value at the same position
            of another sequence of the batch; `"same_token"`: of another sequence with the same token there
            (at a query token, with the same token before it), so that only the history differs. A token that
            no other sequence has there keeps its value.
        reference: For `"mean"`, the sequences to take it over; by default the batch.
        seed: Chooses the other sequences.
        positions: Where in the sequences, by default everywhere: numbers, from the end if negative, or true
            and false for each position `[position]`, or for each token `[batch, position]`.

    Raises:
        TypeError: The model is not one, such as a run; the component is neither a name nor a list.
        ValueError: For an unknown component or kind, a kind that would change nothing in that component,
            positions of `bias`, and (when the model runs) a mean over one sequence, a position that is not
            there, or a pass that begins at a layer after the component.

    Example:
        >>> import torch
        >>> from mechmarkov.models.constructions.lookup_tables import direct_table
        >>> model = direct_table(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), n_ctx=4)
        >>> with ablate(model, "direct"):
        ...     model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 0.0], [0.0, 0.0]]]
        >>> model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
        >>> with ablate(model, ["direct", "L0H0"], kind="zero"):
        ...     model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 0.0], [0.0, 0.0]]]
    """
    check_decoder(model)
    if not isinstance(component, str):
        with ExitStack() as together:
            for name in list_of("component", component, "a component, such as 'L0H0', or a list"):
                one = ablate(model, name, kind=kind, reference=reference, seed=seed, positions=positions)
                together.enter_context(one)
            yield model
    elif component == "direct":
        direct = ("embed", "logits")
        with ablate_path(model, *direct, kind=kind, reference=reference, seed=seed, positions=positions):
            yield model
    elif component == "bias":
        if positions is not None:
            raise ValueError("positions are given, but bias is what all positions share: leave them out")
        if kind != "zero":
            raise ValueError(f"kind is {kind!r}, but bias is the same for all inputs: only 'zero' changes it")
        with _without_bias(model):
            yield model
    else:
        output = output_of(model.config, component)
        with (
            replacement(model, output, kind, reference, seed, positions) as value,
            replace_component(model, component, value),
        ):
            yield model


@intervention
def ablate_path(
    model: HookedDecoder,
    sender: str,
    receiver: str,
    *,
    kind: Kind | str = "zero",
    reference: Int[Tensor, "reference position"] | None = None,
    seed: int = 0,
    positions: Positions | None = None,
) -> Iterator[HookedDecoder]:
    """Replace a component's output in what one later component reads, and nowhere else.

    This cuts the direct path, only through the residual stream. What the sender tells the receiver through
    other components stays (path patching, Wang et al. 2022, section 3.1; Goldowsky-Dill et al. 2023).

    Args:
        model: A model or a stack.
        sender: `embed`, `pos_embed`, a head or an MLP.
        receiver: `L1H0.Q`, `L1H0.K`, `L1H0.V`, an MLP, or `logits`.
        kind: What stands in for the output, as for `ablate`.
        reference: For `"mean"`, the sequences to take it over; by default the batch.
        seed: Chooses the other sequences.
        positions: Where the sender's output is replaced, as for `ablate`; by default everywhere.

    Raises:
        TypeError: The model is not one, such as a run.
        ValueError: As `ablate` does, and if the sender does not come before the receiver.

    Example:
        >>> import torch
        >>> from mechmarkov.models.constructions.lookup_tables import value_table
        >>> model = value_table(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), n_ctx=4)
        >>> with ablate_path(model, "L0H0", "logits"):
        ...     model(torch.tensor([[0, 1]])).tolist()
        [[[0.0, 0.0], [0.0, 0.0]]]
    """
    check_decoder(model)
    check_path(model, sender, receiver)
    output = output_of(model.config, sender)
    with (
        replacement(model, output, kind, reference, seed, positions) as value,
        replace_path(model, sender, receiver, value),
    ):
        yield model


@contextmanager
def _without_bias(model: HookedDecoder) -> Iterator[None]:
    blocks: list[Any] = list(model.blocks)
    biases = {f"blocks.{layer}.hook_attn_out": block.attn.b_O for layer, block in enumerate(blocks)}
    last = norms_between(model.config, "direct")[-1:]  # the norm that stands last, if any does
    norm_bias = getattr(model.get_submodule(last[0]), "b", None) if last else None
    biases |= {} if norm_bias is None else {"unembed.hook_in": norm_bias}
    biases["unembed.hook_out"] = model.unembed.b_U
    hooks = [(name, lambda x, hook, bias=bias: x - per_member(bias, x)) for name, bias in biases.items()]
    with model.hooks(hooks):
        yield
