"""Our own probes as methods: what `ablation` and `storage` claim of nodes, in nats."""

import numpy as np
import xarray as xr

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method
from mechmarkov.probing import Subject
from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.probe import load_probe
from mechmarkov.runs import Run


def measured(case: Case, name: str) -> xr.Dataset | str:
    """What a probe measured of a case's model, or why it does not apply."""
    run = Run.from_model(case.model, source=case.source, objective=case.objective)
    subject, probe = Subject.of(run, find=load_probe), load_probe(name)
    return probe.applies(subject) or last_model(probe.measure(subject))


def ablation_effects(case: Case) -> dict[str, float] | str:
    """The rise of the loss with a node at its mean, on the probe's own sequences."""
    data = measured(case, "ablation")
    if isinstance(data, str):
        return data
    effect = data["effect"].sel(kind="mean", measure="loss")
    return {name: float(effect.sel(component=name)) for name in case.nodes}


def storage_shares(case: Case) -> dict[str, float] | str:
    """A path's Shapley share of the nats that all paths give; of the embedding, which they begin in, all."""
    data = measured(case, "storage")
    if isinstance(data, str):
        return data
    if not np.isfinite(data["share"]).all():
        return f"the paths give {float(data['gain']):.3g} nats: there is nothing to share"
    gain = float(data["gain"])
    shares = {
        str(name): gain * float(share) for name, share in zip(data["path"].values, data["share"], strict=True)
    }
    return {name: gain if name == "embed" else shares[name] for name in case.nodes}


ablation = Method("ablation-probe", "nodes", ablation_effects, "the probe `ablation`")
storage = Method("storage-probe", "nodes", storage_shares, "the probe `storage`; Shapley 1953")
