"""Effects by exact patching: the truth that methods are scored against, and what a set of edges is worth."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.bench.case import Case
from mechmarkov.interventions.paths import replace_path
from mechmarkov.interventions.replace import replace_component
from mechmarkov.theory.bootstrap import interval
from mechmarkov.utils.kept_data import kept, name_of

Change = AbstractContextManager[Any]  # of a model, as long as it is entered

ENDS = ("value", "low", "high")
MIN_EFFECT_NATS = 1e-3  # below it a component is not part of the circuit, however sure its sign is


@dataclass(frozen=True, eq=False)
class Effects:
    """Exact effects of components (nats): above 0 where the corrupt value makes the loss larger.

    Attributes:
        names: Nodes or edges.
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
        """Returns whether a component has an effect: an interval without 0, and 0.001 nats at least."""
        sure = (self.low > 0) | (self.high < 0)
        return sure & (np.abs(self.value) >= MIN_EFFECT_NATS)

    def as_claims(self) -> dict[str, float]:
        """Returns what a method that is always right would claim."""
        return dict(zip(self.names, self.value.tolist(), strict=True))


def content_of(case: Case, what: str) -> str:
    """The name to keep a measurement by: a hash of the model, the sequences and the library's code."""
    decides = [case.model.config.model_dump(mode="json"), case.objective.model_dump(mode="json")]
    tensors = {"clean": case.clean, "corrupt": case.corrupt, "law": case.law, "read": case.read}
    return name_of([what, decides], tensors | case.model.state_dict())


def exact_effects(case: Case) -> dict[str, Effects]:
    """Returns the effects of `nodes` and `edges`, kept on disk."""

    def measure() -> xr.Dataset:
        tables = {"nodes": node_effects(case), "edges": edge_effects(case)}
        ends = {f"{of}_{end}": (of, getattr(effects, end)) for of, effects in tables.items() for end in ENDS}
        return xr.Dataset(ends, coords={of: effects.names for of, effects in tables.items()})

    data = kept(content_of(case, "exact effects"), measure)
    return {
        of: Effects([str(name) for name in data[of].values], *(data[f"{of}_{end}"].values for end in ENDS))
        for of in ("nodes", "edges")
    }


def node_effects(case: Case) -> Effects:
    """Each node's output corrupt, wherever it is read."""
    corrupt = case.corrupt_outputs
    return _effects(
        case, case.nodes, lambda name: replace_component(case.model, name, lambda _: corrupt[name])
    )


def edge_effects(case: Case) -> Effects:
    """Each sender's output corrupt in what one receiver reads, and nowhere else (path patching)."""
    return _effects(case, case.edges, lambda name: corrupt_edges(case, [name]))


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


def losses(case: Case) -> Float[np.ndarray, " batch"]:
    """Returns the loss of every clean sequence, by the model as it is now."""
    with torch.no_grad():
        return np.asarray(case.loss(case.model(case.clean)).numpy())


def rises(case: Case, changed: Iterable[Change]) -> Float[np.ndarray, "change batch"]:
    """By how much the loss of every clean sequence is larger inside each of some blocks (nats)."""
    rows = []
    for change in changed:
        with change:
            rows.append(losses(case))
    return np.stack(rows) - losses(case)


def _effects(case: Case, names: Iterable[str], corrupted: Callable[[str], Change]) -> Effects:
    values = rises(case, map(corrupted, names))
    return Effects(list(names), values.mean(-1), *interval(values))
