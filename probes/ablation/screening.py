"""The largest effect of a fresh model's components: a gradient says which of many to ablate.

Every ablation of every null model takes longer than all else that is asked of a deep model, and a null gives
only its largest effect. To first order an ablation changes the loss by the gradient at the component's
output, times the change there; one pass forward and one back give that of all components. What it leaves out
grows with the square of the change. So each component has a bound: its estimate, and twice its squared
change times the worst that was left out of those ablated, by their squared changes. The highest bound is
ablated next, until none that is left reaches the largest effect. Where estimates are poor every component is
ablated.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.interventions.ablate import ablate
from mechmarkov.models.components import Output, output_of
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.models.kernels import fast_attention
from mechmarkov.models.layers import member_matmul
from mechmarkov.models.replay import replayed
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.effects import MEASURES, Truth, model_chunks, predictions
from mechmarkov.probing.subject import Subject

LEAST_ABLATED = 3  # of each model
SAFETY = 2.0  # times the worst error that was seen

LOSS = MEASURES.index("loss")
ByModel = Float[np.ndarray, "member component"]


def largest_effects(subject: Subject, batch: Batch, names: Sequence[str]) -> xr.Dataset:
    """The effects of those components' means that may be a model's largest.

    Args:
        subject: The models, such as `Subject.of(run).null`, trained by cross-entropy.
        batch: The sequences that losses and means are over.
        names: The components to choose from: heads, MLPs, `direct`.

    Returns:
        `clean` [axis, measure] (nats); `effect` [axis, component, kind, measure] (nats), NaN for what was not
        ablated; `ablated` [axis] (components): how many were.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> found = largest_effects(subject, subject.batch, ["L0H0", "L0H1", "L1H0", "L1H1", "direct"])
        >>> found.effect.sel(measure="loss").squeeze().idxmax("component").item()
        'L1H0'
    """
    truth, rows, cleans = Truth.of(subject, batch, batch.history), [], []
    for chunk in model_chunks(subject, batch):
        model = chunk.model
        estimate, change = first_order(subject, model, batch, names)
        with replayed(model):

            def judged(model: HookedDecoder = model) -> np.ndarray:
                return truth.judge(predictions(subject, model, batch, batch.tokens)).mean(-1)

            clean = judged()
            effect = np.full((len(clean), len(names), len(MEASURES)), np.nan)
            for index in _until_none_may_be_larger(estimate, change, effect[..., LOSS]):
                with ablate(model, names[index], kind="mean"):
                    effect[:, index] = judged() - clean
        rows.append(effect)
        cleans.append(clean)
    effects = np.concatenate(rows)
    axis, unit = subject.axis, {"unit": "nats"}
    ablated = np.isfinite(effects[..., LOSS]).sum(1)
    return xr.Dataset(
        {
            "clean": ((axis, "measure"), np.concatenate(cleans), unit),
            "effect": ((axis, "component", "kind", "measure"), effects[:, :, None], unit),
            "ablated": (axis, ablated, {"unit": "components"}),
        },
        coords={axis: subject.coordinates, "component": [*names], "kind": ["mean"], "measure": [*MEASURES]},
    )


def first_order(
    subject: Subject, model: HookedDecoder, batch: Batch, names: Sequence[str]
) -> tuple[ByModel, ByModel]:
    """Returns each mean ablation's effect to first order, and the squared change that it makes.

    Args:
        subject: Its objective is the loss.
        model: A stack.
        batch: The sequences that losses and means are over.
        names: Heads, MLPs, `direct`.

    Returns:
        `gradient . (mean - output)`, the gradient that of the mean loss (Nanda 2023, attribution patching),
        in nats; and the mean over tokens of `|mean - output|²`, in the residual stream.
    """
    end = Output(f"blocks.{model.config.n_layers - 1}.hook_resid_post")
    outputs = {name: end if name == "direct" else output_of(model.config, name) for name in names}
    seen: dict[str, torch.Tensor] = {}

    def keep(x: torch.Tensor, hook: object) -> torch.Tensor:
        name = str(getattr(hook, "name", ""))
        seen[name] = x if x.requires_grad else x.detach().requires_grad_()  # weights may be frozen
        return seen[name]

    points = list(dict.fromkeys(output.hook for output in outputs.values()))
    hooks = model.hooks([(name, keep) for name in ["hook_embed", *points]])
    with torch.enable_grad(), _frozen(model), fast_attention(model, batch.tokens), hooks:
        scores = model(batch.tokens, read=batch.read)
        loss = subject.objective.loss(scores, batch.targets.expand(scores.shape[:-1])).mean((-2, -1)).sum()
        slopes = dict(zip(points, torch.autograd.grad(loss, [seen[name] for name in points]), strict=True))
    estimates, squares = [], []
    for name, output in outputs.items():
        slope = output.read(slopes[output.hook])
        x = seen["hook_embed"] if name == "direct" else output.read(seen[output.hook])
        x = x.detach()[..., -slope.shape[-2] :, :]
        change = x.mean(-3, keepdim=True) - x
        estimates.append((change * slope).double().sum((-3, -2, -1)))
        if output.head is not None:
            layer, head = output.head
            W_O = model.weight(f"blocks.{layer}.attn.W_O").detach()[..., head, :, :]
            change = member_matmul(change, W_O)
        squares.append(change.double().square().sum(-1).mean((-2, -1)))
    return torch.stack(estimates, -1).numpy(), torch.stack(squares, -1).numpy()


@contextmanager
def _frozen(model: HookedDecoder) -> Iterator[None]:
    """No gradient by weights, which would take as long as those by what components write."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def _until_none_may_be_larger(estimate: ByModel, change: ByModel, effect: ByModel) -> Iterator[int]:
    """Yields the component to ablate next, whose effect is then there, until no bound reaches the largest."""
    yield from dict.fromkeys([*estimate.argmax(-1).tolist(), *change.argmax(-1).tolist()])
    while (left := np.isnan(effect)).any():
        error = np.where(left, 0.0, np.abs(effect - estimate)) / np.maximum(change, np.finfo(float).tiny)
        bound = np.where(left, estimate + SAFETY * error.max(-1, keepdims=True) * change, -np.inf)
        open_models = bound.max(-1) > np.nanmax(effect, -1)
        if not open_models.any() and (~left).sum(-1).min() >= LEAST_ABLATED:
            return
        among = open_models if open_models.any() else slice(None)
        yield int(bound[among].max(0).argmax())
