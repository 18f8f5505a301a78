"""Components together: two or three at once, and each without what later ones change.

An ablation at the mean says too little of a component that another one stands in for. So pairs are ablated
together (redundancy), and the direct path to the logits is cut, which leaves later components no chance
to repair it (self-repair: McGrath et al. 2023, arXiv 2307.15771).
"""

from functools import partial
from itertools import combinations

import numpy as np
import torch
import xarray as xr
from scipy.special import stdtrit

from mechmarkov.interventions.ablate import ablate, ablate_path
from mechmarkov.interventions.paths import replace_path
from mechmarkov.interventions.replace import replace_component
from mechmarkov.models.components import head_index, mlp_index
from mechmarkov.models.replay import replayed
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.effects import MEASURES, Intervention, Truth, changes, predictions
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import interval

MAX_COMPONENTS = 5  # that are paired, those of the largest effects

DRAWS = 10  # of the bootstrap

LOSS = MEASURES.index("loss")


@torch.no_grad()
def of_pairs(subject: Subject, batch: Batch, importance: dict[str, float]) -> xr.Dataset:
    """Two components at their mean together, and only the direct path of each; effects on the loss.

    Args:
        subject: The models: `Subject.of(run)`.
        batch: The sequences that losses and means are over.
        importance: The effect of each component's mean by name (`ranked`): pairs are of the largest.

    Returns, with the two names of each pair as `pair_first` and `pair_second`:
        `joint_effect`, `redundancy` [axis, pair] (nats): the loss with both at their mean, less the loss
        without; and that, less the sum of the two single effects: above 0 where one stands in for the other,
        and, as KL is convex in the logits, where the two add;
        `direct_effect`, `self_repair` [axis, part] (nats): with a head's or MLP's output at its mean in what
        the unembedding reads and nowhere else; and that, less its effect wherever it is read: above 0 where
        later components make up for it, or cancel it. All with `*_low` and `*_high`, which hold for all
        pairs, or all parts, at once with 95 %;
        `trio_effect` [axis, trio] (nats): the loss with three at their mean, less the loss without; with
        their names as `trio_first`, `trio_second` and `trio_third`.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> found = of_pairs(subject, subject.batch, {"L0H1": 0.12, "L1H0": 0.16})
        >>> found.pair.item(), found.joint_effect.dims
        ('L0H1 + L1H0', ('step', 'pair'))
    """
    chosen = sorted(importance, key=lambda name: -importance[name])[:MAX_COMPONENTS]
    names = [name for name in importance if name in chosen]
    parts = [name for name in names if head_index(name) is not None or mlp_index(name) is not None]
    pairs = list(combinations(names, 2))
    trios = list(combinations(names, 3))
    tried: list[Intervention] = [
        *(partial(ablate, component=name, kind="mean") for name in names),
        *(partial(ablate_path, sender=name, receiver="logits", kind="mean") for name in parts),
        *(partial(ablate, component=together, kind="mean") for together in (*pairs, *trios)),
    ]
    _, changed = changes(subject, batch, tried)
    ends = np.cumsum([len(names), len(parts), len(pairs)])
    single, direct, joint, of_three = np.split(changed[:, :, LOSS], ends, axis=1)
    place = {name: i for i, name in enumerate(names)}
    first, second = (single[:, [place[pair[end]] for pair in pairs]] for end in (0, 1))
    values = {
        ("pair", "joint_effect"): joint,
        ("pair", "redundancy"): joint - (first + second),
        ("part", "direct_effect"): direct,
        ("part", "self_repair"): direct - single[:, [place[name] for name in parts]],
        ("trio", "trio_effect"): of_three,
    }
    data = xr.Dataset(
        coords={
            subject.axis: subject.coordinates,
            "pair": [" + ".join(pair) for pair in pairs],
            "pair_first": ("pair", [one for one, _ in pairs]),
            "pair_second": ("pair", [other for _, other in pairs]),
            "part": parts,
            "trio": [" + ".join(trio) for trio in trios],
            "trio_first": ("trio", [trio[0] for trio in trios]),
            "trio_second": ("trio", [trio[1] for trio in trios]),
            "trio_third": ("trio", [trio[2] for trio in trios]),
        }
    )
    for (dim, name), value in values.items():
        # The largest of them is what is told: all intervals hold at once (Bonferroni).
        low, high = interval(value, level=1 - 0.05 / max(1, value.shape[1]))
        around = {name: value.mean(-1), f"{name}_low": low, f"{name}_high": high}
        data = data.assign(variables("nats", (subject.axis, dim), **around))
    return data


@torch.no_grad()
def resampled_interval(
    subject: Subject, batch: Batch, component: str, *, among: int = 1
) -> tuple[float, float]:
    """The 95 % interval of the effect of a component's mean on the last model's loss (nats).

    The mean that replaces the output is that of the same sequences, so that effects of single sequences are
    not independent: sequences are drawn with replacement, and the mean is taken anew (Efron's bootstrap, with
    Student's t). What that adds on average is what a mean of so few costs; the lower end is less by it.
    Leaving groups out in turn (the jackknife) is wrong by more for a sharp reader, which jumps
    from one token to another as a mean moves.

    Args:
        subject: The models, of which the last is measured.
        batch: The sequences to draw from.
        component: The component's name, such as "L0H1".
        among: The number of components of which this is the largest: the interval holds whichever that is
            (Bonferroni).

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("induction"), sequences=8)
        >>> low, high = resampled_interval(subject, subject.batch, "L1H0")
        >>> 0.0 < low < high
        True
    """
    model, n = subject.decoder, len(batch.tokens)
    truth = Truth.of(subject, batch, batch.history)

    def losses() -> np.ndarray:
        return truth.judge(predictions(subject, model, batch, batch.tokens))[-1, LOSS]

    def effect(keep: torch.Tensor) -> float:
        def mean(x: torch.Tensor) -> torch.Tensor:
            return x[..., keep, :, :].mean(-3, keepdim=True).expand_as(x)

        direct = component == "direct"
        at_mean = (
            replace_path(model, "embed", "logits", mean)
            if direct
            else replace_component(model, component, mean)
        )
        with at_mean:
            return float((losses() - clean)[keep.numpy()].mean())

    draws = torch.from_numpy(np.random.default_rng(0).integers(n, size=(DRAWS, n)))
    with replayed(model):
        clean = losses()
        whole, *means = map(effect, [torch.arange(n), *draws])
    reach = float(stdtrit(DRAWS - 1, 1 - 0.025 / among) * np.std(means, ddof=1))
    bias = max(0.0, float(np.mean(means)) - whole)
    least = -float(clean.mean())  # no loss is below zero
    return max(least, whole - reach - bias), whole + reach
