"""Claims about beliefs: where the residual stream holds the belief over what is hidden, and how it is read.

A method fits what it likes to `case.tuning`, whose exact beliefs are known. It is scored on `case.clean`.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.bench.case import Case, seed_of
from mechmarkov.bench.method import Method
from mechmarkov.bench.scores import signal_angle
from mechmarkov.claims.claim import Claims
from mechmarkov.interventions.belief import Reading, fit_reading, force_reading, streams
from mechmarkov.probing import Subject
from mechmarkov.probing.probe import load_probe
from mechmarkov.report.words.sentences import sentence
from mechmarkov.theory.bootstrap import interval
from mechmarkov.theory.kernel import FLOOR, kl

NO_BELIEF = "nothing is hidden behind the tokens of this case"
CONTROL_TOKENS = 3  # last tokens that decide the random label of a control task
FOLDS = 8  # of sequences; each is read by a probe fitted to the others


@dataclass(frozen=True, eq=False)
class BeliefClaim:
    """The claim that the stream after a block holds the belief, and how it is read from there.

    Attributes:
        layer: After which block; -1 is the embedding.
        reading: The linear map to the belief.
    """

    layer: int
    reading: Reading


def beliefs(case: Case, tokens: Int[Tensor, "batch position"]) -> Float[np.ndarray, "batch position hidden"]:
    """The exact beliefs along sequences of a case."""
    return np.asarray(cast(Any, case.source).beliefs(tokens.numpy()))


def score_claim(case: Case, claim: BeliefClaim | str) -> dict[str, float]:
    """`belief_error`, `kl`, `angle` and `forced`; without a belief, whether one is claimed all the same."""
    if case.carries is None:
        return {}
    if not case.carries:
        return {"alarms": float(not isinstance(claim, str))}
    if isinstance(claim, str):
        return {}
    exact, source, at = beliefs(case, case.clean), cast(Any, case.source), case.read.numpy()
    laws = source.laws_of_hidden(case.clean.numpy())[:, at]
    read = claim.reading.read(streams(case.model, case.clean)[claim.layer])
    flat, flat_read = (x.reshape(-1, x.shape[-1]) for x in (exact, read))
    belief = read[:, at].clip(FLOOR)  # what is read below 0 counts as 0
    belief /= belief.sum(-1, keepdims=True)
    return {
        "belief_error": float(((flat_read - flat) ** 2).sum() / ((flat - flat.mean(0)) ** 2).sum()),
        "kl": float(kl(case.law.numpy(), np.einsum("bph,bphj->bpj", belief, laws)).mean()),
        "angle": signal_angle(flat, flat_read),
        "forced": _forced(case, claim, laws),
    }


def _forced(case: Case, claim: BeliefClaim, laws: Float[np.ndarray, "batch read hidden state"]) -> float:
    """KL to the laws under forced states, over the KL without a move; mean over states."""
    states = np.moveaxis(laws, 2, 0)
    clean, moved = kl(states, case.predicted(case.clean).numpy()).mean(), []
    for law, state in zip(states, np.eye(len(states)), strict=True):
        with force_reading(case.model, claim.layer, claim.reading, state):
            moved.append(kl(law, case.predicted(case.clean).numpy()).mean())
    return float(np.mean(moved) / clean)


def regression(case: Case) -> BeliefClaim | str:
    """Our probe `belief`: the least-squares reading, if it tells more than predictions and tokens do."""
    if case.carries is None:
        return NO_BELIEF
    probe = load_probe("belief")
    # A subject's sequences have a state after the last, which is not read.
    tokens = torch.cat([case.others.clean, case.others.clean[:, :1]], dim=1)
    data = probe.measure(Subject.of(case.as_run(), tokens=tokens))
    scores = probe.scores(data, None)
    carries = Claims(tuple(probe.claims(data, scores))).first("carries_belief")
    if carries is None or carries.status in ("excluded", "does not apply"):
        return NO_BELIEF if carries is None else sentence(carries)
    stream = str(scores["belief_stream"].value)
    return _fitted(case, -1 if stream == "embed" else int(stream[1:]), beliefs(case, case.others.clean))


def selective_probe(case: Case) -> BeliefClaim | str:
    """A linear probe for the hidden state, after the first block where it is selective.

    Its labels are hidden states drawn from the exact belief, as they stand behind these tokens. A stream is
    selective if the probe's held-out accuracy is above that of both controls, with 95 % intervals over
    sequences. Control task (Hewitt & Liang 2019): labels as uncertain, of which each kind of last three
    tokens has those of another kind. Control features: the same probe reads the exact law of the next token,
    by current token, and the last three tokens, as any model has them that predicts.
    """
    if case.carries is None:
        return NO_BELIEF
    exact, source = beliefs(case, case.others.clean), cast(Any, case.source)
    n, random = exact.shape[-1], np.random.default_rng(seed_of(case.others.clean))

    def drawn(law: Float[np.ndarray, "batch position hidden"]) -> Int[np.ndarray, "batch position"]:
        return np.asarray((random.random((*law.shape[:2], 1)) > law.cumsum(-1)[..., :-1]).sum(-1))

    padded = np.pad(case.others.clean.numpy(), ((0, 0), (CONTROL_TOKENS - 1, 0)), constant_values=-1)
    recent = np.lib.stride_tricks.sliding_window_view(padded, CONTROL_TOKENS, axis=1)
    kinds, kind = np.unique(recent.reshape(-1, CONTROL_TOKENS), axis=0, return_inverse=True)
    of_kind = np.stack([exact.reshape(-1, n)[kind.ravel() == i].mean(0) for i in range(len(kinds))])
    labels = drawn(exact)
    task = drawn(random.permutation(of_kind)[kind].reshape(exact.shape))
    tokens = (recent[..., None] == np.arange(case.source.n_states)).astype(float)
    laws = np.einsum("bph,bphj->bpj", exact, source.laws_of_hidden(case.others.clean.numpy()))
    by_token = tokens[:, :, -1, :, None] * laws[:, :, None]
    features = np.concatenate([x.reshape(*exact.shape[:2], -1) for x in (tokens, by_token)], axis=-1)
    known, least = _right(features, labels, n), {}
    for layer, stream in streams(case.model, case.others.clean).items():
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


def noise(case: Case) -> BeliefClaim | str:
    """A random reading of the stream after a random block."""
    if case.carries is None:
        return NO_BELIEF
    draw = np.random.default_rng(seed_of(case.clean))
    exact = beliefs(case, case.others.clean)
    return _fitted(case, int(draw.integers(case.model.config.n_layers)), draw.permutation(exact))


def _fitted(case: Case, layer: int, target: Float[np.ndarray, "batch position hidden"]) -> BeliefClaim:
    """The least-squares reading of a target from the sequences to tune on."""
    stream = streams(case.model, case.others.clean)[layer]
    rows = stream.reshape(-1, stream.shape[-1]), target.reshape(-1, target.shape[-1])
    return BeliefClaim(layer, fit_reading(*rows))


SHAI, ALAIN = "Shai et al. 2024 (arXiv 2405.15943)", "Alain & Bengio 2016"
HEWITT = f"{ALAIN}; Hewitt & Liang 2019 (arXiv 1909.03368)"
READS = "the layer and the reading"
belief_probe = Method("belief-probe", "beliefs", regression, SHAI, tunes=READS)
linear_probe = Method("linear-probe", "beliefs", selective_probe, HEWITT, tunes=READS)
noise_beliefs = Method("noise-beliefs", "beliefs", noise, "what chance gives")
