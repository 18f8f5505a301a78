"""Methods that intervene: published ones, small enough to be read next to the paper, and our probes."""

import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import EVERY, Method
from mechmarkov.bench.patching import at_mean, corrupt_edges, edge_effects, losses, node_effects, rises
from mechmarkov.interventions.ablate import ablate
from mechmarkov.models.components import head_index
from mechmarkov.probing import Subject
from mechmarkov.probing.dataset import last_model
from mechmarkov.probing.probe import load_probe

ACDC_KL = 1e-2  # nats; an edge whose removal costs less is removed


def ablation(case: Case, kind: str) -> dict[str, float]:
    """The rise of the metric with a node's output at zero, at its mean, or that of another sequence.

    The mean is over the sequences to tune on.
    """
    means = kind == "mean"
    changed = (at_mean(case, n) if means else ablate(case.model, n, kind=kind) for n in case.nodes)
    risen = rises(case, [case.metric], changed)[0].mean(-1)
    return dict(zip(case.nodes, risen.tolist(), strict=True))


def activation_patching(case: Case) -> dict[str, float]:
    """The rise of the metric with a node's output from the corrupt sequences: exact for nodes."""
    return node_effects(case, [case.metric])[case.metric].as_claims()


def path_patching(case: Case) -> dict[str, float]:
    """The rise of the metric with the corrupt output on one edge only: exact for edges."""
    return edge_effects(case, [case.metric])[case.metric].as_claims()


def direct_logit_attribution(case: Case) -> dict[str, float]:
    """Returns what a node itself writes to the logit difference, clean less corrupt.

    What a final norm divides by is left out, as in TransformerLens's `logit_attrs` without a scale.
    """
    answer, written = case.law - case.corrupt_law, {}
    for name, difference in case.differences.items():
        head = head_index(name)
        if head is not None:
            difference = difference @ case.model.get_parameter(f"blocks.{head[0]}.attn.W_O")[head[1]]
        logits = (difference @ case.model.folded_unembedding(name))[:, case.read]
        written[name] = -float((answer * logits).sum(-1).mean())
    return written


def difference_norm(case: Case) -> dict[str, float]:
    """Returns how far a node's output moves between clean and corrupt: large does not mean read."""
    return {name: float(value.norm(dim=-1).mean()) for name, value in case.differences.items()}


def acdc(case: Case) -> dict[str, float]:
    """From the output back, each edge is corrupted for good if the KL rises by less than `ACDC_KL`.

    A kept edge is claimed with what its removal would have cost at its turn, the others with 0.
    """
    removed: list[str] = []
    risen = dict.fromkeys(case.edges, 0.0)
    now = losses(case, [case.metric]).mean()
    for name in reversed(case.edges):
        with corrupt_edges(case, [*removed, name]):
            loss = losses(case, [case.metric]).mean()
        if loss - now < ACDC_KL:
            removed.append(name)
            now = loss
        else:
            risen[name] = float(loss - now)
    return risen


def noise(case: Case, of: str) -> dict[str, float]:
    """Random claims: what chance gives."""
    names = list(getattr(case, of))
    seed = zlib.crc32(f"{case.name} {of} {case.metric}".encode() + case.clean.numpy().tobytes())
    return dict(zip(names, np.random.default_rng(seed).normal(size=len(names)).tolist(), strict=True))


def measured(case: Case, name: str) -> xr.Dataset | str:
    """Returns what a probe measured of a case's model, or why it does not apply."""
    subject, probe = Subject.of(case.as_run(), find=load_probe), load_probe(name)
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
        return "all paths together give no nats: there is nothing to share"
    nats = data["gain"] * data["share"]
    return {name: float(data["gain"] if name == "embed" else nats.sel(path=name)) for name in case.nodes}


def each(of: str) -> Callable[[Case], int]:
    """A pass for each component, one before, and one for values to put in."""
    return lambda case: len(getattr(case, of)) + 2


RESAMPLING = "Chan et al. 2022, causal scrubbing; Wang et al. 2022 (arXiv 2211.00593) for means"
DIFFERENCE = ("logit-difference",)
zero = Method(
    "zero-ablation", "nodes", partial(ablation, kind="zero"), RESAMPLING, EVERY, passes=each("nodes")
)
mean = Method(
    "mean-ablation",
    "nodes",
    partial(ablation, kind="mean"),
    RESAMPLING,
    tunes="the means",
    metrics=EVERY,
    passes=each("nodes"),
)
resample = Method(
    "resample-ablation", "nodes", partial(ablation, kind="resample"), RESAMPLING, EVERY, passes=each("nodes")
)
patching = Method(
    "activation-patching",
    "nodes",
    activation_patching,
    "Meng et al. 2022 (arXiv 2202.05262)",
    EVERY,
    passes=each("nodes"),
    reference=True,
)
edges = Method(
    "path-patching",
    "edges",
    path_patching,
    "Wang et al. 2022 (arXiv 2211.00593)",
    EVERY,
    passes=each("edges"),
    reference=True,
)
direct = Method(
    "direct-logit-attribution", "nodes", direct_logit_attribution, "nostalgebraist 2020", DIFFERENCE, passes=2
)
norm = Method("difference-norm", "nodes", difference_norm, "a baseline", (), passes=2)
acdc_method = Method(
    "acdc",
    "edges",
    acdc,
    "Conmy et al. 2023 (arXiv 2304.14997)",
    ("kl",),
    passes=each("edges"),
    reference=True,
)
ablation_probe = Method("ablation-probe", "nodes", ablation_effects, "the probe `ablation`")
storage_probe = Method("storage-probe", "nodes", storage_shares, "the probe `storage`; Shapley 1953")
noise_nodes = Method("noise-nodes", "nodes", partial(noise, of="nodes"), "what chance gives", EVERY)
noise_edges = Method("noise-edges", "edges", partial(noise, of="edges"), "what chance gives", EVERY)
noise_layers = Method("noise-layers", "layers", partial(noise, of="layers"), "what chance gives", EVERY)
