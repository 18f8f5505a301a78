"""Effects of what the model may see: shorter windows, other orders of the context, another parent."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from mechmarkov.interventions.attention import limit_window
from mechmarkov.interventions.tokens import SHUFFLES, shuffle_context, swap_parent
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.effects import (
    MEASURES,
    Truth,
    at_temperature,
    effects,
    mean_by_position,
    model_chunks,
    positions_in_turn,
    predictions,
)
from mechmarkov.probing.preconditions import parent_lag, predictor_of
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import Predictor
from mechmarkov.theory.bootstrap import interval
from mechmarkov.theory.kernel import FLOOR
from mechmarkov.theory.temperature import best_temperature

from .components import Grid

SAME_LAW = 1e-9  # probabilities that differ by less are equal, and rounded
SAME_PREDICTION = 1e-6  # and so a model's, which are float32


def of_windows(subject: Subject, batch: Batch) -> xr.Dataset:
    """`window_effect` [axis, window, measure]: no head sees beyond lag `window` (1 is the parent).

    Args:
        subject: The models.
        batch: The sequences.
    """
    length = batch.history.shape[1]
    lags = [1 << i for i in range(length.bit_length()) if 1 << i < length] or [1]
    masks: Grid = {
        (str(lag),): partial(limit_window, back=lag - 1 + batch.parent_lag, keep=batch.first) for lag in lags
    }
    return effects(subject, batch, masks, ("window",), "window_effect").assign_coords(window=lags)


def of_orders(subject: Subject, batch: Batch) -> xr.Dataset:
    """`shuffle_effect` [axis, shuffle, measure] (nats): the last prediction, the context in another order.

    Judged by the truth of the unedited context.

    Args:
        subject: The models.
        batch: The sequences.
    """
    last = Truth.of(subject, batch, batch.history).last()
    edited = (shuffle_context(batch.history, which) for which in SHUFFLES)
    tokens = [batch.tokens, *(batch.with_history(history) for history in edited)]
    read_last, changed = replace(batch, read=batch.read[-1:], known=batch.known[-1:]), []
    for chunk in model_chunks(subject, batch):
        runs = (predictions(subject, chunk.model, read_last, one) for one in tokens)
        judged = np.stack([last.judge(run) for run in runs], axis=1)
        changed.append(judged[:, 1:] - judged[:, :1])
    effect = np.concatenate(changed)
    low, high = interval(effect)
    by_order = {"shuffle_effect": effect.mean(-1), "shuffle_effect_low": low, "shuffle_effect_high": high}
    return xr.Dataset(
        variables("nats", (subject.axis, "shuffle", "measure"), **by_order),
        coords={subject.axis: subject.coordinates, "measure": list(MEASURES), "shuffle": list(SHUFFLES)},
    )


def of_parents(subject: Subject, batch: Batch) -> xr.Dataset:
    """Another parent, at one position of each sequence; the positions take turns over the sequences.

    The parent is the token that the next one depends on: the last known one, or that of a lagged source.

    Args:
        subject: The models: `Subject.of(run)`.
        batch: The sequences to edit.

    Returns:
        `swap_kl` [axis, row] (nats): with another parent, KL to the model from the exact law behind that
        parent ("swapped") and behind the true one ("original"), in the mean over sequences;
        `swap_followed` [axis] (probability): how often the other parent moves the prediction from the true
        parent's law towards its own, and nearer to its own, at the temperature that fits the true law best;
        half where the prediction stays as it is;
        `swap_followed_at` [axis, position], how many `swaps` [axis] there are, and of them the share
        `swaps_that_stay` [axis] after which the prediction stays as it is. Sequences whose two
        parents have one law tell nothing and are left out; NaN where all are.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
        >>> of_parents(subject, subject.batch).swap_followed.values.tolist()
        [1.0]
    """
    back = parent_lag(subject.source) - 1
    reads = torch.nonzero(batch.known >= back).flatten()
    if not len(reads):  # a context too short to hold a parent
        reads, back = torch.arange(len(batch.read)), 0
    at = reads[positions_in_turn(len(batch.tokens), len(reads))]
    every, history = torch.arange(len(at)), batch.history
    edited = swap_parent(history, batch.known[at] - back)
    rule = _law_of_parent(subject)
    both = (batch.in_context(rule.probabilities(one.numpy())) for one in (edited, history))
    laws = [torch.from_numpy(law)[every, at] for law in both]
    differs = ((laws[0] - laws[1]).abs() > SAME_LAW).any(-1).numpy()  # two parents may have one law
    by_chunk = []
    tokens = (batch.tokens, batch.with_history(edited))
    for chunk in model_chunks(subject, batch):
        runs = [predictions(subject, chunk.model, batch, one)[:, every, at] for one in tokens]
        nats = [_kl_of(law, runs[1]) for law in laws]
        nats += [_kl_of(law, run) for run in _at_best_temperature(runs, laws[1])[::-1] for law in laws]
        stays = (runs[1] - runs[0]).abs().amax(-1) < SAME_PREDICTION
        by_chunk.append(torch.stack([*nats, stays.double()], 1))
    apart = np.where(differs, torch.cat(by_chunk).numpy(), np.nan)
    kl, (new, old, new_before, old_before, stays) = apart[:, :2], apart[:, 2:].swapaxes(0, 1)
    # Not only by `new`: a blunter prediction is nearer to both laws.
    towards = new - old < new_before - old_before
    followed = np.where(stays == 1, 0.5, towards & (new < old)) + 0 * new
    where = at.numpy()[differs]
    by_position = mean_by_position(followed[:, differs], where, len(batch.read))
    axis, some = subject.axis, differs.any()
    return xr.Dataset(
        variables("nats", (axis, "row"), swap_kl=kl[..., differs].mean(-1) if some else kl.mean(-1))
        | variables("probability", axis, swap_followed=followed[:, differs if some else slice(None)].mean(-1))
        | variables("probability", (axis, "position"), swap_followed_at=by_position)
        | variables("predictions", axis, swaps=np.full(len(followed), differs.sum()))
        | variables("share", axis, swaps_that_stay=stays[:, differs if some else slice(None)].mean(-1)),
        coords={axis: subject.coordinates, "row": ["swapped", "original"], "position": batch.read.numpy()},
    )


def _kl_of(
    law: Float[Tensor, "sequence state"], run: Float[Tensor, "member sequence state"]
) -> Float[Tensor, "member sequence"]:
    return torch.special.xlogy(law, law).sum(-1) - (law * run.clamp_min(FLOOR).log()).sum(-1)


def _at_best_temperature(
    runs: Sequence[Float[Tensor, "member sequence state"]], law: Float[Tensor, "sequence state"]
) -> list[Float[Tensor, "member sequence state"]]:
    """Predictions at the temperature at which the first of them are nearest to a law, each member's own.

    Of nearly uniform predictions, whichever law is nearer says little: that is the blunter one.
    """
    heat = [best_temperature(law[:, None].numpy(), one[:, None].numpy())[0] for one in runs[0].double()]
    power = 1 / torch.tensor(heat, dtype=torch.float64)[:, None, None]
    return [at_temperature(run.double(), power) for run in runs]


def _law_of_parent(subject: Subject) -> Predictor:
    """The exact predictor that reads the parent: the bigram, or that of a lagged source."""
    best, source = subject.source.best(), subject.source
    if parent_lag(source) > 1 and not isinstance(best, str):
        return best
    return source.predictors()[predictor_of(source, "bigram")]
