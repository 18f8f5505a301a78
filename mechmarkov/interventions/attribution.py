"""Attribution patching: what patching each activation would do, to first order, from one gradient.

    effects = attribution_patching(model, clean, corrupted, metric)              # [layer, position]
    effects = attribution_patching(model, clean, corrupted, metric, of="heads")  # [layer, head, position]

Real patching takes a pass for each layer, head and position: `transformer_lens.patching` on a single model.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mechmarkov.models.decoder import HookedDecoder, check_decoder
from mechmarkov.utils.errors import choice_of
from mechmarkov.utils.text import shown

Of = Literal["residual", "heads", "mlps"]
POINTS = {"residual": "hook_resid_pre", "heads": "attn.hook_z", "mlps": "hook_mlp_out"}


def attribution_patching(
    model: HookedDecoder,
    clean: Int[Tensor, "*batch position"],
    corrupted: Int[Tensor, "*batch position"],
    metric: Callable[[Tensor], Tensor],
    *,
    of: Of | str = "residual",
) -> Float[Tensor, "*stack layer position"] | Float[Tensor, "*stack layer head position"]:
    """Estimate what the clean activation at one place would change in the corrupted pass.

    It is `(clean - corrupted) . d metric / d activation`, at the corrupted activations (Nanda 2023,
    attribution patching; Syed et al. 2023, arXiv 2310.10348, equation 1). The estimate is exact where the
    metric is linear in the activation. It is poor where attention or a norm saturates (Kramár et al. 2024,
    arXiv 2403.00745). The patch is in all sequences at once, as that of `transformer_lens.patching`.

    Args:
        model: A model or a stack.
        clean: Tokens `[batch, position]`; of a stack, `[n_models, batch, position]` too.
        corrupted: Tokens of the same shape.
        metric: From logits `[*stack, batch, position, d_vocab_out]` to one number, of a stack to one for each
            member `[n_models]`.
        of: "residual", the stream before each layer; "heads", the output `z` of each; or "mlps".

    Returns:
        In the unit of the metric: clean patched in, less the corrupted pass.

    Raises:
        TypeError: The model is not one, such as a run.
        ValueError: For tokens of two shapes, an unknown `of`, "mlps" of a model without any, and a metric
            that returns more than one number a model, or none that depends on the logits.

    Example:
        >>> from mechmarkov.models.constructions.lookup_tables import direct_table
        >>> model = direct_table(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), n_ctx=3)
        >>> clean, corrupted = torch.tensor([[0, 1, 1]]), torch.tensor([[0, 1, 0]])
        >>> attribution_patching(model, clean, corrupted, lambda logits: logits[0, -1, 1])
        tensor([[0., 0., 2.]])
    """
    check_decoder(model)
    choice_of("of", of, get_args(Of))
    for name, tokens in (("clean", clean), ("corrupted", corrupted)):
        if not isinstance(tokens, Tensor):
            raise TypeError(f"{name} is {shown(tokens)}, expected a tensor of tokens [batch, position]")
    if not callable(metric):
        raise TypeError(f"metric is {shown(metric)}, expected a function of logits")
    if of == "mlps" and model.config.attn_only:
        raise ValueError("of is 'mlps', but attn_only is true: there is no MLP")
    if clean.shape != corrupted.shape:
        shapes = list(clean.shape), list(corrupted.shape)
        raise ValueError(f"clean has shape {shapes[0]}, expected that of corrupted, {shapes[1]}")
    names = [f"blocks.{layer}.{POINTS[of]}" for layer in range(model.config.n_layers)]
    before, after = dict[str, Tensor](), dict[str, Tensor]()

    def record(x: Tensor, hook: HookPoint) -> None:
        before[hook.name] = x

    def keep(x: Tensor, hook: HookPoint) -> Tensor:
        after[hook.name] = x if x.requires_grad else x.detach().requires_grad_()  # weights may be frozen
        return after[hook.name]

    with torch.no_grad(), model.hooks([(name, record) for name in names]):
        model(clean, return_type=None)
    with torch.enable_grad(), model.hooks([(name, keep) for name in names]):
        value = metric(model(corrupted))
    expected = [] if model.n_models is None else [model.n_models]
    if list(value.shape) != expected:
        of_each = "one number" if model.n_models is None else f"one for each member, {expected}"
        raise ValueError(f"metric returned shape {list(value.shape)}, expected {of_each}")
    if not value.requires_grad:
        raise ValueError("metric returned a number without a gradient, expected one computed from the logits")
    gradients = torch.autograd.grad(value, [after[name] for name in names], torch.ones_like(value))
    effects = []
    for name, slope in zip(names, gradients, strict=True):
        part = ((before[name] - after[name].detach()) * slope).sum(-1)
        effects.append(part.sum(-2) if of != "heads" else part.sum(-3).mT)  # over sequences
    return torch.stack(effects, 0 if model.n_models is None else 1)
