"""Claims about beliefs: where the residual stream holds the belief over what is hidden, and how it is read.

A method fits what it likes to `case.corrupt`, whose exact beliefs are known. It is scored on `case.clean`.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import subspace_angles
from torch import Tensor

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method
from mechmarkov.interventions.belief import Reading, fit_reading, force_belief, streams
from mechmarkov.probing import Subject
from mechmarkov.probing.probe import load_probe
from mechmarkov.runs import Run
from mechmarkov.theory.kernel import kl

CONTROL_TOKENS = 3  # last tokens that decide the random label of a control task
RANK_TOLERANCE = 1e-9  # of signals' singular values


@dataclass(frozen=True, eq=False)
class Claim:
    """That the stream after a block holds the belief, and how it is read from there.

    Attributes:
        layer: After which block; -1 is the embedding.
        reading: The linear map to the belief.
    """

    layer: int
    reading: Reading


def why_no_belief(case: Case) -> str | None:
    """Why there is no belief to find in a case, or None."""
    return None if case.carries is not None else "nothing is hidden behind the tokens of this case"


def beliefs(case: Case, tokens: Int[Tensor, "batch position"]) -> Float[np.ndarray, "batch position hidden"]:
    """The exact beliefs along sequences of a case."""
    source: Any = case.source
    return np.asarray(source.beliefs(tokens.numpy()))


def score_claim(case: Case, claim: Claim | str) -> dict[str, float]:
    """`belief_error`, `angle` and `forced`; where no belief is carried, whether it is claimed all the same.

    `angle` compares the spaces of signals that the readings and the exact belief span over all clean
    positions: the mean principal angle over a right angle. A missing signal counts as a right angle.
    """
    if not case.carries:
        return {"alarms": float(not isinstance(claim, str))}
    if isinstance(claim, str):
        return {}
    exact = beliefs(case, case.clean)
    flat = exact.reshape(-1, exact.shape[-1])
    stream = streams(case.model, case.clean)[claim.layer]
    read = claim.reading.read(stream).reshape(flat.shape)
    error = ((read - flat) ** 2).sum() / ((flat - flat.mean(0)) ** 2).sum()
    truth, found = _signals(flat), _signals(read)
    angles = subspace_angles(truth, found) if found.shape[1] else np.zeros(0)
    missing = max(0, truth.shape[1] - len(angles))
    angle = (angles.sum() + missing * np.pi / 2) / max(truth.shape[1], found.shape[1]) / (np.pi / 2)
    return {"belief_error": float(error), "angle": float(angle), "forced": _forced(case, claim)}


def _signals(values: Float[np.ndarray, "row signal"]) -> Float[np.ndarray, "row dimension"]:
    """An orthonormal basis of what the columns vary in."""
    left, size, _ = np.linalg.svd(values - values.mean(0), full_matrices=False)
    return np.asarray(left[:, size > RANK_TOLERANCE * max(float(size[0]), 1e-300)])


def _forced(case: Case, claim: Claim) -> float:
    """KL to the laws under forced states, over the KL without a move; mean over states."""
    source: Any = case.source
    laws = source.laws_of_hidden(case.clean.numpy())[:, case.read.numpy()]

    def distance(state: int) -> float:
        with torch.no_grad():
            predicted = case.objective.predict(case.model(case.clean)[:, case.read]).numpy()
        return float(kl(laws[:, :, state], predicted).mean())

    states = range(laws.shape[2])
    clean = np.mean([distance(state) for state in states])
    moved = []
    for state in states:
        with force_belief(case.model, claim.layer, claim.reading, np.eye(len(states))[state]):
            moved.append(distance(state))
    return float(np.mean(moved) / clean)


def regression(case: Case) -> Claim | str:
    """Our probe `belief`: the least-squares reading, if it tells more than predictions and tokens do."""
    why = why_no_belief(case)
    if why is not None:
        return why
    probe = load_probe("belief")
    run = Run.from_model(case.model, source=case.source, objective=case.objective)
    data = probe.measure(Subject.of(run, tokens=_with_next(case)))
    scores = {name: score.value for name, score in probe.scores(data, None).items()}
    if "does not carry" in probe.verdict(data):
        return probe.verdict(data)
    stream = str(scores["belief_stream"])
    return _fitted(case, -1 if stream == "embed" else int(stream[1:]), beliefs(case, case.corrupt))


def _with_next(case: Case) -> Int[Tensor, "batch position"]:
    """The corrupt sequences with a state after the last, as a subject's sequences have; it is not read."""
    return torch.cat([case.corrupt, case.corrupt[:, :1]], dim=1)


def selective_probe(case: Case) -> Claim | str:
    """A linear probe for the hidden state, at the block where it is most selective.

    Its labels are hidden states drawn from the exact belief, as they stand behind these tokens. Selectivity
    is its held-out accuracy less that of the same probe in a control task (Hewitt & Liang 2019): labels as
    uncertain, of which each kind of last three tokens has those of another kind. A probe that is nowhere
    selective says so.
    """
    why = why_no_belief(case)
    if why is not None:
        return why
    exact = beliefs(case, case.corrupt)
    n, random = exact.shape[-1], np.random.default_rng(zlib.crc32(case.corrupt.numpy().tobytes()))

    def drawn(law: Float[np.ndarray, "batch position hidden"]) -> Int[np.ndarray, "batch position"]:
        return np.asarray((random.random((*law.shape[:2], 1)) > law.cumsum(-1)[..., :-1]).sum(-1))

    padded = np.pad(case.corrupt.numpy(), ((0, 0), (CONTROL_TOKENS - 1, 0)), constant_values=-1)
    recent = np.lib.stride_tricks.sliding_window_view(padded, CONTROL_TOKENS, axis=1)
    kinds, kind = np.unique(recent.reshape(-1, CONTROL_TOKENS), axis=0, return_inverse=True)
    of_kind = np.stack([exact.reshape(-1, n)[kind.ravel() == i].mean(0) for i in range(len(kinds))])
    labels = drawn(exact)
    control = drawn(random.permutation(of_kind)[kind].reshape(exact.shape))
    selectivity = {}
    for layer, stream in streams(case.model, case.corrupt).items():
        selectivity[layer] = _accuracy(stream, labels, n) - _accuracy(stream, control, n)
    layer = max(selectivity, key=lambda name: selectivity[name])
    if selectivity[layer] <= 0:
        return f"the probe is nowhere selective: {selectivity[layer]:.3f} at most"
    return _fitted(case, layer, np.eye(n)[labels])


def _accuracy(
    stream: Float[np.ndarray, "batch position d"], labels: Int[np.ndarray, "batch position"], n: int
) -> float:
    """Of the least-squares classifier, fitted to one half of the sequences, on the other half."""
    half = len(labels) // 2
    fit = fit_reading(stream[:half].reshape(-1, stream.shape[-1]), np.eye(n)[labels[:half]].reshape(-1, n))
    return float((fit.read(stream[half:]).argmax(-1) == labels[half:]).mean())


def noise(case: Case) -> Claim | str:
    """A random reading of the stream after a random block."""
    why = why_no_belief(case)
    if why is not None:
        return why
    draw = np.random.default_rng(zlib.crc32(case.clean.numpy().tobytes()))
    exact = beliefs(case, case.corrupt)
    return _fitted(case, int(draw.integers(case.model.config.n_layers)), draw.permutation(exact))


def _fitted(case: Case, layer: int, target: Float[np.ndarray, "batch position hidden"]) -> Claim:
    """The least-squares reading of a target from the corrupt sequences."""
    stream = streams(case.model, case.corrupt)[layer]
    rows = stream.reshape(-1, stream.shape[-1]), target.reshape(-1, target.shape[-1])
    return Claim(layer, fit_reading(*rows))


belief_probe = Method("belief-probe", "beliefs", regression, "Shai et al. 2024 (arXiv 2405.15943)")
linear_probe = Method(
    "linear-probe", "beliefs", selective_probe, "Alain & Bengio 2016; Hewitt & Liang 2019 (arXiv 1909.03368)"
)
noise_beliefs = Method("noise-beliefs", "beliefs", noise, "what chance gives")
