"""Effects by exact patching: the truth that claims are scored against, under each metric."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.bench.case import Case
from mechmarkov.bench.metrics import METRICS
from mechmarkov.interventions.paths import replace_path
from mechmarkov.interventions.replace import replace_component
from mechmarkov.theory.bootstrap import interval
from mechmarkov.utils.kept_data import kept, name_of
from mechmarkov.utils.text import shown

Change = AbstractContextManager[Any]  # of a model, as long as it is entered

ENDS = ("value", "low", "high")
MIN_EFFECT = 1e-3  # nats, or logits: below it a component is not part of the circuit, however sure its sign


@dataclass(frozen=True, eq=False)
class Effects:
    """Exact effects of components under one metric: above 0 where they lead away from the clean answer.

    Attributes:
        names: Nodes, edges or layers.
        value: Mean over the sequences.
        low: The lower end of the 95 % bootstrap interval over sequences.
        high: The upper end.
    """

    names: list[str]
    value: Float[np.ndarray, " component"]
    low: Float[np.ndarray, " component"]
    high: Float[np.ndarray, " component"]

    @property
    def in_circuit(self) -> np.ndarray:
        """Returns whether a component has an effect: an interval without 0, and 0.001 at least."""
        sure = (self.low > 0) | (self.high < 0)
        return sure & (np.abs(self.value) >= MIN_EFFECT)

    def as_claims(self) -> dict[str, float]:
        """Returns what a method that is always right would claim."""
        return dict(zip(self.names, self.value.tolist(), strict=True))


def exact_effects(case: Case) -> dict[tuple[str, str], Effects]:
    """Returns all effects of a case, by `("nodes" | "edges" | "layers", metric)`; kept on disk."""
    tables = {"nodes": node_effects, "edges": edge_effects, "layers": layer_effects}

    def measure() -> xr.Dataset:
        data: dict[str, Any] = {}
        for of, effects in tables.items():
            for metric, found in effects(case, tuple(METRICS)).items():
                data |= {f"{of} {metric} {end}": (of, getattr(found, end)) for end in ENDS}
        return xr.Dataset(data, {of: [*getattr(case, of)] for of in tables})

    decides = [case.model.config.model_dump(mode="json"), case.objective.model_dump(mode="json")]
    tensors = {name: getattr(case, name) for name in ("clean", "corrupt", "law", "corrupt_law", "read")}
    tensors |= {"means": case.others.clean} | case.model.state_dict()
    data = kept(name_of(["exact effects", decides], tensors), measure)
    return {
        (of, metric): Effects(
            [str(name) for name in data[of].values],
            *(data[f"{of} {metric} {end}"].values for end in ENDS),
        )
        for of in tables
        for metric in METRICS
    }


def node_effects(case: Case, metrics: Sequence[str]) -> dict[str, Effects]:
    """Effects of the case's nodes by activation patching: each node's output becomes its corrupt one.

    Args:
        case: A case, from `case_of`.
        metrics: Some of `METRICS`: `"logit-difference"` (logits), `"kl"` and `"nats"` (nats).

    Returns:
        For each metric `Effects` whose `names` are `embed`, `L0H0`, … and whose `value` is `[node]`, above 0
        where the metric got worse.

    Raises:
        TypeError: `case` is not a `Case`, or `metrics` is one text.
        ValueError: There is no metric, or one is unknown.

    Example:
        >>> from mechmarkov.bench import CASES
        >>> effects = node_effects(CASES["split"](1), ["nats"])["nats"]
        >>> dict(zip(effects.names, effects.value.round(2).tolist()))
        {'embed': 0.89, 'L0H0': 0.21, 'L0.mlp': 0.21}
    """

    def corrupt(name: str) -> Change:
        output = case.corrupt_outputs[name]
        return replace_component(case.model, name, lambda _: output)

    return _effects(case, metrics, "nodes", corrupt)


def edge_effects(case: Case, metrics: Sequence[str]) -> dict[str, Effects]:
    """Effects of the case's edges by path patching: a sender's output is corrupt in what one receiver reads.

    Arguments and errors are those of `node_effects`; `names` are `embed→L0H0.V`, `L0H0→logits`, ….
    """
    return _effects(case, metrics, "edges", lambda name: corrupt_edges(case, [name]))


def layer_effects(case: Case, metrics: Sequence[str]) -> dict[str, Effects]:
    """Effects of stopping the model: each later node writes its mean over the sequences to tune on.

    It is the mean ablation of Belrose et al. (2023, arXiv 2303.08112, section 2.1), for each position.
    Arguments and errors are those of `node_effects`; `names` are `embed`, `L0`, ….
    """

    @contextmanager
    def stopped(layer: str) -> Iterator[None]:
        with ExitStack() as stack:
            for change in [at_mean(case, name) for name in case.layers[layer]]:  # before any is made
                stack.enter_context(change)
            yield

    return _effects(case, metrics, "layers", stopped)


def at_mean(case: Case, name: str) -> Change:
    """A node's output at its mean over the sequences to tune on, at each position."""
    mean = case.means[name]
    return replace_component(case.model, name, lambda x: mean[-x.shape[-2] :].expand_as(x))


@contextmanager
def corrupt_edges(case: Case, names: Iterable[str]) -> Iterator[None]:
    """Corrupt values on several edges at once, in what their receivers read and nowhere else."""

    def corrupted(sender: str, receiver: str) -> Change:
        value = case.corrupt_outputs[sender]
        return replace_path(case.model, sender, receiver, lambda _: value)

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(corrupted(*case.edges[name]))
        yield


def losses(case: Case, metrics: Sequence[str]) -> Float[np.ndarray, "metric batch"]:
    """Returns each metric of every clean sequence, by the model as it is now."""
    with torch.no_grad():
        scores = case.model(case.clean)
        return np.stack([case.loss(scores, metric).numpy() for metric in metrics])


def rises(
    case: Case, metrics: Sequence[str], changed: Iterable[Change]
) -> Float[np.ndarray, "metric change batch"]:
    """The rise of each metric of every clean sequence is larger inside each of some blocks."""
    before, rows = losses(case, metrics), []
    for change in changed:
        with change:
            rows.append(losses(case, metrics) - before)
    return np.stack(rows, 1)


def _effects(
    case: Case, metrics: Sequence[str], of: str, changed: Callable[[str], Change]
) -> dict[str, Effects]:
    """Effects of the case's nodes, edges or layers, each under the change that belongs to its name."""
    if not isinstance(case, Case):
        raise TypeError(f"case is a {type(case).__name__}, expected a Case, as case_of returns")
    if isinstance(metrics, str) or not metrics:
        wrong = TypeError if metrics else ValueError
        raise wrong(f"metrics is {shown(metrics)}, expected a list with some of {', '.join(METRICS)}")
    names = list(getattr(case, of))
    values = rises(case, metrics, map(changed, names))
    return {
        metric: Effects(names, rows.mean(-1), *interval(rows))
        for metric, rows in zip(metrics, values, strict=True)
    }
