"""Methods of first order: effects from gradients, where exact patching takes a pass for each component.

Each multiplies a change, corrupt less clean, by a gradient of the metric. They differ in where it is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method
from mechmarkov.bench.patching import corrupt_edges
from mechmarkov.interventions.paths import replace_path
from mechmarkov.interventions.replace import replace_component
from mechmarkov.models.components import head_index, mlp_index, split_input
from mechmarkov.models.decoder import HookedDecoder, activations

Replaced = AbstractContextManager[HookedDecoder]
Claims = dict[str, float]

IG_STEPS = 10  # of EAP-IG; Hanna et al. use 5 to 30
# On the line from clean (0) to corrupt (1). Both of EAP-IG leave out one end, as the authors' code does.
FROM_CORRUPT = tuple(1 - np.arange(IG_STEPS) / IG_STEPS)
TO_CLEAN = tuple(1 - np.arange(1, IG_STEPS + 1) / IG_STEPS)
MIDPOINTS = tuple((np.arange(IG_STEPS) + 0.5) / IG_STEPS)
MASK_STEPS, MASK_RATE = 25, 0.4
MASK_PENALTY = 1e-2  # nats for each edge that is kept


def attribution_patching(case: Case) -> Claims:
    """Activation patching to first order: the gradient at the clean output times the difference."""
    return _gradients(case, case.nodes, partial(_moved, case))


def with_dropped_gradients(case: Case) -> Claims:
    """The size of what attribution patching claims, mean over gradients without a layer (AtP*'s GradDrop).

    Where a later layer takes back what a node writes, its gradient is a difference of large parts, and may be
    none. Without what passes through that layer it is not. Kramár et al. divide by one less than the layers,
    as a node's own layer leaves nothing of it: here the mean is over the other layers. In a model of one
    layer no other is left, and heads and MLPs have plain sizes.
    """
    depth = {name: (head_index(name) or (mlp_index(name),))[0] for name in case.nodes}
    sizes: dict[str, list[float]] = {name: [] for name in case.nodes}
    for layer in range(case.model.config.n_layers):
        others = [name for name, at in depth.items() if at != layer]
        outputs = ["attn_out", *(["mlp_out"] if case.model.config.d_mlp is not None else [])]
        dropped = [(f"blocks.{layer}.hook_{output}", lambda x, hook: x.detach()) for output in outputs]
        with case.model.hooks(dropped):
            for name, value in _gradients(case, others, partial(_moved, case)).items():
                sizes[name].append(abs(value))
    if not all(sizes.values()):
        plain = attribution_patching(case)
        sizes = {name: values or [abs(plain[name])] for name, values in sizes.items()}
    return {name: float(np.mean(values)) for name, values in sizes.items()}


def edge_attribution(case: Case, points: Sequence[float] = (0.0,)) -> Claims:
    """The receivers' gradient, mean over points on the line from clean (0) to corrupt (1) embeddings.

    EAP takes it at the clean ones, EAP-IG (inputs) at many on the line.
    """
    return edge_gradients(case, [_moved(case, "embed", torch.tensor(point)) for point in points])


def edge_gradients(case: Case, moves: Iterable[AbstractContextManager[Any]]) -> Claims:
    """The receivers' gradient times what senders change, mean over changes of the model, one by one."""
    return _gradients(case, case.edges, partial(_added, case), moves)


def activation_gradients(case: Case) -> Claims:
    """EAP-IG (activations), as its authors' code has it: the receivers' gradient while outputs are held.

    The embedding, all heads of a layer, or an MLP are held at points on the line, one of these after the
    other. An edge gets the mean over all passes; those that hold its receiver have no gradient for it.
    """
    groups: dict[str, list[str]] = {}
    for node in case.nodes:
        head = head_index(node)
        groups.setdefault(node if head is None else f"heads of layer {head[0]}", []).append(node)
    moves = (_held(case, nodes, point) for nodes in groups.values() for point in TO_CLEAN)
    return edge_gradients(case, moves)


def sender_gradients(case: Case) -> Claims:
    """The receivers' gradient while the edge's own sender is moved on the line, and nothing is held."""
    claims: Claims = {}
    for node in case.nodes:
        edges = [name for name, (sender, _) in case.edges.items() if sender == node]
        moves = [_moved(case, node, torch.tensor(point)) for point in MIDPOINTS]
        claims |= _gradients(case, edges, partial(_added, case), moves)
    return {name: claims[name] for name in case.edges}


def with_query_key_fix(case: Case) -> Claims:
    """EAP, but with the pattern as it is after a change of queries or keys (AtP*'s QK fix).

    Where attention is saturated, the gradient of the softmax is zero and tells nothing. So for edges that
    queries or keys read, the pattern is computed anew, and only what follows it is of first order. Here that
    takes a pass an edge. `with_dropped_gradients` is the other part of AtP*.
    """
    claims = edge_attribution(case)
    fixed = {
        name: (*head, name)
        for name, (_, receiver) in case.edges.items()
        if split_input(receiver)[1] in ("Q", "K") and (head := head_index(split_input(receiver)[0]))
    }
    blocks: list[Any] = list(case.model.blocks)
    if not all(block.attn.has_attention_weights for block in blocks):
        return claims
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(case.model.config.n_layers)]
    patterns: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: HookPoint) -> Tensor:
        patterns[str(hook.name)] = x if x.requires_grad else x.detach().requires_grad_()
        return patterns[str(hook.name)]

    with torch.enable_grad(), case.model.hooks([(hook, keep) for hook in hooks]):
        loss = case.loss(case.model(case.clean)).mean()
    slopes = dict(zip(hooks, torch.autograd.grad(loss, [patterns[hook] for hook in hooks]), strict=True))
    for layer, at, name in fixed.values():
        hook = hooks[layer]
        with corrupt_edges(case, [name]):
            change = activations(case.model, case.clean, [hook])[hook] - patterns[hook].detach()
        claims[name] = float((change * slopes[hook])[:, at].sum())
    return claims


def learned_mask(case: Case) -> Claims:
    """The share of each edge that is kept, so that KL and a penalty for each edge are least.

    What is not kept is corrupt. It is fitted to the sequences to tune on, without the sampling of Bhaskar et
    al.: masks are numbers from 0 to 1, of Adam on their logits. One below a half drops its edge, and is 0.
    """
    tuning = case.others.under("kl")
    logits = torch.full((len(case.edges),), 2.0, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=MASK_RATE)
    now: dict[str, Tensor] = {}
    with ExitStack() as stack, torch.enable_grad():
        for name in case.edges:
            stack.enter_context(_partly_corrupt(tuning, name, now))
        for _ in range(MASK_STEPS):
            optimiser.zero_grad()
            kept = logits.sigmoid()
            now.update(zip(case.edges, kept, strict=True))
            loss = tuning.loss(tuning.model(tuning.clean)).mean() + MASK_PENALTY * kept.sum()
            torch.autograd.backward(loss)
            optimiser.step()
    shares = logits.sigmoid().tolist()
    return {name: share * (share >= 0.5) for name, share in zip(case.edges, shares, strict=True)}


def _partly_corrupt(case: Case, name: str, shares: Mapping[str, Tensor]) -> Replaced:
    corrupt = case.corrupt_outputs[case.edges[name][0]]
    return replace_path(case.model, *case.edges[name], lambda x: corrupt + shares[name] * (x - corrupt))


def _added(case: Case, name: str, part: Float[Tensor, ""]) -> Replaced:
    """A part of the sender's change, in what the receiver of an edge reads."""
    sender, receiver = case.edges[name]
    difference = case.differences[sender]
    return replace_path(case.model, sender, receiver, lambda x: x + part * difference)


def _moved(case: Case, name: str, part: Float[Tensor, ""]) -> Replaced:
    """A node's output on the line from clean (0) to corrupt (1)."""
    difference = case.differences[name]
    return replace_component(case.model, name, lambda x: x + part * difference)


@contextmanager
def _held(case: Case, names: Iterable[str], part: float) -> Iterator[None]:
    """Some nodes' outputs as constants on the line from clean (0) to corrupt (1)."""

    def at(point: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda _: point

    with ExitStack() as stack:
        for name in names:
            point = case.corrupt_outputs[name] - (1 - part) * case.differences[name]
            stack.enter_context(replace_component(case.model, name, at(point)))
        yield


def _gradients(
    case: Case,
    names: Iterable[str],
    add: Callable[[str, Tensor], Replaced],
    moves: Iterable[AbstractContextManager[Any]] | None = None,
) -> Claims:
    """The derivative of the metric by the part of each difference that is added, at none; mean over moves."""
    parts = {name: torch.zeros((), dtype=torch.float64, requires_grad=True) for name in names}
    rows = []
    with ExitStack() as stack, torch.enable_grad():
        for name, part in parts.items():
            stack.enter_context(add(name, part))
        for move in (nullcontext(),) if moves is None else moves:
            with move:
                loss = case.loss(case.model(case.clean)).mean()
            slopes = torch.autograd.grad(loss, list(parts.values()), allow_unused=True)
            rows.append([0.0 if x is None else float(x) for x in slopes])
    return dict(zip(parts, np.mean(rows, axis=0).tolist(), strict=True))


DIFFERENCE = ("logit-difference",)
INTEGRATED = ("logit-difference", "kl")
SYED = "Nanda 2023, attribution patching; Syed et al. 2023 (arXiv 2310.10348)"
HANNA = "Hanna et al. 2024 (arXiv 2403.17806)"
KRAMAR = "Kramár et al. 2024 (arXiv 2403.00745)"
BHASKAR = "Bhaskar et al. 2024 (arXiv 2406.16778)"
inputs, both = (partial(edge_attribution, points=points) for points in (FROM_CORRUPT, (0.0, 1.0)))
attribution = Method("attribution-patching", "nodes", attribution_patching, SYED, DIFFERENCE, passes=3)
graddrop = Method(
    "atp-graddrop",
    "nodes",
    with_dropped_gradients,
    KRAMAR,
    (),
    passes=lambda case: 3 + case.model.config.n_layers,
)
eap = Method("eap", "edges", edge_attribution, SYED, DIFFERENCE, passes=3)
eap_ends = Method("eap-clean-corrupt", "edges", both, f"the code of {HANNA}", DIFFERENCE, passes=4)
eap_ig = Method("eap-ig", "edges", inputs, f"{HANNA}, inputs", INTEGRATED, passes=2 + IG_STEPS)
eap_ig_activations = Method(
    "eap-ig-activations",
    "edges",
    activation_gradients,
    f"{HANNA}, activations",
    INTEGRATED,
    passes=lambda case: (
        2 + IG_STEPS * (1 + case.model.config.n_layers * (1 if case.model.config.attn_only else 2))
    ),
)
eap_ig_senders = Method(
    "eap-ig-senders",
    "edges",
    sender_gradients,
    "Marks et al. 2024 (arXiv 2403.19647), integrated gradients of nodes; here of a sender's edges",
    INTEGRATED,
    passes=lambda case: 2 + IG_STEPS * len(case.nodes),
)
eap_qk = Method(
    "eap-qk", "edges", with_query_key_fix, KRAMAR, DIFFERENCE, passes=lambda case: 4 + len(case.edges)
)
edge_mask = Method(
    "edge-mask", "edges", learned_mask, BHASKAR, (), tunes="the mask, by KL", passes=MASK_STEPS + 1
)
