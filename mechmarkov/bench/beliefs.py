"""Claims about beliefs: where the residual stream holds the belief over what is hidden, and how it is read.

A method fits what it likes to `case.corrupt`, whose exact beliefs are known. It is scored on `case.clean`.
"""

import zlib
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.bench.case import Case
from mechmarkov.bench.method import Method
from mechmarkov.bench.scores import signal_angle
from mechmarkov.interventions.belief import Reading, fit_reading, force_belief, streams
from mechmarkov.probing import Subject
from mechmarkov.probing.probe import load_probe
from mechmarkov.runs import Run
from mechmarkov.theory.bootstrap import interval
from mechmarkov.theory.kernel import FLOOR, kl

CONTROL_TOKENS = 3  # last tokens that decide the random label of a control task
FOLDS = 8  # of sequences; each is read by a probe fitted to the others


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
    """`belief_error`, `kl`, `angle` and `forced`; without a belief, whether one is claimed all the same."""
    if case.carries is None:
        return {}
    if not case.carries:
        return {"alarms": float(not isinstance(claim, str))}
    if isinstance(claim, str):
        return {}
    exact = beliefs(case, case.clean)
    flat = exact.reshape(-1, exact.shape[-1])
    stream = streams(case.model, case.clean)[claim.layer]
    read = claim.reading.read(stream).reshape(flat.shape)
    error = ((read - flat) ** 2).sum() / ((flat - flat.mean(0)) ** 2).sum()
    return {
        "belief_error": float(error),
        "kl": _kl(case, read.reshape(exact.shape)),
        "angle": signal_angle(flat, read),
        "forced": _forced(case, claim),
    }


def _kl(case: Case, read: Float[np.ndarray, "batch position hidden"]) -> float:
    """KL from the exact law to that of a belief as read; what is read below 0 counts as 0."""
    source: Any = case.source
    at = case.read.numpy()
    belief = read[:, at].clip(FLOOR)
    belief /= belief.sum(-1, keepdims=True)
    laws = source.laws_of_hidden(case.clean.numpy())[:, at]
    return float(kl(case.law.numpy(), np.einsum("bph,bphj->bpj", belief, laws)).mean())


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
    """A linear probe for the hidden state, after the first block where it is selective.

    Its labels are hidden states drawn from the exact belief, as they stand behind these tokens. A stream is
    selective if the probe's held-out accuracy is above that of both controls, with 95 % intervals over
    sequences. Control task (Hewitt & Liang 2019): labels as uncertain, of which each kind of last three
    tokens has those of another kind. Control features: the same probe reads the exact law of the next token,
    by current token, and the last three tokens, as any model has them that predicts.
    """
    why = why_no_belief(case)
    if why is not None:
        return why
    exact, source = beliefs(case, case.corrupt), cast(Any, case.source)
    n, random = exact.shape[-1], np.random.default_rng(zlib.crc32(case.corrupt.numpy().tobytes()))

    def drawn(law: Float[np.ndarray, "batch position hidden"]) -> Int[np.ndarray, "batch position"]:
        return np.asarray((random.random((*law.shape[:2], 1)) > law.cumsum(-1)[..., :-1]).sum(-1))

    padded = np.pad(case.corrupt.numpy(), ((0, 0), (CONTROL_TOKENS - 1, 0)), constant_values=-1)
    recent = np.lib.stride_tricks.sliding_window_view(padded, CONTROL_TOKENS, axis=1)
    kinds, kind = np.unique(recent.reshape(-1, CONTROL_TOKENS), axis=0, return_inverse=True)
    of_kind = np.stack([exact.reshape(-1, n)[kind.ravel() == i].mean(0) for i in range(len(kinds))])
    labels = drawn(exact)
    task = drawn(random.permutation(of_kind)[kind].reshape(exact.shape))
    tokens = (recent[..., None] == np.arange(case.source.n_states)).astype(float)
    laws = np.einsum("bph,bphj->bpj", exact, source.laws_of_hidden(case.corrupt.numpy()))
    by_token = tokens[:, :, -1, :, None] * laws[:, :, None]
    features = np.concatenate([x.reshape(*exact.shape[:2], -1) for x in (tokens, by_token)], axis=-1)
    known, least = _right(features, labels, n), {}
    for layer, stream in streams(case.model, case.corrupt).items():
        right = _right(stream, labels, n)
        low, _ = interval(right - np.stack([known, _right(stream, task, n)]))
        if low.min() > 0:
            return _fitted(case, layer, np.eye(n)[labels])
        least[layer] = low.min()
    return f"the probe is nowhere selective: above its controls by {max(least.values()):.3f} at least"


def _right(
    stream: Float[np.ndarray, "batch position d"], labels: Int[np.ndarray, "batch position"], n: int
) -> Float[np.ndarray, " batch"]:
    """The share of right labels in each sequence, of a least-squares classifier fitted to others."""
    fold, right = np.arange(len(labels)) % FOLDS, np.empty(labels.shape)
    for k in range(FOLDS):
        rows = stream[fold != k].reshape(-1, stream.shape[-1])
        fit = fit_reading(rows, np.eye(n)[labels[fold != k].ravel()])
        right[fold == k] = fit.read(stream[fold == k]).argmax(-1) == labels[fold == k]
    return np.asarray(right.mean(1))


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
