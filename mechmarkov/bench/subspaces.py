"""Claims about subspaces: which directions of a stream hold what the prediction depends on.

A method is told the stream and the rank, as a causal hypothesis names them. It may fit to `case.tuning`.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import subspace_angles
from torch import Tensor
from torch.nn.functional import cross_entropy

from mechmarkov.bench.case import Case, seed_of
from mechmarkov.bench.method import Method
from mechmarkov.interventions.belief import fit_reading, stream_hook, streams
from mechmarkov.theory.bootstrap import interval
from mechmarkov.theory.kernel import kl

NO_SUBSPACE = "no subspace is known in this case"
PAIRS, HELD_OUT = 512, 2048  # that DAS is fitted to and judged on
FIT = {"epochs": 40, "batch_size": PAIRS, "lr": 0.1}
Basis = Float[np.ndarray, "d_model rank"]


def score_subspace(case: Case, claim: Basis | str) -> dict[str, float]:
    """`angle` and `forced`, of clean values interchanged into corrupt sequences; false alarms if empty."""
    if case.subspace is None:
        return {}
    if case.empty:
        return {"alarms": float(not isinstance(claim, str))}
    if isinstance(claim, str):
        return {}
    layer, truth = case.subspace
    clean, corrupt = (streams(case.model, tokens)[layer] for tokens in (case.clean, case.corrupt))

    def distance(basis: Basis) -> float:
        moved = torch.from_numpy((clean - corrupt) @ basis @ basis.T)
        with case.model.hooks([(stream_hook(layer), lambda x, hook: x + moved)]):
            return float(kl(case.law.numpy(), case.predicted(case.corrupt).numpy()).mean())

    angle = subspace_angles(truth, claim).mean() / (np.pi / 2)
    return {"angle": float(angle), "forced": distance(claim) / distance(np.zeros_like(truth))}


def das(case: Case) -> Basis | str:
    """Distributed alignment search: the subspace whose interchange makes the model predict as the source."""
    return _controlled(case, lambda tools, *pairs, **at: tools.fit_das(case.model, *pairs, **at, **FIT).basis)


def probe_weights(case: Case) -> Basis | str:
    """The directions of a linear probe for the next state: what the stream tells, read or not."""

    def fit(tools: Any, hook: str, _: Any, source: Any, targets: Tensor, logits: Any, **at: Any) -> Any:
        x = tools.collect_activations(case.model, hook, source, logits, positions=at["source_positions"])
        states = np.eye(case.law.shape[-1])[targets.numpy()]
        return tools.probe_basis(torch.from_numpy(fit_reading(x.numpy(), states).weights.T))

    return _controlled(case, fit)


def _controlled(case: Case, fit: Callable[..., Any]) -> Basis | str:
    """The fitted subspace, if its interchange lowers the held-out loss by more than in a control task.

    Pairs are of sequences to tune on, at the last position; a target is drawn from the source's exact law.
    The control task has an arbitrary target for each source, with the same pairs and budget. A subspace is
    fitted to a hook, base, source, targets and logits, with rank and positions by name, as for `fit_das`.
    """
    if case.subspace is None:
        return NO_SUBSPACE
    try:
        from transformer_lens.tools.analysis import interchange as tools
    except ImportError:
        return f"transformer-lens is {version('transformer-lens')}, interchanges came with 4.3"
    hook, rank = stream_hook(case.subspace[0]), case.subspace[1].shape[1]
    random, last = np.random.default_rng(seed_of(case.others.clean)), int(case.read[-1])
    pairs = random.integers(len(case.others.clean), size=(2, PAIRS + HELD_OUT))
    law = case.others.law.numpy()[pairs[1], -1]
    drawn = torch.from_numpy((random.random((len(law), 1)) > law.cumsum(-1)[:, :-1]).sum(-1))
    arbitrary = tools.arbitrary_targets(pairs[1].tolist(), law.shape[1], seed=0)
    base, source = (case.others.clean[i] for i in pairs)
    at = torch.full((PAIRS + HELD_OUT,), last)
    where = {"rank": rank, "base_positions": at[:PAIRS], "source_positions": at[:PAIRS]}

    def logits(tokens: Int[Tensor, "batch position"]) -> Float[Tensor, "batch state"]:
        return case.model(tokens)[:, last]

    def fitted(targets: Int[Tensor, " pair"]) -> tuple[Tensor, Float[np.ndarray, " pair"]]:
        """The basis, and its gain on held-out pairs (nats): over no interchange and over a constant law."""
        given = (base[:PAIRS], source[:PAIRS], targets[:PAIRS])
        basis = torch.as_tensor(fit(tools, hook, *given, logits, **where))
        rest, at_rest, wanted = base[PAIRS:], at[PAIRS:], targets[PAIRS:]
        values = tools.collect_activations(case.model, hook, source[PAIRS:], logits, positions=at_rest)
        step = tools.SubspaceInterchange(basis)
        moved = tools.intervened_logits(case.model, hook, step, rest, values, logits, positions=at_rest)
        constant = torch.bincount(wanted, minlength=law.shape[1]).log().expand_as(moved)
        with torch.no_grad():
            losses = [cross_entropy(x, wanted, reduction="none") for x in (logits(rest), constant, moved)]
        return basis, (min(losses[:2], key=torch.mean) - losses[2]).numpy()

    (basis, gain), (_, control) = fitted(drawn), fitted(arbitrary)
    low, _ = interval(np.stack([gain, gain - control]))
    if low.min() <= 0:
        return f"it gains {gain.mean():.3f} nats, of a control task {control.mean():.3f}: no more than chance"
    return np.asarray(basis.double().numpy())


def noise(case: Case) -> Basis | str:
    """A random subspace of the rank."""
    if case.subspace is None:
        return NO_SUBSPACE
    random = np.random.default_rng(seed_of(case.clean))
    return np.linalg.qr(random.normal(size=case.subspace[1].shape))[0]


GEIGER = "Geiger et al. 2024 (arXiv 2303.02536), TransformerLens's own"
CONTROLS = "Alain & Bengio 2016, TransformerLens's own controls"
das_method = Method("das", "subspaces", das, GEIGER, tunes="the subspace")
probe_subspace = Method("probe-subspace", "subspaces", probe_weights, CONTROLS, tunes="the probe")
noise_subspaces = Method("noise-subspaces", "subspaces", noise, "what chance gives")
