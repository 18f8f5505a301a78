"""Certificates of a run's steps, and the worst sequence of the last one, token by token."""

import time
from typing import Any

import numpy as np
import torch
import xarray as xr

from mechmarkov.certify import FLOAT32, Certificate, certify
from mechmarkov.certify.expectation import DELTA, Mean, mean_kl
from mechmarkov.certify.search import Judge
from mechmarkov.certify.sentence import number_of
from mechmarkov.probing.dataset import Variables, variables
from mechmarkov.probing.subject import Subject

SECONDS = 120.0  # budget of the last step's bounds
EARLIER_SECONDS = 30.0  # of all earlier steps together; what is left out is NaN
SEARCHED_TOKENS, EARLIER_TOKENS = 1 << 20, 1 << 16
SHOWN = 48  # tokens of the worst sequence, those in front of the prediction


def measure(subject: Subject) -> xr.Dataset:
    """Certificates, in nats but for what is a position or a probability.

    Returns, over [axis] (NaN at earlier steps that were left out for want of time, and where there is no
    bound):
        `worst_kl`: KL(program ‖ model) of no prediction is larger; `worst_kl_seen`: the largest that was
        seen; `log_ratio_low`, `log_ratio_high`: of log(model / program); `logit_error`: of the log odds of
        two states; `mean_kl` and `mean_kl_bound`: of E[KL], a sample's and an upper bound; `mean_kl_exact`,
        where a sum over few sequences gives it; `mean_reverse_kl` and its bound: the same of
        E[KL(model ‖ program)]; `seconds`; `tier`: 1, 1.5 for `1b`, 2, 3 for `norm`, 0 without a bound;
        `kl_at`, `seen_at` [.., position]: the bound (`Certificate.kl_at`) and the largest seen at each;
        and of the last step: `table` [state_from, state_to] (probability; NaN unless the program is a table;
        of several lags [case, state_to], the parent's digit the lowest),
        the worst prediction that was seen: `witness` [token] (states), `witness_program` and `witness_model`
        [state_to] (probability), `witness_attention` [layer, head, query, key] where there are attention
        weights.
    """
    axis, run = subject.axis, subject.run
    rows: list[dict[str, Any]] = []
    spent = 0.0
    for step in reversed(subject.coordinates):
        last = not rows
        left = SECONDS if last else EARLIER_SECONDS - spent
        if left <= 0:
            rows.append({})
            continue
        began = time.monotonic()
        certified = certify(run, step=step, seconds=left, tokens=SEARCHED_TOKENS if last else EARLIER_TOKENS)
        mean, reverse = (mean_kl(run, certified, step, reverse=turned) for turned in (False, True))
        if last:
            certificate, of_last = certified, mean
        else:
            spent += time.monotonic() - began
        rows.append(_row(certified, mean, reverse))
    of_steps = _by_step(axis, rows[::-1], len(certificate.contexts.reads))
    data = xr.Dataset(
        of_steps | _witness(subject, certificate),
        coords={axis: subject.coordinates, "position": list(certificate.contexts.reads)},
    )
    return data.assign_attrs(
        source=subject.source.title(),
        labels=list(subject.source.labels),
        program=certificate.program.name,
        numbers=certificate.program.numbers,
        lags=list(certificate.contexts.lags),
        tier=certificate.tier,
        why=certificate.why or "",
        why_no_mean=of_last.why or "",
        sequences=number_of(certificate.contexts),
        is_exact=int(certificate.contexts.is_exact),
        sampled=of_last.sequences,
        delta=DELTA,
        query=int(certificate.contexts.query),
        arithmetic="float32" if certificate.unit == FLOAT32 else "exact",
        vacuous=int(certificate.is_vacuous),
        witness_position=certificate.contexts.reads[certificate.seen.read],
    )


def _row(certificate: Certificate, mean: Mean, reverse: Mean) -> dict[str, Any]:
    """Returns what is kept of one step; None becomes NaN."""
    low, high = certificate.worst_log_ratio or (None, None)
    return {
        "worst_kl": certificate.worst_kl,
        "worst_kl_seen": certificate.seen.nats,
        "log_ratio_low": low,
        "log_ratio_high": high,
        "logit_error": certificate.worst_logit_error,
        "mean_kl": mean.sample,
        "mean_kl_bound": mean.bound,
        "mean_kl_exact": mean.exact,
        "mean_reverse_kl": reverse.sample,
        "mean_reverse_kl_bound": reverse.bound,
        "seconds": certificate.seconds,
        "tier": {"0": 0.0, "1": 1.0, "1b": 1.5, "2": 2.0, "norm": 3.0}[certificate.tier],
        "kl_at": certificate.kl_at,
        "seen_at": certificate.seen.at,
    }


def _by_step(axis: str, rows: list[dict[str, Any]], reads: int) -> Variables:
    """The rows of all steps as variables."""
    units, columns = {"seconds": "seconds", "tier": "tier"}, Variables()
    for name in rows[-1]:
        shape = (reads,) if name in ("kl_at", "seen_at") else ()
        values = np.full((len(rows), *shape), np.nan)
        for i, row in enumerate(rows):
            if row.get(name) is not None:
                values[i] = row[name]
        columns |= variables(
            units.get(name, "nats"), (axis, "position") if shape else (axis,), **{name: values}
        )
    return columns


def _witness(subject: Subject, certificate: Certificate) -> Variables:
    """The worst prediction that was seen: its tokens, both laws, and attention."""
    contexts, seen, program = certificate.contexts, certificate.seen, certificate.program
    decoder = subject.run.model(subject.coordinates[-1])
    judge = Judge(decoder, subject.objective, contexts, program)
    read, history = contexts.reads[seen.read], seen.history
    known = read + 1 - contexts.query
    n = contexts.n_states
    table = np.full((n, n), np.nan) if program.table is None else program.table
    row = "state_from" if len(contexts.lags) == 1 else "case"
    shown = variables("probability", (row, "state_to"), table=table)
    shown |= variables("state", "token", witness=history[max(0, known - SHOWN) : known])
    predicted = judge.predictions(history[None])[0, seen.read]
    shown |= variables("probability", "state_to", witness_model=predicted)
    law = program.rule(history[None, :known])[0, -1]
    shown |= variables("probability", "state_to", witness_program=law)
    patterns: list[np.ndarray] = []

    def keep(pattern: torch.Tensor) -> None:
        patterns.append(pattern[0, :, : read + 1, : read + 1][:, -SHOWN:, -SHOWN:].numpy())

    names = [name for name in decoder.hook_dict if name.endswith("hook_pattern")]
    hooks = [(name, lambda pattern, hook: keep(pattern)) for name in names]
    if hooks:
        tokens = torch.from_numpy(history[None].astype(np.int64))
        if contexts.query:
            tokens = torch.cat([tokens, torch.full((1, 1), contexts.n_tokens - 1)], 1)
        with torch.no_grad():
            decoder.run_with_hooks(tokens, fwd_hooks=hooks)
        shown |= variables("mass", ("layer", "head", "query", "key"), witness_attention=np.stack(patterns))
    return shown
