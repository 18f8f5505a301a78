"""GIM: attribution of edges by gradients that are changed where parts of the model interact.

Edin et al. 2025 (arXiv 2505.17630) change the backward pass in three places and no output:

- the softmax of attention is differentiated at temperature 2, `J(softmax(s / 2))` for `J(softmax(s))`, since
  a saturated softmax has no gradient, and one weight's fall is another's rise;
- the scale of a norm is frozen;
- where two parts are multiplied each gets half, so that claims are shares of an effect: queries and keys get
  a quarter of the gradient, values a half, both factors of a gated MLP a half.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mechmarkov.bench.case import Case
from mechmarkov.bench.gradients import DIFFERENCE, Claims, edge_gradients
from mechmarkov.bench.method import Method
from mechmarkov.models.decoder import HookedDecoder

TEMPERATURE = 2.0
SHARES = {"hook_q": 0.25, "hook_k": 0.25, "hook_v": 0.5, "hook_pre": 0.5, "hook_pre_linear": 0.5}


@contextmanager
def changed_gradients(model: HookedDecoder, temperature: float = TEMPERATURE) -> Iterator[HookedDecoder]:
    """The model with the gradients of GIM inside the block; what it predicts is as before."""
    scores: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: HookPoint) -> Tensor:
        scores[str(hook.name)] = x
        return x

    def tempered(pattern: Tensor, hook: HookPoint) -> Tensor:
        soft = (scores.pop(str(hook.name).replace("pattern", "attn_scores")) / temperature).softmax(-1)
        return pattern.detach() + temperature * (soft - soft.detach())

    def shared(x: Tensor, hook: HookPoint) -> Tensor:
        share = SHARES[str(hook.name).rpartition(".")[2]]
        return x.detach() + share * (x - x.detach())

    hooks: list[tuple[str, Callable[..., Tensor]]] = []
    for name in model.hook_dict:
        last = name.rpartition(".")[2]
        if last == "hook_attn_scores":
            hooks.append((name, keep))
        elif last == "hook_pattern":
            hooks.append((name, tempered))
        elif last == "hook_scale":
            hooks.append((name, lambda x, hook: x.detach()))
        elif last in ("hook_q", "hook_k", "hook_v") or (last in SHARES and model.config.gated_mlp):
            hooks.append((name, shared))
    with model.hooks(hooks):
        yield model


def interaction_gradients(case: Case, temperature: float = TEMPERATURE) -> Claims:
    """The receivers' gradient, changed as GIM changes it, times what senders change."""
    # Hooks act in their order: these come after those that add a sender's change to what a head reads.
    return edge_gradients(case, [changed_gradients(case.model, temperature)])


gim = Method(
    "gim", "edges", interaction_gradients, "Edin et al. 2025 (arXiv 2505.17630)", DIFFERENCE, passes=3
)
